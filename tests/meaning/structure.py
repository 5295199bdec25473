"""What terms say of whole arrays: sums, arrangements, contractions, lookups."""

from __future__ import annotations

import string
from collections.abc import Callable
from typing import Any

import jax
import numpy as np
from jax import lax
from jax.lax import (
    ConvDimensionNumbers,
    GatherScatterMode,
)

from .functions import structured

Kids = list[Any]


def _bcast(params: Any, kids: Kids, shape: tuple[int, ...]) -> Any:
    small = [1] * len(shape)
    for size, d in zip(kids[0].shape, params, strict=True):
        small[d] = size
    return np.broadcast_to(kids[0].reshape(small), shape)


def _sum(params: Any, kids: Kids, shape: tuple[int, ...]) -> Any:
    out = sum(kids[1:], start=kids[0])
    if out.dtype.kind == "V":
        return None
    # What cancels is zero: its sign is asked for.
    size = sum(np.abs(kid) for kid in kids)
    return np.where(np.isfinite(out) & (np.abs(out) <= 1e-14 * size), 0.0, out)


def _product(params: Any, kids: Kids, shape: tuple[int, ...]) -> Any:
    out: Any = 1.0
    for kid, power in zip(kids, params, strict=True):
        out = out * kid**power
    return out


def _reduced(f: Callable[..., Any]) -> Callable[..., Any]:
    return lambda params, kids, shape: f(kids[0], axis=tuple(params))


def _by_bits(f: Callable[..., Any]) -> Callable[..., Any]:
    def run(params: Any, kids: Kids, shape: tuple[int, ...]) -> Any:
        out = np.rint(kids[0]).astype(np.int64)
        for axis in sorted(params, reverse=True):
            out = f.reduce(out, axis=axis)
        return out

    return run


def _dot(params: Any, kids: Kids, shape: tuple[int, ...]) -> Any:
    (cx, cy), (bx, by) = params
    x, y = kids
    letters = iter(string.ascii_letters)
    of_x = [next(letters) for _ in range(x.ndim)]
    of_y = [next(letters) for _ in range(y.ndim)]
    for i, j in (*zip(cx, cy, strict=True), *zip(bx, by, strict=True)):
        of_y[j] = of_x[i]
    free_x = [c for d, c in enumerate(of_x) if d not in cx and d not in bx]
    free_y = [c for d, c in enumerate(of_y) if d not in cy and d not in by]
    out = [*(of_x[d] for d in bx), *free_x, *free_y]
    return np.einsum(f"{''.join(of_x)},{''.join(of_y)}->{''.join(out)}", x, y)


def _slice(params: Any, kids: Kids, shape: tuple[int, ...]) -> Any:
    d, start, stride = params
    return np.take(kids[0], [start + i * stride for i in range(shape[d])], axis=d)


def _pad(params: Any, kids: Kids, shape: tuple[int, ...]) -> Any:
    config = [(0, 0, 0)] * kids[0].ndim
    for d, low, high, inner in params:
        config[d] = (low, high, inner)
    x = kids[0]
    filler = kids[1] if len(kids) > 1 else np.zeros(())
    lead = filler.ndim
    if x.dtype.kind == "V":
        return None
    with jax.enable_x64(True):

        def pad(one: Any, fill: Any) -> Any:
            return lax.pad(one, fill, config[lead:])

        for _ in range(lead):
            pad = jax.vmap(pad)
        return np.asarray(pad(x, filler))


def _start(kid: Any, size: int, limit: int) -> Any:
    return np.clip(np.rint(kid).astype(int), 0, limit - size)


def _dynamic_slice(params: Any, kids: Kids, shape: tuple[int, ...]) -> Any:
    along, lead = params
    x, *starts = kids
    out = np.zeros(shape, x.dtype)
    for at in np.ndindex(*shape[:lead]):
        where = [slice(None)] * (x.ndim - lead)
        for (d, size), start in zip(along, starts, strict=True):
            first = _start(start[at], size, x.shape[d])
            where[d - lead] = slice(first, first + size)
        out[at] = x[at][tuple(where)]
    return out


def _update(params: Any, kids: Kids, shape: tuple[int, ...]) -> Any:
    along, lead = params
    x, update, *starts = kids
    out = np.array(x)
    for at in np.ndindex(*shape[:lead]):
        where = [slice(None)] * (x.ndim - lead)
        for d, start in zip(along, starts, strict=True):
            first = _start(start[at], update.shape[d], x.shape[d])
            where[d - lead] = slice(first, first + update.shape[d])
        out[(*at, *where)] = update[at]
    return out


def _permute(params: Any, kids: Kids, shape: tuple[int, ...]) -> Any:
    at, sender = params
    out = np.take(kids[0], [max(s, 0) for s in sender], axis=at)
    for target, source in enumerate(sender):
        if source < 0:
            out[(slice(None),) * at + (target,)] = np.zeros((), out.dtype)
    return out


def _running(f: Callable[..., Any]) -> Callable[..., Any]:
    def run(params: Any, kids: Kids, shape: tuple[int, ...]) -> Any:
        axis, reverse = params
        x = np.flip(kids[0], axis) if reverse else kids[0]
        out = f(x, axis)
        return np.flip(out, axis) if reverse else out

    return run


def _log_sum_exp(x: Any, axis: int) -> Any:
    return np.logaddexp.accumulate(x, axis)


def _sort(params: Any, kids: Kids, shape: tuple[int, ...]) -> Any:
    d, keys, stable, index = params
    with jax.enable_x64(True):
        return np.asarray(
            lax.sort(tuple(kids), dimension=d, num_keys=keys, is_stable=stable)[index]
        )


def _top_k(params: Any, kids: Kids, shape: tuple[int, ...]) -> Any:
    how, d, index = params
    k, x = dict(how)["k"], kids[0]
    x = x if dict(how).get("is_max_k", True) else -x
    order = np.flip(np.argsort(np.flip(x, d), axis=d, kind="stable"), d)
    order = np.take(kids[0].shape[d] - 1 - order, range(k), axis=d)
    return order if index else np.take_along_axis(kids[0], order, d)


def _leading(f: Callable[..., Any], lead: int, *arrays: Any) -> Any:
    for _ in range(lead):
        f = jax.vmap(f)
    with jax.enable_x64(True):
        return np.asarray(f(*arrays))


def _mode(text: str) -> Any:
    if text == "None":
        return None
    if text.isdigit():
        return GatherScatterMode(int(text))
    found = GatherScatterMode[text.split(".")[-1].upper()]
    # Nobody promises anything here: an index outside is clipped, as XLA does it on CPU.
    return "clip" if found == GatherScatterMode.PROMISE_IN_BOUNDS else found


def _gather(params: Any, kids: Kids, shape: tuple[int, ...]) -> Any:
    numbers, sizes, mode, lead = params
    x, index = kids

    def run(one: Any, at: Any) -> Any:
        fill = None if mode[1] == "None" else float(mode[1])
        how = {"mode": _mode(mode[0]), "fill_value": fill}
        return lax.gather(one, at, numbers, slice_sizes=sizes, **how)

    return _leading(run, lead, x, np.rint(index).astype(np.int64))


def _numbered(params: Any, leaf: Any, rows: tuple[int, ...], size: int) -> tuple[Any, Any]:
    """The numbers of rows, spread over all rows looked up, and which of them there are."""
    small = [1] * len(rows)
    for width, d in zip(leaf.shape, params, strict=True):
        small[d] = width
    at = np.broadcast_to(np.rint(leaf).astype(int).reshape(small), rows)
    return at, (at >= 0) & (at < size)


def _rows(params: Any, kids: Kids, shape: tuple[int, ...]) -> Any:
    """Rows of a table by number, and zeros for a number that is none."""
    numbers, sizes, places = params
    table, leaf = kids
    rows = [d for d in range(len(shape)) if d not in numbers.offset_dims]
    size = table.shape[numbers.start_index_map[0]]
    at, there = _numbered(places, leaf, tuple(shape[d] for d in rows), size)
    found = _gather((numbers, sizes, ("CLIP", "None"), 0), [table, at[..., None]], shape)
    wide = [shape[d] if d in rows else 1 for d in range(len(shape))]
    return np.where(there.reshape(wide), found, 0.0)


def _add_rows(params: Any, kids: Kids, shape: tuple[int, ...]) -> Any:
    """Rows added up by number; a number that is none counts nowhere."""
    numbers, places = params
    leaf, update = kids
    rows = [d for d in range(update.ndim) if d not in numbers.update_window_dims]
    size = shape[numbers.scatter_dims_to_operand_dims[0]]
    at, there = _numbered(places, leaf, tuple(update.shape[d] for d in rows), size)
    at = np.where(there, at, 0)[..., None]
    wide = [update.shape[d] if d in rows else 1 for d in range(update.ndim)]
    update = np.where(there.reshape(wide), update, 0.0)
    return _scatter_add(("scatter-add", numbers, "CLIP", 0), [at, update], shape)


SCATTERS = {
    "scatter": lax.scatter,
    "scatter-add": lax.scatter_add,
    "scatter-mul": lax.scatter_mul,
    "scatter-min": lax.scatter_min,
    "scatter-max": lax.scatter_max,
}


def _scatter(params: Any, kids: Kids, shape: tuple[int, ...]) -> Any:
    name, numbers, mode, lead = params
    x, index, update = kids
    apply = SCATTERS[name.replace("_", "-")]

    def run(one: Any, at: Any, new: Any) -> Any:
        return apply(one, at, new, numbers, mode=_mode(mode))

    return _leading(run, lead, x, np.rint(index).astype(np.int64), update)


def _scatter_add(params: Any, kids: Kids, shape: tuple[int, ...]) -> Any:
    return _scatter(params, [np.zeros(shape), *kids], shape)


def _conv(params: Any, kids: Kids, shape: tuple[int, ...]) -> Any:
    names = {"ConvDimensionNumbers": ConvDimensionNumbers}
    how = {key: value for key, value in params if key not in ("out_sharding", "sharding")}
    how = {key: eval(value, names) for key, value in how.items()}
    numbers = how["dimension_numbers"]
    x, k = kids

    def run(one: Any, kernel: Any) -> Any:
        return lax.conv_general_dilated(one, kernel, **how)

    return _leading(run, x.ndim - len(numbers.lhs_spec), x, k)


WINDOWS = {
    "reduce_window_sum": (0.0, lax.add),
    "reduce_window_max": (-np.inf, lax.max),
    "reduce_window_min": (np.inf, lax.min),
}


def _window(name: str) -> Callable[..., Any]:
    start, combine = WINDOWS[name]

    def run(params: Any, kids: Kids, shape: tuple[int, ...]) -> Any:
        how = {key: eval(value) for key, value in params}

        def one(x: Any) -> Any:
            return lax.reduce_window(
                x,
                np.float64(start),
                combine,
                how["window_dimensions"],
                how["window_strides"],
                how["padding"],
                how["base_dilation"],
                how["window_dilation"],
            )

        return _leading(one, kids[0].ndim - len(how["window_dimensions"]), kids[0])

    return run


def _backward_window(params: Any, kids: Kids, shape: tuple[int, ...]) -> Any:
    how = dict(params)
    combine = {"ge": lax.max, "le": lax.min}[how["select_prim"]]
    start = np.float64(-np.inf if combine is lax.max else np.inf)
    size, stride, padding = (
        eval(how[name]) for name in ("window_dimensions", "window_strides", "padding")
    )

    def one(source: Any, x: Any) -> Any:
        pool = lambda v: lax.reduce_window(v, start, combine, size, stride, padding)  # noqa: E731
        return jax.vjp(pool, x)[1](source)[0]

    return _leading(one, kids[1].ndim - len(size), *kids)


def _literal(params: Any, kids: Kids, shape: tuple[int, ...]) -> Any:
    return np.asarray(params if isinstance(params, complex) else float(params))


def _fft(params, kids, shape):
    """Along the last dimensions, as many as there are lengths."""
    kind, lengths = params
    f = {"FFT": np.fft.fftn, "IFFT": np.fft.ifftn, "RFFT": np.fft.rfftn, "IRFFT": np.fft.irfftn}
    return f[kind](kids[0], lengths, axes=range(-len(lengths), 0))


def _matrices(f: Callable[..., Any]) -> Callable[..., Any]:
    """A function of matrices, which may return several arrays."""

    def run(params: Any, kids: Kids, shape: tuple[int, ...]) -> Any:
        how, index = params
        out = f({key: eval(value) for key, value in how}, *kids)
        return out[index] if isinstance(out, list | tuple) else out

    return run


def _solve(how: Any, a: Any, b: Any) -> Any:
    return lax.linalg.triangular_solve(a, b, **how)


def _permutation(how: Any, pivots: Any) -> Any:
    found = np.rint(pivots).astype(np.int32)
    return lax.linalg.lu_pivots_to_permutation(found, how["permutation_size"])


MATRICES = {
    "cholesky": lambda how, x: lax.linalg.cholesky_p.bind(x),  # above the diagonal as it was
    "lu": lambda how, x: lax.linalg.lu(x),
    "qr": lambda how, x: lax.linalg.qr(x, full_matrices=how["full_matrices"]),
    "triangular_solve": _solve,
    "householder_product": lambda how, a, taus: lax.linalg.householder_product(a, taus),
    "tridiagonal_solve": lambda how, *x: lax.linalg.tridiagonal_solve(*x),
    "lu_pivots_to_permutation": _permutation,
}


STRUCTURE: dict[str, Callable[[Any, Kids, tuple[int, ...]], Any]] = {
    "one": lambda params, kids, shape: np.ones(()),
    "literal": _literal,
    "key": lambda params, kids, shape: structured(float(params[0]) * kids[0]),
    "iota": lambda params, kids, shape: np.arange(shape[0]),
    "sum": _sum,
    "product": _product,
    "bcast": _bcast,
    "reshape": lambda params, kids, shape: kids[0].reshape(shape),
    "transpose": lambda params, kids, shape: kids[0].transpose(params),
    "reduce_sum": _reduced(np.sum),
    "reduce_prod": _reduced(np.prod),
    "reduce_max": _reduced(lambda x, axis: np.max(x, axis=axis, initial=-np.inf)),
    "reduce_min": _reduced(lambda x, axis: np.min(x, axis=axis, initial=np.inf)),
    "reduce_and": _by_bits(np.bitwise_and),
    "reduce_or": _by_bits(np.bitwise_or),
    "reduce_xor": _by_bits(np.bitwise_xor),
    "argmax": lambda params, kids, shape: np.argmax(kids[0], axis=params[0]),
    "argmin": lambda params, kids, shape: np.argmin(kids[0], axis=params[0]),
    "dot": _dot,
    "conv": _conv,
    "slice": _slice,
    "rev": lambda params, kids, shape: np.flip(kids[0], params),
    "pad": _pad,
    "concatenate": lambda params, kids, shape: np.concatenate(kids, axis=params),
    "dynamic_slice": _dynamic_slice,
    "update": _update,
    "device": lambda params, kids, shape: np.take(kids[0], params[1], axis=params[0]),
    "permute": _permute,
    "fft": _fft,
    "cumsum": _running(np.cumsum),
    "cumprod": _running(np.cumprod),
    "cummax": _running(np.maximum.accumulate),
    "cummin": _running(np.minimum.accumulate),
    "cumlogsumexp": _running(_log_sum_exp),
    "sort": _sort,
    "top_k": _top_k,
    "approx_top_k": _top_k,
    "gather": _gather,
    "rows": _rows,
    "add_rows": _add_rows,
    "scatter": _scatter,
    "scatter_add": _scatter_add,
    **{name: _window(name) for name in WINDOWS},
    "select_and_scatter_add": _backward_window,
    **{name: _matrices(f) for name, f in MATRICES.items()},
}
