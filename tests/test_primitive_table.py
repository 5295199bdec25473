"""The table of primitives: complete, true, and the only one.

Its rows are compared with JAX's own registry, its facts are attacked with numbers, and the source
of the package is searched for other lists of primitives.
"""

from __future__ import annotations

import ast
import contextlib
import importlib
import itertools
import pkgutil
import re
import sys
import warnings
from collections.abc import Callable, Iterator
from functools import partial
from pathlib import Path
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from jax import lax
from jax.ad_checkpoint import checkpoint_name

from shardwise._analysis.lift.leaves import DECLARED, KNOWN, runs_declared
from shardwise._program import Leaf, build, primitives, walk
from shardwise._program.primitives import TABLE, of

PACKAGE = Path(__file__).parents[1] / "shardwise"

# --- the table is complete

UNRELATED = ("pallas", "mosaic", "triton", "cudnn", "test", "tpu", "clusters", "cloud", "internal")
"""Modules of JAX that need other packages, or import themselves where they are needed."""


BESIDES = ("jax.experimental.multihost_utils",)
"""Modules outside `jax._src` that define primitives; what others import does not matter."""


ACCELERATORS = re.compile("mosaic|triton")
"""Modules of kernels for one accelerator, which anything else in the process may have imported."""


def registered() -> set[str]:
    """The names of the primitives that the modules of JAX define."""
    import jax._src
    from jax._src.core import Primitive

    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        for module in pkgutil.walk_packages(jax._src.__path__, "jax._src."):
            if not any(word in module.name for word in UNRELATED):
                with contextlib.suppress(ImportError):
                    importlib.import_module(module.name)
        for name in BESIDES:
            importlib.import_module(name)
    found = [
        value
        for name, module in list(sys.modules.items())
        if (name.startswith("jax._src") and not ACCELERATORS.search(name)) or name in BESIDES
        for value in list(vars(module).values())
    ]
    return {value.name for value in found if isinstance(value, Primitive)}


def test_every_primitive_of_jax_has_a_row():
    found = registered()
    assert len(found) > 250, "the registry was not found"
    missing = sorted(found - TABLE.keys())
    assert not missing, f"no row in shardwise/_program/primitives.py: {', '.join(missing)}"


ELSEWHERE = {
    *("in_range", "psum_scatter"),  # of the simulator's own
    *("call", "closed_call", "pbroadcast_done", "pbroadcast_start", "psum_start"),  # before 0.12
    *("unreduced_psum_start", "unreduced_reduce_scatter_start"),
    *("reduced_vary_cast_p", "vary_unreduced_cast_p"),
    *("reduced_vary_cast", "vary_unreduced_cast", "log2", "one_minus_square"),  # since 0.12
    *("pbroadcast_dynamic", "polynomial", "unreduced_pmax", "unreduced_pmin", "xla_metadata_call"),
}
"""Rows of primitives that not every supported version of JAX has."""


def test_every_row_is_of_a_primitive():
    """A misspelt row would leave a primitive without its facts."""
    known = primitives.names(lambda p: p.acts != "opaque")
    assert known - registered() <= ELSEWHERE


def test_every_row_stands_once():
    names = [row.name for row in primitives._ROWS]
    assert sorted(names) == sorted(set(names))


# --- the table is true: samples of primitives, and what is claimed of them

F = np.array([[0.5, -1.25, 2.0, 0.75], [3.5, 0.25, -0.5, 1.5]])
G = np.array([[1.5, 0.5, -2.25, 3.0], [-0.75, 1.25, 0.5, -4.0]])
UNIT = np.array([[0.5, -0.25, 0.75, 0.1], [-0.9, 0.3, -0.6, 0.2]])
ABOVE = np.abs(F) + 1.0
I = np.array([[5, -7, 12, 3], [-100, 64, 9, -2]])
J = np.array([[3, 4, -5, 11], [7, -64, 2, 6]])
B, C = I > 3, J > 3
Z, W = F + 1j * G, G - 1j * ABOVE

Sample = tuple[Callable[..., Any], tuple[np.ndarray, ...]]
NAMED = {"and": "bitwise_and", "or": "bitwise_or", "xor": "bitwise_xor", "not": "bitwise_not"}


def words(text: str) -> list[str]:
    """Return the words of a text."""
    return text.split()


def _lax(name: str) -> Callable[..., Any]:
    return getattr(lax, NAMED.get(name, name))


def _bound(name: str) -> Callable[..., Any]:
    from jax._src.lax import lax as own

    return getattr(own, f"{name}_p").bind


def _samples() -> Iterator[tuple[str, Sample]]:
    for name in words("abs neg sign square exp exp2 expm1 logistic sin cos tan atan sinh cosh"):
        yield name, (_lax(name), (F,))
    for name in words("tanh asinh erf erfc floor ceil round cbrt is_finite bessel_i0e"):
        yield name, (_lax(name), (F,))
    for name in words("log log1p sqrt rsqrt acosh lgamma digamma log2 one_minus_square"):
        if hasattr(lax, name) and f"{name}_p" in dir(lax):
            yield name, (_lax(name), (ABOVE,))
    for name in words("asin acos atanh erf_inv bessel_i1e"):
        yield name, (_lax(name), (UNIT,))
    for name in words("add sub mul div rem max min atan2 nextafter"):
        yield name, (_lax(name), (F, G))
    for name in words("eq ne lt le gt ge"):
        yield name, (_lax(name), (F, np.where(F > 1, F, G)))
    for name in ("eq_to", "lt_to", "le_to"):
        yield name, (_bound(name), (F, np.where(F > 1, F, G)))
    for name in ("igamma", "igammac", "zeta", "polygamma"):
        yield name, (_lax(name), (ABOVE.round() + 1, np.abs(G) + 1))
    yield "igamma_grad_a", (lax.igamma_grad_a, (ABOVE, np.abs(G)))
    beta = (ABOVE, np.abs(G), np.abs(UNIT))
    yield "regularized_incomplete_beta", (lax.betainc, beta)
    for name in words("and or xor shift_left shift_right_logical shift_right_arithmetic mulhi"):
        if hasattr(lax, NAMED.get(name, name)):
            yield name, (_lax(name), (I, np.abs(J) % 7))
    for name in words("not population_count clz"):
        yield name, (_lax(name), (I,))
    for name in words("real imag conj"):
        yield name, (_lax(name), (Z,))
    yield "complex", (lax.complex, (F, G))
    yield "pow", (lax.pow, (ABOVE, G))
    yield "integer_pow", (lambda x: lax.integer_pow(x, 3), (F,))
    yield "clamp", (lax.clamp, (np.minimum(F, G), UNIT, np.maximum(F, G)))
    yield "select_n", (lax.select_n, (B, F, G))
    yield "convert_element_type", (lambda x: lax.convert_element_type(x, jnp.float32), (F,))
    yield "reduce_precision", (lambda x: lax.reduce_precision(x, 5, 4), (F,))
    yield "add_any", (_bound_add_any, (F, G))
    yield "threefry2x32", (_threefry, (np.abs(I).astype(np.uint32), np.abs(J).astype(np.uint32)))
    yield from _structured()


def _bound_add_any(x: Any, y: Any) -> Any:
    from jax._src.ad_util import add_any_p

    return add_any_p.bind(x, y)


def _threefry(x: Any, y: Any) -> Any:
    from jax.extend.random import threefry2x32_p

    return threefry2x32_p.bind(x, x, y, y)


def _structured() -> Iterator[tuple[str, Sample]]:
    yield "reshape", (lambda x: lax.reshape(x, (4, 2)), (F,))
    yield "squeeze", (lambda x: lax.squeeze(x, (0,)), (F[None],))
    yield "transpose", (lambda x: lax.transpose(x, (1, 0)), (F,))
    yield "rev", (lambda x: lax.rev(x, (1,)), (F,))
    yield "slice", (lambda x: lax.slice(x, (0, 1), (2, 4)), (F,))
    yield "split", (lambda x: lax.split(x, (1, 3), axis=1), (F,))
    yield "dynamic_slice", (lambda x: lax.dynamic_slice(x, (0, 1), (2, 2)), (F,))
    yield "gather", (lambda x: jnp.take(x, jnp.array([3, 0, 3]), axis=1), (F,))
    yield "broadcast_in_dim", (lambda x: lax.broadcast_in_dim(x, (3, 2, 4), (1, 2)), (F,))
    yield "concatenate", (lambda x, y: lax.concatenate([x, y], 1), (F, G))
    yield "pad", (lambda x, y: lax.pad(x, y[0, 0], [(1, 0, 0), (0, 2, 1)]), (F, G))
    update = (F, G[:, :2])
    yield "dynamic_update_slice", (lambda x, y: lax.dynamic_update_slice(x, y, (0, 1)), update)
    for name in words("reduce_sum reduce_prod reduce_max reduce_min"):
        yield name, (partial(_along, name, (1,)), (F,))
    for name in words("reduce_and reduce_or reduce_xor"):
        yield name, (partial(_along, name, (1,)), (B,))
    for name in words("cumsum cumprod cummax cummin cumlogsumexp"):
        yield name, (partial(_along, name, 1), (F,))
    yield "argmax", (lambda x: lax.argmax(x, 1, jnp.int32), (F,))
    yield "argmin", (lambda x: lax.argmin(x, 1, jnp.int32), (F,))
    yield "sort", (lambda x: lax.sort(x, dimension=1), (F,))
    yield "top_k", (lambda x: lax.top_k(x, 2), (F,))
    yield "fft", (lambda x: lax.fft(x, "FFT", (4,)), (Z,))
    yield "reduce_window_sum", (lambda x: _window(lax.add, 0.0, x), (F,))
    yield "reduce_window_max", (lambda x: _window(lax.max, -np.inf, x), (F,))
    yield "reduce_window_min", (lambda x: _window(lax.min, np.inf, x), (F,))
    yield "dot_general", (lambda x, y: lax.dot_general(x, y, (((1,), (1,)), ((), ()))), (F, G))
    yield "conv_general_dilated", (_convolve, (F[None], G[None, :, :2]))
    for name in words("add mul min max"):
        yield f"scatter-{name}", (partial(_at, name), (F, G))
    yield "scatter-sub", (partial(_at, "subtract"), (F, G))
    yield "optimization_barrier", (lax.optimization_barrier, (F,))
    yield "stop_gradient", (lax.stop_gradient, (F,))
    yield "copy", (jnp.copy, (F,))
    yield "name", (lambda x: checkpoint_name(x, "kept"), (F,))


def _along(name: str, axis: Any, x: Any) -> Any:
    return _lax(name)(x, axis)


def _at(name: str, x: Any, y: Any) -> Any:
    return getattr(jnp.asarray(x).at[jnp.array([1, 1])], name)(y)


def _window(f: Callable[..., Any], start: float, x: Any) -> Any:
    return lax.reduce_window(x, start, f, (1, 2), (1, 1), "VALID")


def _convolve(x: Any, k: Any) -> Any:
    return lax.conv_general_dilated(x, k, (1,), "VALID", dimension_numbers=("NCH", "OIH", "NCH"))


@pytest.fixture(scope="module", autouse=True)
def _wide() -> Iterator[None]:
    with jax.enable_x64(True):
        yield


SAMPLES: dict[str, Sample] = {}
with jax.enable_x64(True):
    SAMPLES.update(_samples())
POINTWISE = sorted(name for name in SAMPLES if of(name).pointwise)


def results(name: str, *args: Any) -> list[np.ndarray]:
    """What a sample gives for these arguments, as a list of arrays."""
    return [np.asarray(out) for out in jax.tree.leaves(SAMPLES[name][0](*args))]


def where(claim: Callable[[Any], object]) -> list[str]:
    return sorted(name for name in SAMPLES if claim(of(name)))


@pytest.mark.parametrize("name", SAMPLES)
def test_a_sample_applies_its_primitive(name):
    f, args = SAMPLES[name]
    if name == "stop_gradient":
        return  # JAX drops it where nothing is differentiated
    assert name in {eqn.primitive.name for eqn in _eqns(jax.make_jaxpr(f)(*args))}


def _eqns(jaxpr: Any) -> Iterator[Any]:
    for eqn in jaxpr.eqns:
        yield eqn
        for value in eqn.params.values():
            if hasattr(value, "eqns"):
                yield from _eqns(value)


def test_every_pointwise_primitive_has_a_sample():
    here = registered() & primitives.POINTWISE
    assert sorted(here - SAMPLES.keys()) == []


@pytest.mark.parametrize("name", POINTWISE)
def test_pointwise(name):
    args = SAMPLES[name][1]
    before = results(name, *args)
    assert all(out.shape == args[-1].shape for out in before)
    for place in np.ndindex(args[-1].shape):
        changed = [x.copy() for x in args]
        for x in changed:
            x[place] = x[place[0] - 1, place[1] - 1]
        for old, new in zip(before, results(name, *changed), strict=True):
            other = np.ones(old.shape, bool)
            other[place] = False
            np.testing.assert_array_equal(old[other], new[other])


def test_what_is_not_pointwise_is_not():
    """Of an array, some element of the result depends on another one of the operand."""
    for name in ("cumsum", "rev", "sort", "fft"):
        args = SAMPLES[name][1]
        changed = args[0].copy()
        changed[0, 1] += 1
        before, after = results(name, args[0])[0], results(name, changed)[0]
        different = np.argwhere(before != after)
        assert any(tuple(place) != (0, 1) for place in different)


def _adds_up(name: str, at: tuple[int, ...]) -> bool:
    """Whether f(a + b) = f(a) + f(b) in the operands `at`, the others fixed."""
    args = SAMPLES[name][1]
    other = [np.roll(x, 1, -1) * 2 if i in at else x for i, x in enumerate(args)]
    both = [x + y if i in at else x for i, (x, y) in enumerate(zip(args, other, strict=True))]
    if not all(np.issubdtype(args[i].dtype, np.inexact) for i in at):
        return False
    with np.errstate(all="ignore"):
        rows = zip(results(name, *args), results(name, *other), results(name, *both), strict=True)
        return all(np.allclose(a + b, c, rtol=1e-9, atol=1e-9) for a, b, c in rows)


GROUPS = {
    "all": lambda n: [tuple(range(n))],
    "each": lambda n: [(i,) for i in range(n)],
    "first": lambda n: [(0,)],
    "rest": lambda n: [tuple(range(1, n))],
}


@pytest.mark.parametrize("name", where(lambda p: p.linear))
def test_linear(name):
    count = len(SAMPLES[name][1])
    assert all(_adds_up(name, at) for at in GROUPS[of(name).linear](count))


@pytest.mark.parametrize("name", where(lambda p: not p.linear and p.pointwise))
def test_what_is_linear_is_called_so(name):
    row = of(name)
    if not (row.truth or row.fixed_dtype or name == "convert_element_type"):
        assert not _adds_up(name, tuple(range(len(SAMPLES[name][1]))))


@pytest.mark.parametrize("name", where(lambda p: p.selects))
def test_selects(name):
    args = SAMPLES[name][1]
    given = {0.0, *(x for arg in args for x in arg.ravel().tolist())}
    assert {x for out in results(name, *args) for x in out.ravel().tolist()} <= given


@pytest.mark.parametrize("name", where(lambda p: p.pointwise))
def test_commutes_and_idempotent(name):
    args, row = SAMPLES[name][1], of(name)
    if len(args) != 2 or args[0].dtype != args[1].dtype:
        assert not row.commutes
        assert not row.idempotent
        return
    both = [*results(name, *args), *results(name, *args[::-1])]
    assert np.array_equal(both[0], both[-1]) == row.commutes
    assert np.array_equal(results(name, args[0], args[0])[0], args[0]) == row.idempotent


@pytest.mark.parametrize("name", where(lambda p: p.pointwise))
def test_truth_values(name):
    assert all((out.dtype == bool) == of(name).truth for out in results(name, *SAMPLES[name][1]))


@pytest.mark.parametrize("name", where(lambda p: p.mirror))
def test_mirror(name):
    a, b = SAMPLES[name][1]
    assert np.array_equal(results(name, a, b)[0], results(of(name).mirror, b, a)[0])


@pytest.mark.parametrize("name", where(lambda p: p.pointwise))
def test_rounds(name):
    args = SAMPLES[name][1]
    whole = all((out == np.round(out.real)).all() for out in results(name, *args))
    if args[0].dtype == np.float64 and len(args) == 1 and name != "sign" and not of(name).truth:
        assert whole == of(name).rounds


ENDS = np.array([-128, -127, -1, 0, 1, 2, 126, 127])


@pytest.mark.parametrize("name", ["max", "min", "clamp", "select_n", "sign", "rem", "neg", "abs"])
def test_bounded(name):
    """What is bounded or selects gives the same in int8 as in int64; others do not."""
    f, args = SAMPLES[name]
    rows = [np.array(row) for row in zip(*itertools.product(ENDS, ENDS, ENDS), strict=True)]
    rows = [rows[0] % 2 == 0, *rows[1:]] if name == "select_n" else rows[: len(args)]
    if name == "rem":
        rows = [row[rows[1] != 0] for row in rows]
    narrow = f(*(x if x.dtype == bool else x.astype(np.int8) for x in rows))
    wide = f(*(x if x.dtype == bool else x.astype(np.int64) for x in rows))
    row = of(name)
    assert np.array_equal(np.asarray(narrow, np.int64), wide) == (row.bounded or row.selects)


HALF = np.arange(1 << 16, dtype=np.uint16).view(np.float16)
HALF = HALF[np.isfinite(HALF)].astype(np.float64)


@pytest.mark.parametrize("name", [n for n in POINTWISE if len(SAMPLES[n][1]) == 1])
def test_growth(name):
    """What does not grow leads from no number of float16 to a finite one beyond its range."""
    args = SAMPLES[name][1]
    if args[0].dtype != np.float64 or name == "convert_element_type":
        return
    with np.errstate(all="ignore"):
        made = np.abs(results(name, HALF)[0].astype(np.float64))
    assert (made[np.isfinite(made)].max() > 65504) == (of(name).growth > 0)


UFUNCS = {
    "sum": np.add,
    "prod": np.multiply,
    "max": np.maximum,
    "min": np.minimum,
    "and": np.bitwise_and,
    "or": np.bitwise_or,
    "xor": np.bitwise_xor,
}


@pytest.mark.parametrize("name", where(lambda p: p.acts in ("reduces", "scans") and p.combines))
def test_combines(name):
    (x,) = SAMPLES[name][1]
    ufunc, row = UFUNCS[of(name).combines], of(name)
    wanted = ufunc.reduce(x, 1) if row.acts == "reduces" else ufunc.accumulate(x, 1)
    np.testing.assert_allclose(results(name, x)[0], wanted, rtol=1e-12)


@pytest.mark.parametrize("name", where(lambda p: p.pointwise and p.combines))
def test_combines_two(name):
    a, b = SAMPLES[name][1]
    own = np.subtract if name == "sub" else UFUNCS[of(name).combines]
    np.testing.assert_array_equal(results(name, a, b)[0], own(a, b))


@pytest.mark.parametrize("name", where(lambda p: p.acts == "moves"))
def test_moves(name):
    args = SAMPLES[name][1]
    given = sorted(x for arg in args for x in arg.ravel().tolist())
    made = sorted(x for out in results(name, *args) for x in out.ravel().tolist())
    match of(name).moves:
        case "reorder" | "join":
            assert made == given
        case "part" | "lookup" | "update":
            assert set(made) <= set(given)
        case "repeat":
            assert set(made) == set(given)
            assert len(made) > len(given)
        case "pad":
            assert set(args[0].ravel().tolist()) <= set(made) <= set(given)


@pytest.mark.parametrize("name", where(lambda p: p.identity or p.view))
def test_identity_and_views(name):
    args = SAMPLES[name][1]
    assert np.array_equal(np.ravel(results(name, *args)[0]), np.ravel(args[0]))


@pytest.mark.parametrize("name", where(lambda p: True))
def test_what_is_known_to_take_float64_does(name):
    f, args = SAMPLES[name]
    narrow = [
        x.astype({"f": np.float32, "c": np.complex64}.get(x.dtype.kind, x.dtype)) for x in args
    ]
    with jax.enable_x64(False):
        body = build(jax.make_jaxpr(f)(*narrow))
    own = [op for op in walk(body.ops) if isinstance(op, Leaf) and op.name == name]
    for op in own:
        assert name in DECLARED or name in KNOWN or of(name).series or not runs_declared(op)


@pytest.mark.parametrize(
    ("name", "f"),
    [
        ("jit", jax.jit(jnp.sin)),
        ("remat2", jax.checkpoint(jnp.sin)),
        ("custom_jvp_call", jax.nn.relu),
    ],
)
def test_calls(name, f):
    found = [eqn for eqn in _eqns(jax.make_jaxpr(f)(F)) if eqn.primitive.name == name]
    assert found
    assert hasattr(found[0].params[of(name).body], "eqns")


# --- the table is the only one

FEW = 3
ALLOWED = {
    "_meaning/elementwise.py:SIGNS": "the question of a term that each comparison becomes",
    "_engine/misuse/translate.py:COLLECTIVES": "the sentence for an error in each",
    "_analysis/explain/why.py:ALONG": "opcodes of HLO, some of which are named like a primitive",
    "_analysis/explain/why.py:MOVES": "opcodes of HLO, some of which are named like a primitive",
}
"""Tables that are not of functions, but lead from a primitive to what a reader has for it."""

OTHER_WORDS = {
    "_analysis/compiler": "opcodes of HLO",
    "_analysis/fixes": "functions of jax.lax, as people write them",
    "_practice": "opcodes of HLO",
}
"""Packages in which the same words name something else."""


def lists_of_primitives(package: Path) -> list[str]:
    """The collections of primitives outside the table, but for tables of functions."""
    found = []
    for file in sorted(package.rglob("*.py")):
        place = file.relative_to(package)
        home = place.as_posix()
        if home.startswith(tuple(OTHER_WORDS)) or place.name in (
            "primitives.py",
            "primitive_row.py",
        ):
            continue
        for node in ast.walk(ast.parse(file.read_text(encoding="utf-8"))):
            for target, value in _collections(node):
                if len(set(_strings(value)) & TABLE.keys() - {"name", "empty"}) >= FEW:
                    found.append(f"{place.as_posix()}:{target or node.lineno}")
    return sorted(set(found))


def _collections(node: ast.AST) -> Iterator[tuple[str, ast.expr]]:
    """The collections of a statement, with the name they are given."""
    if not isinstance(node, ast.stmt):
        return
    target = ""
    if isinstance(node, ast.Assign | ast.AnnAssign):
        first = node.targets[0] if isinstance(node, ast.Assign) else node.target
        target = first.id if isinstance(first, ast.Name) else ""
    for child in ast.iter_child_nodes(node):
        if isinstance(child, ast.expr):
            yield from ((target, one) for one in ast.walk(child) if isinstance(one, ast.expr))


def _strings(node: ast.expr) -> Iterator[str]:
    if isinstance(node, ast.Tuple | ast.List | ast.Set):
        for one in node.elts:
            one = one.value if isinstance(one, ast.Starred) else one
            yield from [one.value] if isinstance(one, ast.Constant) else _strings(one)
    elif isinstance(node, ast.Dict) and not all(map(_is_function, node.values)):
        yield from (k.value for k in node.keys if isinstance(k, ast.Constant))
    elif isinstance(node, ast.Constant) and isinstance(node.value, str):
        words = node.value.split()
        yield from words if TABLE.keys() >= set(words) else ()


def _is_function(node: ast.expr) -> bool:
    """Whether the value of a table may be a function: what a primitive leads to, not what it is."""
    if isinstance(node, ast.Tuple):
        return any(map(_is_function, node.elts))
    return isinstance(node, ast.Name | ast.Attribute | ast.Lambda | ast.Call)


def test_no_other_module_lists_primitives():
    assert lists_of_primitives(PACKAGE) == sorted(ALLOWED)


@pytest.mark.parametrize(
    ("text", "found"),
    [
        ("LINEAR = {'add', 'sub', 'neg'}", True),
        ("LINEAR = frozenset(('add', 'sub', 'neg'))", True),
        ("LINEAR = 'add sub neg'.split()", True),
        ("LINEAR = {*('add', 'sub'), *('neg', 'mul')}", True),
        ("def f(name):\n    return name in ('add', 'sub', 'neg')", True),
        ("WORDS = {'add': 'adds', 'sub': 'subtracts', 'neg': 'turns'}", True),
        ("RULES = {'add': np.add, 'sub': np.subtract, 'neg': lambda x: -x}", False),
        ("LINEAR = {'add', 'sub'}", False),
        ("@rule('add', 'sub', 'neg')\ndef sums(): ...", False),
    ],
)
def test_another_list_is_found(tmp_path, text, found):
    (tmp_path / "reader.py").write_text(text)
    assert bool(lists_of_primitives(tmp_path)) == found
