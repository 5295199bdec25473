"""The one package that uses JAX's internals: differences between JAX versions are handled here.

Everything else in shardwise reads jaxprs through the functions exported here, and a simulated
program enters JAX as the primitive of `primitive.call_primitive`.
"""

from .probe import require as _require

_require()  # before another module uses a name that may be missing

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
from .equations import Equation as Equation
from .equations import EquationRun as EquationRun
from .equations import applying as applying
from .equations import copies_equations as copies_equations
from .frames import CollectiveCall as CollectiveCall
from .frames import axis_named as axis_named
from .frames import collective_called as collective_called
from .frames import groups_given as groups_given
from .frames import mapped_functions as mapped_functions
from .frames import mesh_named as mesh_named
from .frames import vmap_axes as vmap_axes
from .jaxprs import PERMUTES_IN_MESH_ORDER as PERMUTES_IN_MESH_ORDER
from .jaxprs import Open as Open
from .jaxprs import argument_names as argument_names
from .jaxprs import as_compiled as as_compiled
from .jaxprs import bind as bind
from .jaxprs import can_batch as can_batch
from .jaxprs import cast as cast
from .jaxprs import constants as constants
from .jaxprs import equations as equations
from .jaxprs import evaluate as evaluate
from .jaxprs import inner_jaxprs as inner_jaxprs
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
from .jaxprs import shard_maps_in as shard_maps_in
from .jaxprs import specs_in as specs_in
from .jaxprs import trace_context as trace_context
from .jaxprs import untouched as untouched
from .jaxprs import untyped as untyped
from .jaxprs import without_dead as without_dead
from .messages import about_results as about_results
from .messages import is_about_types as is_about_types
from .modules import summarize as summarize
from .processes import Cluster as Cluster
from .processes import backends_have_started as backends_have_started
from .processes import distributed_client as distributed_client
from .processes import distributed_parts as distributed_parts
from .processes import distributed_place as distributed_place
from .processes import find_cluster as find_cluster
from .processes import leave_distributed as leave_distributed
from .refs import has_refs as has_refs
from .refs import without_refs as without_refs
from .retyping import retyped as retyped
from .retyping import within_range as within_range
from .source_lines import LIBRARIES as LIBRARIES
from .source_lines import Frame as Frame
from .source_lines import api_boundary as api_boundary
from .source_lines import derivative_frames as derivative_frames
from .source_lines import functions_around as functions_around
from .source_lines import is_backward as is_backward
from .source_lines import is_collective as is_collective
from .source_lines import is_derived_around as is_derived_around
from .source_lines import is_forward as is_forward
from .source_lines import is_outermost_backward as is_outermost_backward
from .source_lines import is_own as is_own
from .source_lines import is_pmap as is_pmap
from .source_lines import is_ragged_batch as is_ragged_batch
from .source_lines import is_shard_map as is_shard_map
from .source_lines import same_place as same_place
from .source_lines import user_frames as user_frames
from .source_lines import whole_tracebacks as whole_tracebacks
