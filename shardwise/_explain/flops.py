"""FLOPs of one operation, by its primitive.

Only floating-point results count: an integer compare or an index computation is no FLOP. A
transcendental function counts as one. What moves data without computing counts as none. What is in
no table is `None`: not known, and the report says so.
"""

from __future__ import annotations

import math

import jax.numpy as jnp

from .._program import Leaf, Lit, Var


def _words(text: str) -> frozenset[str]:
    return frozenset(text.split())


MOVES = _words("""
    broadcast_in_dim reshape transpose squeeze slice dynamic_slice dynamic_update_slice concatenate
    pad gather scatter iota rev convert_element_type bitcast_convert_type select_n split stack
    unstack tile optimization_barrier name real imag complex conj is_finite eq ne lt le gt ge and or
    not xor eq_to le_to lt_to sort top_k approx_top_k argmax argmin reduce_and reduce_or reduce_xor
    shift_left shift_right_logical shift_right_arithmetic population_count clz mulhi
    random_seed random_wrap random_unwrap random_bits random_split random_fold_in random_clone
    threefry2x32 iota_2x32_shape rng_bit_generator rng_uniform create_token after_all
    pure_callback io_callback debug_callback debug_print lu_pivots_to_permutation platform_index
""")
"""No floating-point arithmetic, or none worth counting."""

ELEMENTWISE = _words("""
    add sub mul div rem neg sign abs max min pow integer_pow exp exp2 expm1 log log2 log1p sqrt
    rsqrt cbrt sin cos tan asin acos atan atan2 sinh cosh tanh asinh acosh atanh logistic erf erfc
    erf_inv lgamma digamma polygamma igamma igammac igamma_grad_a random_gamma zeta
    regularized_incomplete_beta bessel_i0e bessel_i1e floor ceil round clamp square nextafter
    add_any reduce_precision one_minus_square polynomial
""")
"""One FLOP for each element of the result."""

REDUCTIONS = _words("""
    reduce_sum reduce_max reduce_min reduce_prod reduce cumsum cumprod cummax cummin cumlogsumexp
    reduce_window reduce_window_sum reduce_window_max reduce_window_min
    select_and_scatter_add select_and_gather_add
""")
"""One FLOP for each element of the operand."""

SCATTERS = _words("scatter-add scatter-sub scatter-mul scatter-min scatter-max")
"""One FLOP for each element that is put in."""


def flops_of(op: Leaf) -> tuple[str, float] | None:
    """The kind of work and the FLOPs of one occurrence; None where that is not known."""
    if op.name == "dot_general":
        return "dot", _dot(op)
    if op.name == "conv_general_dilated":
        return "convolution", _convolution(op)
    if op.name in MOVES:
        return "elementwise", 0.0
    if op.name in ELEMENTWISE:
        return "elementwise", sum(_size(out) for out in op.outs if _is_float(out))
    if op.name in REDUCTIONS:
        return "reduction", sum(_size(out) for out in op.ins[:1] if _is_float(op.outs[0]))
    if op.name in SCATTERS:
        return "elementwise", _size(op.ins[2]) if _is_float(op.outs[0]) else 0.0
    if op.name in _LINEAR_ALGEBRA:
        return "linear algebra", _LINEAR_ALGEBRA[op.name](op)
    return None


def _is_float(atom: Var | Lit) -> bool:
    return isinstance(atom, Lit) or jnp.issubdtype(atom.dtype, jnp.inexact)


def _size(atom: Var | Lit) -> float:
    return float(math.prod(shape_of(atom)))


def shape_of(atom: Var | Lit) -> tuple[int, ...]:
    """The local shape of an operand."""
    return atom.shape if isinstance(atom, Var) else tuple(jnp.shape(atom.value))


def _dot(op: Leaf) -> float:
    """A multiplication and an addition for each term of each element."""
    (contracted, _), _ = op.params["dimension_numbers"]
    terms = math.prod(shape_of(op.ins[0])[d] for d in contracted)
    return 2.0 * _size(op.outs[0]) * terms


def _convolution(op: Leaf) -> float:
    """Each element of the result sees the whole kernel, for the inputs of its own group."""
    kernel = shape_of(op.ins[1])
    out_features = kernel[op.params["dimension_numbers"].rhs_spec[0]]
    return 2.0 * _size(op.outs[0]) * math.prod(kernel) / max(1, out_features)


def _square(op: Leaf) -> tuple[float, float]:
    """How many matrices, and how many rows each has."""
    *batch, rows, _ = shape_of(op.ins[0])
    return float(math.prod(batch)), float(rows)


def _cholesky(op: Leaf) -> float:
    count, n = _square(op)
    return count * n**3 / 3


def _lu(op: Leaf) -> float:
    count, n = _square(op)
    return count * 2 * n**3 / 3


def _triangular(op: Leaf) -> float:
    _, n = _square(op)
    return n * _size(op.ins[1])


_LINEAR_ALGEBRA = {"cholesky": _cholesky, "lu": _lu, "triangular_solve": _triangular}
