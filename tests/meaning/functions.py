"""Functions of each element, by the names that terms give them."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import jax
import numpy as np
from scipy import special


def snap(x: Any) -> Any:
    """Whole numbers that a coefficient such as 1/3 has moved by a rounding, put right."""
    near = np.rint(x)
    return np.where(np.abs(x - near) <= 1e-10 * np.maximum(np.abs(near), 1), near, x)


def _quotient(a: Any, b: Any) -> Any:
    """Whole numbers divide towards zero."""
    return np.trunc(snap(a) / snap(b))


def _select(which: Any, *cases: Any) -> Any:
    out = np.array(cases[0])
    for i, case in enumerate(cases):
        here = np.broadcast_to(which == i, out.shape)
        out[here] = np.broadcast_to(case, out.shape)[here]
    return out


def _truncate(x: Any) -> Any:
    return np.trunc(snap(x.real))


EACH: dict[str, Callable[..., Any]] = {
    "reciprocal": lambda x: 1 / x,
    "select": _select,
    "truncate": _truncate,
    "nonzero": lambda x: x != 0,
    "zero": lambda x: x == 0,
    "negative": lambda x: x < 0,
    "positive": lambda x: x > 0,
    "nonpositive": lambda x: x <= 0,
    "nonnegative": lambda x: x >= 0,
    "ne": lambda x, y=0: x != y,
    "eq": lambda x, y: x == y,
    "lt": lambda x, y: x < y,
    "gt": lambda x, y: x > y,
    "le": lambda x, y: x <= y,
    "ge": lambda x, y: x >= y,
    "div": _quotient,
    "rem": lambda x, y: np.fmod(snap(x), snap(y)),
    "max": np.maximum,
    "min": np.minimum,
    "exp": np.exp,
    "exp2": np.exp2,
    "log": np.log,
    "log1p": np.log1p,
    "log2": np.log2,
    "one_minus_square": lambda x: 1 - x * x,
    "expm1": np.expm1,
    "tanh": np.tanh,
    "logistic": special.expit,
    "sign": np.sign,
    "sqrt": np.sqrt,
    "rsqrt": lambda x: 1 / np.sqrt(x),
    "cbrt": np.cbrt,
    "pow": np.power,
    "sin": np.sin,
    "cos": np.cos,
    "tan": np.tan,
    "asin": np.arcsin,
    "acos": np.arccos,
    "atan": np.arctan,
    "atan2": np.arctan2,
    "sinh": np.sinh,
    "cosh": np.cosh,
    "asinh": np.arcsinh,
    "acosh": np.arccosh,
    "atanh": np.arctanh,
    "erf": special.erf,
    "erfc": special.erfc,
    "erf_inv": special.erfinv,
    "lgamma": special.gammaln,
    "digamma": special.digamma,
    "polygamma": special.polygamma,
    "igamma": special.gammainc,
    "igammac": special.gammaincc,
    "igamma_grad_a": lambda a, x: np.asarray(jax.lax.igamma_grad_a(a, x)),
    "zeta": special.zeta,
    "bessel_i0e": special.i0e,
    "bessel_i1e": special.i1e,
    "regularized_incomplete_beta": special.betainc,
    "abs": np.abs,
    "is_finite": lambda x: np.ones(x.shape),
    "floor": lambda x: np.floor(snap(x)),
    "ceil": lambda x: np.ceil(snap(x)),
    "clamp": lambda low, x, high: np.minimum(np.maximum(x, low), high),
    "complex": lambda x, y: x + 1j * y,
    "real": np.real,
    "imag": np.imag,
    "conj": np.conj,
}


# --- functions whose numbers depend on a parameter, or on the type of the operand


def _dtype(params: Any) -> np.dtype | None:
    """The type of the first operand, which such terms carry."""
    found = dict(params).get("operand")
    return np.dtype(found) if isinstance(found, str) else None


def _bitwise(f: Callable[..., Any]) -> Callable[..., Any]:
    def run(params: Any, *kids: Any) -> Any:
        dtype = _dtype(params)
        if dtype is None:
            return None
        return f(*(np.asarray(np.rint(kid), object).astype(dtype) for kid in kids))

    return run


def _shift_right(x: Any, by: Any) -> Any:
    wide = 8 * x.dtype.itemsize
    bits = x.astype(f"u{x.dtype.itemsize}")
    return np.where(by.astype(int) >= wide, 0, bits >> by.astype(bits.dtype)).astype(x.dtype)


def _leading_zeros(x: Any) -> Any:
    wide = 8 * x.dtype.itemsize
    return np.vectorize(lambda n: wide - int(n).bit_length(), otypes=[float])(
        x.astype(f"u{x.dtype.itemsize}")
    )


def _bit_count(x: Any) -> Any:
    return np.vectorize(lambda n: int(n).bit_count(), otypes=[float])(
        x.astype(f"u{x.dtype.itemsize}")
    )


def _bitcast(params: Any, x: Any) -> Any:
    dtype = _dtype(params)
    if dtype is None:
        return None
    x = np.rint(x) if dtype.kind in "iu" else x
    return x.astype(dtype).view(np.dtype(dict(params)["new_dtype"]))


def _round(params: Any, x: Any) -> Any:
    if int(dict(params)["rounding_method"]) == 1:
        return np.rint(snap(2 * x) / 2)
    return np.trunc(snap(2 * x) / 2 + np.copysign(0.5, x))


def _threefry(params: Any, *kids: Any) -> Any:
    from jax.extend.random import threefry2x32_p

    index = params[1]
    return np.asarray(threefry2x32_p.bind(*(np.rint(kid).astype(np.uint32) for kid in kids))[index])


def keys_of(x: Any) -> Any:
    """Random keys of JAX from a structured array."""
    return jax.random.wrap_key_data(x["key"], impl="threefry2x32")


def structured(data: Any) -> np.ndarray:
    """Random keys as a structured array, from the numbers they are made of."""
    data = np.asarray(data, np.uint32)
    kind = np.dtype([("key", np.uint32, (data.shape[-1],))])
    out = np.zeros(data.shape[:-1], kind)
    out["key"] = data
    return out


def _each_key(f: Callable[..., Any], *arrays: Any) -> Any:
    for _ in range(arrays[0].ndim):
        f = jax.vmap(f)
    return f(*arrays)


def _fold_in(params: Any, keys: Any, data: Any) -> Any:
    out = _each_key(jax.random.fold_in, keys_of(keys), np.rint(data).astype(np.uint32))
    return structured(jax.random.key_data(out))


def _bits(params: Any, keys: Any) -> Any:
    how = dict(params[0])
    dtype = f"uint{how['bit_width']}"
    return _each_key(lambda key: jax.random.bits(key, how["shape"], dtype), keys_of(keys))


def _split(params: Any, keys: Any) -> Any:
    shape = dict(params[0])["shape"]
    out = _each_key(lambda key: jax.random.split(key, shape), keys_of(keys))
    return structured(jax.random.key_data(out))


def _seed(params: Any, seeds: Any) -> Any:
    return structured(
        _each_key(lambda s: jax.random.key_data(jax.random.key(s)), np.rint(seeds).astype(int))
    )


def _wrap(params: Any, x: Any) -> Any:
    return np.rint(x).astype(np.int64).astype(np.dtype(dict(params)["new_dtype"]))


BITS: dict[str, Callable[..., Any]] = {
    "wrap": _wrap,
    "and": _bitwise(np.bitwise_and),
    "or": _bitwise(np.bitwise_or),
    "xor": _bitwise(np.bitwise_xor),
    "not": _bitwise(np.invert),
    "shift_left": _bitwise(lambda x, by: x << by),
    "shift_right_logical": _bitwise(_shift_right),
    "shift_right_arithmetic": _bitwise(lambda x, by: x >> by),
    "population_count": _bitwise(_bit_count),
    "clz": _bitwise(_leading_zeros),
    "bitcast_convert_type": _bitcast,
    "nextafter": lambda params, x, y: np.nextafter(
        x.astype(_dtype(params)), y.astype(_dtype(params))
    ),
    "round": _round,
    "integer_pow": lambda params, x: x**params,
    "threefry2x32": _threefry,
    "random_fold_in": _fold_in,
    "random_bits": _bits,
    "random_split": _split,
    "random_seed": _seed,
    "random_unwrap": lambda params, keys: keys["key"],
    "random_clone": lambda params, keys: keys,
    "random_wrap": lambda params, data: structured(data),
}
