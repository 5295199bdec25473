"""The one package that touches JAX's internals: what differs between JAX versions is here.

Everything else in shardwise sees a jaxpr through the few functions that are handed on here, and the
simulated program enters JAX as the one primitive made by `primitive.call_primitive`.
"""

from .probe import require as _require

_require()  # before any of the others looks for what may not be there

# ruff: noqa: E402
from jax.extend.core import Literal as Literal

from .convolutions import CONVOLUTION as CONVOLUTION
from .convolutions import are_unordered as are_unordered
from .convolutions import in_order as in_order
from .convolutions import unordered as unordered
from .effects import MAY_DEADLOCK as MAY_DEADLOCK
from .effects import MayDeadlock as MayDeadlock
from .effects import surface as surface
from .effects import without_axes as without_axes
from .jaxprs import PERMUTES_IN_MESH_ORDER as PERMUTES_IN_MESH_ORDER
from .jaxprs import Open as Open
from .jaxprs import argument_names as argument_names
from .jaxprs import as_compiled as as_compiled
from .jaxprs import bind as bind
from .jaxprs import can_batch as can_batch
from .jaxprs import cast as cast
from .jaxprs import constants as constants
from .jaxprs import evaluate as evaluate
from .jaxprs import inputs as inputs
from .jaxprs import is_jaxpr as is_jaxpr
from .jaxprs import is_key as is_key
from .jaxprs import is_ordered as is_ordered
from .jaxprs import is_traced as is_traced
from .jaxprs import is_unknown as is_unknown
from .jaxprs import key_impl as key_impl
from .jaxprs import named_axes as named_axes
from .jaxprs import on_one_device as on_one_device
from .jaxprs import open_jaxpr as open_jaxpr
from .jaxprs import outside_traces as outside_traces
from .jaxprs import permutes_as_given as permutes_as_given
from .jaxprs import primitive_name as primitive_name
from .jaxprs import refuse_leaked as refuse_leaked
from .jaxprs import scan_counts as scan_counts
from .jaxprs import shape_of as shape_of
from .jaxprs import specs_in as specs_in
from .jaxprs import trace_context as trace_context
from .jaxprs import untouched as untouched
from .jaxprs import untyped as untyped
from .jaxprs import without_dead as without_dead
from .lifting import retyped as retyped
from .lifting import within_range as within_range
from .lines import LIBRARIES as LIBRARIES
from .lines import Frame as Frame
from .lines import api_boundary as api_boundary
from .lines import derivative_frames as derivative_frames
from .lines import functions_around as functions_around
from .lines import is_backward as is_backward
from .lines import is_collective as is_collective
from .lines import is_derived_around as is_derived_around
from .lines import is_forward as is_forward
from .lines import is_outermost_backward as is_outermost_backward
from .lines import is_own as is_own
from .lines import is_ragged_batch as is_ragged_batch
from .lines import is_shard_map as is_shard_map
from .lines import is_unmapped as is_unmapped
from .lines import same_place as same_place
from .lines import user_frames as user_frames
from .lines import whole_tracebacks as whole_tracebacks
from .messages import COMPILED as COMPILED
from .messages import FOREIGN_MESH as FOREIGN_MESH
from .messages import FROZEN_MESH as FROZEN_MESH
from .messages import GIVEN_NO_ARRAY as GIVEN_NO_ARRAY
from .messages import INDIVISIBLE as INDIVISIBLE
from .messages import INDIVISIBLE_ARGUMENT as INDIVISIBLE_ARGUMENT
from .messages import MIXED_AXES as MIXED_AXES
from .messages import NESTED_MESH as NESTED_MESH
from .messages import NO_DERIVATIVE as NO_DERIVATIVE
from .messages import NO_DEVICES as NO_DEVICES
from .messages import NO_MESH as NO_MESH
from .messages import NO_VALUES as NO_VALUES
from .messages import NOT_AN_ARRAY as NOT_AN_ARRAY
from .messages import NOT_REPLICATED as NOT_REPLICATED
from .messages import PLAIN_NUMBER as PLAIN_NUMBER
from .messages import RESULT_TOO_FLAT as RESULT_TOO_FLAT
from .messages import SPEC_AXIS as SPEC_AXIS
from .messages import SPEC_COUNT as SPEC_COUNT
from .messages import SPEC_MISMATCH as SPEC_MISMATCH
from .messages import SPEC_TOO_LONG as SPEC_TOO_LONG
from .messages import SPEC_WITHOUT_MESH as SPEC_WITHOUT_MESH
from .messages import STATELESS_AXES as STATELESS_AXES
from .messages import TRACED_STATIC as TRACED_STATIC
from .messages import UNBOUND_AXIS as UNBOUND_AXIS
from .messages import UNEVEN_SHARDING as UNEVEN_SHARDING
from .messages import UNMAPPED as UNMAPPED
from .messages import UNNAMED as UNNAMED
from .messages import UNTYPED_AXIS as UNTYPED_AXIS
from .messages import RefusedError as RefusedError
from .messages import about_results as about_results
from .messages import is_about_types as is_about_types
from .processes import Cluster as Cluster
from .processes import backends_have_started as backends_have_started
from .processes import distributed_client as distributed_client
from .processes import distributed_parts as distributed_parts
from .processes import distributed_place as distributed_place
from .processes import find_cluster as find_cluster
from .processes import leave_distributed as leave_distributed
from .refs import has_refs as has_refs
from .refs import without_refs as without_refs
from .straight import Equation as Equation
from .straight import Straight as Straight
from .straight import applying as applying
from .straight import copies_equations as copies_equations
