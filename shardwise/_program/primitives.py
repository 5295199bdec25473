"""The table of primitives: one row for each primitive of JAX, with facts about it.

Rows contain facts (pointwise, linear, random, ...), not conclusions: the engine decides what is
cheap, `prove` decides which operations commute with a sum. `of` returns the row of an operation,
`names` the primitives with a property. No other module lists primitives by property. Tests compare
the table with JAX's registry and verify it numerically.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator

from .primitive_row import Acts, CollectiveForm
from .primitive_row import Primitive as P

_GATHER = CollectiveForm("all_gather", {"dimension": "all_gather_dimension", "tiled": "tiled"})
_SCATTER = CollectiveForm("psum_scatter", {"dimension": "scatter_dimension", "tiled": "tiled"})


def _each(acts: Acts, primitives: str, random: bool = False) -> Iterator[P]:
    """Yield rows of primitives with the same facts."""
    return (P(name, acts, random=random) for name in primitives.split())


_ROWS = (
    # --- arithmetic, element by element
    P("add", "pointwise", linear="all", combines="sum", commutes=True, growth=1),
    P("add_any", "pointwise", linear="all", combines="sum", commutes=True, growth=1),
    P("sub", "pointwise", linear="all", combines="sum", growth=1),
    P("mul", "pointwise", linear="each", combines="prod", commutes=True, growth=1),
    P("div", "pointwise", linear="first", growth=1),
    P("rem", "pointwise", bounded=True),
    P("neg", "pointwise", linear="all"),
    P("abs", "pointwise"),
    P("sign", "pointwise", bounded=True),
    P("square", "pointwise", growth=1),
    P("one_minus_square", "pointwise", growth=1),
    P("integer_pow", "pointwise", growth=2),
    P("pow", "pointwise", growth=2),
    P("max", "pointwise", combines="max", selects=True, commutes=True, idempotent=True),
    P("min", "pointwise", combines="min", selects=True, commutes=True, idempotent=True),
    P("clamp", "pointwise", selects=True),
    P("select_n", "pointwise", linear="rest", selects=True, work="none"),
    P("floor", "pointwise", rounds=True),
    P("ceil", "pointwise", rounds=True),
    P("round", "pointwise", rounds=True),
    P("convert_element_type", "pointwise", growth=1, work="none"),
    P("reduce_precision", "pointwise", fixed_dtype=True),
    P("nextafter", "pointwise", idempotent=True, bits=True, fixed_dtype=True),
    P("mulhi", "pointwise", commutes=True, bits=True),
    P("real", "pointwise", linear="all", work="none"),
    P("imag", "pointwise", linear="all", work="none"),
    P("conj", "pointwise", linear="all", work="none"),
    P("complex", "pointwise", linear="all", work="none"),
    # --- functions, element by element
    P("exp", "pointwise", growth=2),
    P("exp2", "pointwise", growth=2),
    P("expm1", "pointwise", growth=2),
    P("log", "pointwise", pole=True),
    P("log2", "pointwise", pole=True),
    P("log1p", "pointwise", pole=True),
    P("sqrt", "pointwise"),
    P("rsqrt", "pointwise"),
    P("cbrt", "pointwise"),
    P("logistic", "pointwise"),
    P("sin", "pointwise"),
    P("cos", "pointwise"),
    P("tan", "pointwise", growth=1),
    P("asin", "pointwise"),
    P("acos", "pointwise"),
    P("atan", "pointwise"),
    P("atan2", "pointwise"),
    P("sinh", "pointwise", growth=2),
    P("cosh", "pointwise", growth=2),
    P("tanh", "pointwise"),
    P("asinh", "pointwise"),
    P("acosh", "pointwise"),
    P("atanh", "pointwise"),
    P("erf", "pointwise"),
    P("erfc", "pointwise"),
    P("erf_inv", "pointwise"),
    P("lgamma", "pointwise", growth=2, series=True),
    P("digamma", "pointwise", growth=1, series=True),
    P("polygamma", "pointwise", growth=2, series=True),
    P("zeta", "pointwise", growth=2, series=True),
    P("igamma", "pointwise", series=True),
    P("igammac", "pointwise", series=True),
    P("igamma_grad_a", "pointwise", growth=1, series=True),
    P("regularized_incomplete_beta", "pointwise", series=True),
    P("bessel_i0e", "pointwise", series=True),
    P("bessel_i1e", "pointwise", series=True),
    # --- truth values and bits, element by element
    P("eq", "pointwise", truth=True, commutes=True, mirror="eq"),
    P("ne", "pointwise", truth=True, commutes=True, mirror="ne"),
    P("lt", "pointwise", truth=True, mirror="gt"),
    P("le", "pointwise", truth=True, mirror="ge"),
    P("gt", "pointwise", truth=True, mirror="lt"),
    P("ge", "pointwise", truth=True, mirror="le"),
    P("eq_to", "pointwise", truth=True, commutes=True),
    P("lt_to", "pointwise", truth=True),
    P("le_to", "pointwise", truth=True),
    P("is_finite", "pointwise", truth=True),
    P("and", "pointwise", combines="and", commutes=True, idempotent=True, bits=True),
    P("or", "pointwise", combines="or", commutes=True, idempotent=True, bits=True),
    P("xor", "pointwise", combines="xor", commutes=True, bits=True),
    P("not", "pointwise", bits=True),
    P("shift_left", "pointwise", growth=1, bits=True),
    P("shift_right_logical", "pointwise", bits=True),
    P("shift_right_arithmetic", "pointwise", bits=True),
    P("population_count", "pointwise", bits=True),
    P("clz", "pointwise", bits=True),
    # --- elements moved
    P("reshape", "moves", "reorder", "all", selects=True, view=True),
    P("squeeze", "moves", "reorder", "all", selects=True, view=True),
    P("transpose", "moves", "reorder", "all", selects=True),
    P("rev", "moves", "reorder", "all", selects=True),
    P("slice", "moves", "part", "all", selects=True),
    P("split", "moves", "part", "all", selects=True),
    P("unstack", "moves", "part", "all", selects=True),
    P("dynamic_slice", "moves", "lookup", "first", selects=True),
    P("gather", "moves", "lookup", "first", selects=True),
    P("broadcast_in_dim", "moves", "repeat", "all", selects=True),
    P("broadcast_to", "moves", "repeat", "all", selects=True),
    P("tile", "moves", "repeat", "all", selects=True),
    P("concatenate", "moves", "join", "all", selects=True),
    P("stack", "moves", "join", "all", selects=True),
    P("pad", "moves", "pad", "all", selects=True),
    P("dynamic_update_slice", "moves", "update", selects=True),
    P("bitcast_convert_type", "moves", bits=True, fixed_dtype=True, view=True),
    P("iota", "makes"),
    P("empty", "makes"),
    P("empty2", "makes"),
    P("zeros_like", "makes"),
    # --- reductions along dimensions
    P("reduce_sum", "reduces", "", "all", "sum", growth=2),
    P("reduce_prod", "reduces", combines="prod", growth=2, along="multiplies"),
    P("reduce_max", "reduces", combines="max", selects=True),
    P("reduce_min", "reduces", combines="min", selects=True),
    P("reduce_and", "reduces", combines="and"),
    P("reduce_or", "reduces", combines="or"),
    P("reduce_xor", "reduces", combines="xor"),
    P("reduce", "reduces", growth=1),
    P("cumsum", "scans", "", "all", "sum", growth=2, along="adds up"),
    P("cumprod", "scans", combines="prod", growth=2, along="multiplies"),
    P("cummax", "scans", combines="max", selects=True, along="takes the largest so far of"),
    P("cummin", "scans", combines="min", selects=True, along="takes the smallest so far of"),
    P("cumlogsumexp", "scans", growth=1, along="adds up"),
    P("reduce_window", "windows", growth=1),
    P("reduce_window_sum", "windows", "", "all", "sum", growth=1),
    P("reduce_window_max", "windows", combines="max"),
    P("reduce_window_min", "windows", combines="min"),
    P("select_and_scatter", "windows", growth=1),
    P("select_and_scatter_add", "windows", growth=1),
    P("select_and_gather_add", "windows"),
    P("scatter", "scatters", growth=1, work="none"),
    P("scatter-add", "scatters", combines="sum", growth=1),
    P("scatter-sub", "scatters", combines="sum", growth=1),
    P("scatter-mul", "scatters", combines="prod", growth=1),
    P("scatter-min", "scatters", combines="min", selects=True),
    P("scatter-max", "scatters", combines="max", selects=True),
    P("argmax", "searches", along="looks for the largest of"),
    P("argmin", "searches", along="looks for the smallest of"),
    P("sort", "searches", selects=True, along="sorts"),
    P("top_k", "searches", bounded=True, along="takes the largest of"),
    P("approx_top_k", "searches", fixed_dtype=True, along="takes the largest of"),
    P("lu_pivots_to_permutation", "searches"),
    # --- products and decompositions
    P("dot_general", "contracts", "", "each", "sum", growth=1),
    P("conv_general_dilated", "contracts", "", "each", "sum", growth=1),
    P("ragged_dot_general", "contracts", combines="sum", growth=1, unbatchable=True),
    P("scaled_dot", "contracts", combines="sum", growth=1, fixed_dtype=True),
    P("polynomial", "transforms", growth=2, work="result"),
    P("fft", "transforms", "", "all", growth=1),
    P("triangular_solve", "transforms", growth=1),
    P("cholesky", "transforms"),
    P("lu", "transforms"),
    *_each("transforms", """
        cholesky_update custom_linear_solve eig eigh geqp3 geqrf hessenberg householder_product
        ormqr qr schur svd symmetric_product tridiagonal tridiagonal_solve"""),
    # --- random numbers
    P("random_bits", "draws", random=True),
    P("random_split", "draws", random=True, keys=True),
    P("random_fold_in", "draws", random=True, keys=True),
    P("random_gamma", "draws", random=True, fixed_dtype=True, series=True, work="result"),
    P("random_seed", "draws", random=True, keys=True),
    P("random_clone", "draws"),
    P("random_wrap", "draws"),
    P("random_unwrap", "draws"),
    P("iota_2x32_shape", "draws"),
    P("rng_bit_generator", "draws", random=True, unbatchable=True),
    P("rng_uniform", "draws", random=True, fixed_dtype=True),
    P("threefry2x32", "pointwise", random=True, bits=True),
    *_each("draws", "philox2x32 philox4x32 threefry4x32", random=True),
    # --- programs within programs
    P("jit", "call", body="jaxpr"),
    P("closed_call", "call", body="call_jaxpr"),
    P("call", "call", body="call_jaxpr"),
    P("custom_jvp_call", "call", body="call_jaxpr"),
    P("custom_vjp_call", "call", body="call_jaxpr"),
    P("eval_jaxpr", "call", body="call_jaxpr"),
    P("remat2", "call", body="jaxpr"),
    P("linear_call", "call", body="callee"),
    P("custom_vmap_call", "call", body="call"),
    P("xla_metadata_call", "call", body="jaxpr"),
    P("composite", "call", body="jaxpr"),
    P("custom_partitioning", "call", body="call"),
    P("shard_map", "control"),
    P("scan", "control"),
    P("while", "control"),
    P("cond", "control"),
    P("platform_index", "effects"),
    # --- communication between devices
    P("psum", "collective", "", "all", "sum", growth=2, form=CollectiveForm("psum")),
    P("psum_invariant", "collective", "", "all", "sum", form=CollectiveForm("psum")),
    P("unreduced_psum", "collective", "", "all", "sum", form=CollectiveForm("psum")),
    P("pmax", "collective", combines="max", idempotent=True, form=CollectiveForm("pmax")),
    P("pmin", "collective", combines="min", idempotent=True, form=CollectiveForm("pmin")),
    P("all_gather", "collective", "join", "all", form=_GATHER),
    P("all_gather_invariant", "collective", "join", "all", form=_GATHER),
    P("all_gather_reduced", "collective", "join", "all", form=_GATHER),
    P("psum_scatter", "collective", "part", "all", "sum", growth=2, form=_SCATTER),
    P("reduce_scatter", "collective", "part", "all", "sum", form=_SCATTER),
    P("unreduced_reduce_scatter", "collective", "part", "all", "sum", form=_SCATTER),
    P("all_to_all", "collective", "reorder", "all",
      form=CollectiveForm("all_to_all", {"split": "split_axis", "concat": "concat_axis"})),
    P("ppermute", "collective", "reorder", "all", idempotent=True,
      form=CollectiveForm("ppermute", {"perm": "perm"})),
    P("pbroadcast", "collective", "repeat", "all", idempotent=True,
      form=CollectiveForm("pbroadcast", {"source": "source"})),
    P("ragged_all_to_all", "collective", "update",
      form=CollectiveForm("ragged_all_to_all", together=True)),
    P("axis_index", "makes"),
    *_each("collective", """
        all_gather_done all_gather_reduced_start all_gather_start all_to_all_done all_to_all_start
        pbroadcast_done pbroadcast_dynamic pbroadcast_start ppermute_done ppermute_start precv psend
        psum_done psum_invariant_start psum_start reduce_scatter_done reduce_scatter_start
        unreduced_pmax unreduced_pmin unreduced_psum_start unreduced_reduce_scatter_start"""),
    # --- type and placement of a value
    P("pvary", "types"),
    P("preduced", "types"),
    P("reduced_vary_cast", "types"),
    P("reduced_vary_cast_p", "types"),
    P("vary_unreduced_cast", "types"),
    P("vary_unreduced_cast_p", "types"),
    P("stop_gradient", "types"),
    P("name", "annotates", view=True),
    P("optimization_barrier", "annotates", view=True),
    P("layout_constraint", "annotates"),
    P("with_memory_space_constraint", "annotates"),
    P("sharding_constraint", "places"),
    P("reshard", "places"),
    P("device_put", "places"),
    P("host_local_array_to_global_array", "places"),
    P("global_array_to_host_local_array", "places"),
    P("copy", "places"),
    # --- effects
    P("pure_callback", "effects", fixed_dtype=True, unbatchable=True),
    P("io_callback", "effects", fixed_dtype=True),
    P("debug_callback", "effects", fixed_dtype=True),
    P("debug_print", "effects", fixed_dtype=True),
    P("create_token", "effects"),
    P("after_all", "effects"),
    # --- kernels, foreign programs, and primitives that only they contain
    P("pallas_call", "opaque", fixed_dtype=True),
    P("ffi_call", "opaque", fixed_dtype=True),
    P("call_exported", "opaque", fixed_dtype=True),
    P("dma_start", "opaque", remote=True),
    P("semaphore_signal", "opaque", remote=True),
    P("semaphore_wait", "opaque", remote=True),
    P("get_barrier_semaphore", "opaque", remote=True),
    *_each("opaque", """
        accum_grad_in_ref add_dependency addupdate bitcast box_get box_set buffer_callback
        call_hi_primitive call_hi_primitive_linearized check compute_on core_map create_linear
        cudnn_fusion custom_fusion custom_jvp_call_jaxpr custom_lin dce_sink delay dim_as_value
        dimension_size dma_wait dot_product_attention_bwd dot_product_attention_bwd_wrapper
        dot_product_attention_fp8_bwd dot_product_attention_fp8_bwd_wrapper
        dot_product_attention_fp8_fwd dot_product_attention_fp8_fwd_wrapper
        dot_product_attention_fwd dot_product_attention_fwd_wrapper empty_ref free_ref freeze
        from_edtype fusible get get_global inspect_sharding jaxpr_call log_extend log_read
        masked_load masked_swap matmul_acc_lhs matmul_pop matmul_push_rhs mpmd_map multiple_of
        new_box new_log new_ref num_programs pack_dtype pack_elementwise pin prng_join
        prng_random_bits prng_seed prng_split program_id program_order reciprocal relayout remat_opt
        roll run_scoped run_state scaled_matmul scaled_matmul_wrapper semaphore_read shape_assertion
        shard_alike stage stochastic_round swap tie to_edtype tpu_custom_call trace_value
        unpack_dtype unpack_elementwise unpin unreachable xla_metadata_value"""),
    *_each("opaque", """
        thunky.all_gather thunky.all_reduce thunky.all_to_all thunky.async_done thunky.async_start
        thunky.call_jax thunky.call_thunky_nested thunky.collective_group thunky.collective_permute
        thunky.cond thunky.copy thunky.custom_call thunky.inline_constant thunky.memset
        thunky.memzero thunky.ptx_kernel thunky.reduce_scatter thunky.while"""),
    # --- operations of shardwise
    P("in_range", "pointwise", work="none"),
)  # fmt: skip

TABLE: dict[str, P] = {row.name: row for row in _ROWS}
"""Every row by the name of its primitive."""

UNKNOWN = P("")


def of(name: str) -> P:
    """Return the row of a primitive; an empty row if there is none."""
    return TABLE.get(name, UNKNOWN)


def names(is_true: Callable[[P], object]) -> frozenset[str]:
    """Return the primitives with a property."""
    return frozenset(row.name for row in _ROWS if is_true(row))


POINTWISE = names(lambda p: p.pointwise)
ADDITIONS = names(lambda p: p.pointwise and p.combines == "sum" and p.commutes)
STEPS = names(lambda p: p.pointwise and p.combines == "sum")
COMPARISONS = names(lambda p: p.mirror)

COLLECTIVES: dict[str, CollectiveForm] = {
    row.name: row.form for row in _ROWS if row.form is not None
}
"""The collectives that can be simulated, by the name of JAX's primitive."""

_OURS = [of(name) for name in dict.fromkeys(form.name for form in COLLECTIVES.values())]

REDUCTIONS = tuple(row.name for row in _OURS if row.combines and not row.moves)
"""Collectives that combine the operands of all devices into one result, by our names."""

SUMS = tuple(row.name for row in _OURS if row.combines)
"""Those, and the one that leaves each device a part of the result."""

EXCHANGES = tuple(row.name for row in _OURS if row.moves in ("join", "reorder"))
"""Collectives that pass on what each device has, by our names."""

UNSUPPORTED = names(lambda p: p.acts == "collective" and p.form is None)
"""Collectives that cannot be simulated."""

BY_KIND = {row.combines: row.name for row in _OURS if row.name in REDUCTIONS}
"""The reduction over devices that combines by sum, maximum or minimum."""

DTYPE_PARAMS = ("new_dtype", "preferred_element_type", "dtype", "accumulation_type", "input_dtype")
"""Parameters that name a dtype."""

PLACE_PARAMS = ("sharding", "out_sharding", "dst_sharding")
"""Parameters that only affect the placement of a result."""

AXIS_PARAMS = ("axis_name", "axis_names", "axes", "axis")
"""Parameters that name mesh axes."""
