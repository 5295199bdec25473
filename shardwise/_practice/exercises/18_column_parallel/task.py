import numpy as np

SAME = {"raises": "bias-left-whole"}


def inputs(rng, sizes):
    draw = lambda *shape: rng.standard_normal(shape).astype(np.float32)
    return draw(5, 16), draw(16), draw(4, 5)


def expected(kernel, bias, x):
    return x @ kernel + bias


def mistakes(sizes, kernel, bias, x):
    parts = np.split(expected(kernel, bias, x), sizes["model"], axis=1)
    return {"stacked-as-rows": np.concatenate(parts), "needless-psum": sum(parts)}
