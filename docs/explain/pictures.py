"""Write the page that `page.png` shows the top of.

    python docs/explain/pictures.py step.html
    chromium --headless --hide-scrollbars --window-size=1100,1085 \\
        --screenshot=docs/explain/page.png step.html
"""

import sys
from pathlib import Path

import jax
import jax.numpy as jnp

import shardwise as sw

HERE = Path(__file__).parent

FEATURES, HEADS, HEAD, HIDDEN = 8192, 64, 128, 32768


def report() -> sw.Report:
    """The gallery's transformer block on 1,024 devices, with sizes as people train them."""
    sys.path.insert(0, str(HERE.parents[1] / "examples"))
    import transformer_2d

    def shaped(*shape):
        return jax.ShapeDtypeStruct(shape, jnp.bfloat16)

    params = {
        "norm1": shaped(FEATURES),
        "qkv": shaped(3, FEATURES, HEADS, HEAD),
        "out": shaped(HEADS, HEAD, FEATURES),
        "norm2": shaped(FEATURES),
        "w1": shaped(FEATURES, HIDDEN),
        "w2": shaped(HIDDEN, FEATURES),
    }
    x = shaped(1024, 2048, FEATURES)
    mesh = sw.mesh(data=128, model=8)
    return sw.explain(transformer_2d.step, params, x, x, mesh=mesh, hardware="h200-node")


if __name__ == "__main__":
    report().save(sys.argv[1])
