"""FLOPs of one operation, by its primitive.

Only floating-point results count: an integer compare or an index computation is no FLOP. A
transcendental function counts as one. What moves data without computing counts as none. What is in
no table is `None`: not known, and the report says so.
"""

from __future__ import annotations

import math

import jax.numpy as jnp

from .._program import Leaf, Lit, Var

MOVES = frozenset(
    """
    broadcast_in_dim reshape transpose squeeze expand_dims slice dynamic_slice dynamic_update_slice
    concatenate pad gather scatter iota rev convert_element_type bitcast_convert_type copy_p
    select_n split tile optimization_barrier real imag complex conj is_finite
    eq ne lt le gt ge and or not xor sort top_k argmax argmin reduce_and reduce_or reduce_xor
    random_seed random_wrap random_unwrap random_bits random_split random_fold_in random_clone
    threefry2x32 rng_bit_generator rng_uniform create_token pure_callback io_callback debug_callback
    debug_print shift_left shift_right_logical shift_right_arithmetic population_count clz
    full_like
    """.split()
)
"""No floating-point arithmetic, or none worth counting."""

ELEMENTWISE = frozenset(
    """
    add sub mul div rem neg sign abs max min pow integer_pow exp exp2 expm1 log log1p sqrt rsqrt
    cbrt sin cos tan asin acos atan atan2 sinh cosh tanh asinh acosh atanh logistic erf erfc erf_inv
    lgamma digamma polygamma igamma igammac igamma_grad_a random_gamma_grad regularized_incomplete_beta
    bessel_i0e bessel_i1e floor ceil round clamp square nextafter add_any mul_add reduce_precision
    one_minus_square log_softmax zeta nan_to_num
    """.split()
)
"""One FLOP for each element of the result."""

REDUCTIONS = frozenset(
    """
    reduce_sum reduce_max reduce_min reduce_prod reduce cumsum cumprod cummax cummin cumlogsumexp
    reduce_window reduce_window_sum reduce_window_max reduce_window_min
    """.split()
)
"""One FLOP for each element of the operand."""

SCATTERS = frozenset({"scatter_add", "scatter-add", "scatter_mul", "scatter_min", "scatter_max"})
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
    count, n = _square(op)
    return count * n * _size(op.ins[1]) / max(1.0, count)


_LINEAR_ALGEBRA = {"cholesky": _cholesky, "lu": _lu, "triangular_solve": _triangular}
