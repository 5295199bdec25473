"""What JAX, Gloo and NCCL write, as text and as regular expressions.

For `_jax.failures`, and for the launcher and the judge of exercises, which import no JAX.
"""

CONNECTION_LOST = ("Connection closed by peer", "Connection reset by peer", "ncclRemoteError")
"""Errors of collectives, and of what runs them, whose connection to a process broke."""

BARRIER_FAILED = "Shutdown barrier has failed"
"""JAX stopped waiting for processes that did not come to the end of the script."""

GLOO_CONNECTED = (
    r"\[Gloo\] Rank \d+ is connected to (\d+) peer ranks?\. "
    r"Expected number of connected peer ranks is : (\d+)\s*"
)
"""Gloo's message about the ranks that are connected, and their expected number."""

AXIS_DIFFERS = r"can only accept axis_name which corresponds to one of"
"""A collective needs a value that differs along its axis, or one that does not."""

UNEQUAL_SHAPES = r"All input arrays must have the same shape"

NO_MEMORY = r"RESOURCE_EXHAUSTED|Out of memory|std::bad_alloc"

UNKNOWN_AXIS = (
    r"unbound axis name|Resource axis: \w+ of .* is not found in mesh|named axis .* not found"
)

NO_MESH = r"missing .*'mesh'|context mesh cannot be empty"

OTHER_SHARDING = r"does not match the specs of the input"
"""An argument on a mesh with Explicit axes is not sharded as `in_specs` say."""

NOT_REPLICATED = (
    r"which implies that the corresponding output value is replicated"
    r"|can't be statically inferred|replicated across mesh ax"
)
"""`out_specs` promise one value where devices may have different ones."""

UNEVEN = (
    r"does not divide|equal division|evenly divisible|divide evenly|must be divisible"
    r"|not divisible"
)
"""A dimension is not a multiple of the size of its axis."""

OTHER_RANK = (
    r"out_specs .*(rank|length|applies to)|has a PartitionSpec .*rank|longer than the rank"
    r"|out_specs\[?.*\]? is .*but .*rank"
)
"""A spec has more entries than its array has dimensions."""

OTHER_STRUCTURE = r"in_specs do not match|out_specs do not match|pytree structure error"
"""Specs and values are pytrees of different structures."""

NOT_AN_INTEGER = (
    r"cannot be interpreted as an integer|slice indices must be integers"
    r"|expects? (an )?integer|must be an? integer|only integer scalar|integer .* required"
    r"|Shapes must be 1D sequences of .*int|seed must be an integer"
    r"|got float|'float' object (is not|has no attribute '__index__')"
)

CONCRETE_NEEDED = (
    r"TracerBoolConversion|ConcretizationTypeError|TracerIntegerConversion"
    r"|TracerArrayConversion|Attempted boolean conversion"
)
"""Python needs the value of a tracer, as in an `if`."""

OTHER_VARYING_AXES = r"varying manual axes|manual_axis_type|\{V:|vma"
"""Values differ along different axes, where an operation wants the same."""
