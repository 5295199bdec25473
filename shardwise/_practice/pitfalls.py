"""Common mistakes in sharded programs, by name, with explanations for learners.

These are common to all exercises; an exercise may replace the text of one, and add its own.
"""

from __future__ import annotations

import dataclasses


@dataclasses.dataclass(frozen=True)
class Pitfall:
    """A mistake with a name and an explanation."""

    name: str
    title: str
    text: str
    hint: str = ""

    def to_dict(self) -> dict[str, str]:
        """Return the pitfall as plain data."""
        return {"name": self.name, "title": self.title, "text": self.text}


def _common(*rows: tuple[str, str, str, str]) -> dict[str, Pitfall]:
    return {name: Pitfall(name, title, text, hint) for name, title, text, hint in rows}


COMMON = _common(
    (
        "not-started",
        "Nothing is there yet",
        "The function returns nothing so far. Read the statement at the top of the file, fill in "
        "the function, and save.",
        "Start from the signature: which arguments come in, and which shape has to come out?",
    ),
    (
        "one-device",
        "Already wrong on one device",
        "The result is wrong even on a single device, so the mistake is not in how the work is "
        "divided. Compare the formula with the statement, on a small example by hand.",
        "Leave the devices aside: what should the function compute on the whole array?",
    ),
    (
        "missing-reduction",
        "A part that was never put together",
        "Each device computes a result from its own shard, and nothing combines these parts. "
        "`out_specs` then promises one value for all devices while each holds a different one. "
        "With its check on, JAX refuses this; with the check off it returns the first device's "
        "part and says nothing.",
        "Which values still differ between the devices where there should be only one? A "
        "collective such as `psum` combines them.",
    ),
    (
        "n-times",
        "Too large by the number of devices",
        "The result is too large by exactly the number of devices. Something that all "
        "devices already agree on is added up once per device, or a sum stands where a mean "
        "belongs.",
        "Look at each `psum`: does its operand differ between the devices, or is it the same "
        "number on all of them?",
    ),
    (
        "one-nth",
        "Too small by the number of devices",
        "The result is what it should be, divided by the number of devices. A mean stands where a "
        "sum belongs, or the division is done twice.",
        "Look at each `pmean`, and at every division by a size: is the size that of the shard or "
        "that of the whole?",
    ),
    (
        "deadlock",
        "Not every device reaches the collective",
        "A collective is a meeting: nobody goes on until all have arrived. Here a condition that "
        "differs between the devices keeps some of them away, and the others wait forever. On "
        "real devices the program hangs.",
        "Take the collective out of the branch: every device computes it, and the condition only "
        "chooses what to do with the result.",
    ),
    (
        "axis-name",
        "An axis that the mesh does not have",
        "A collective or a spec names an axis that the mesh does not have. The name has to be "
        "spelled exactly as it was when the mesh was made.",
        "Compare the name in the collective with the names that the mesh was made with.",
    ),
    (
        "mixed-axes",
        "A collective over an axis along which nothing differs",
        "The collective names an axis along which all devices hold the same value. A sum along it "
        "would count that value once for each device, so JAX refuses to mix such an axis with one "
        "along which the value differs.",
        "Along which axes does the value differ? Name those and no others.",
    ),
    (
        "old-update",
        "The update of an older Flax",
        "Since Flax 0.11, `nnx.Optimizer.update` takes the model and the gradients; before, the "
        "optimizer kept the model itself.",
        "`optimizer.update(model, grads)`.",
    ),
    (
        "stack-shapes",
        "Two results of different shapes",
        "Arrays can be stacked only if they have the same shape. One of the two is longer or has "
        "a different number of dimensions, usually because a shard's result is not what it should "
        "be.",
        "Print both shapes, on one device and on two.",
    ),
    (
        "uneven",
        "Parts that do not come out even",
        "A dimension does not divide into equal parts, one for each device. `shard_map` and "
        "`jnp.split` both insist on equal parts.",
        "Pad to the next multiple and remove the padding from the result, or choose a dimension "
        "that divides.",
    ),
    (
        "out-rank",
        "out_specs that do not fit the result",
        "`out_specs` names a dimension that the body's result does not have, or leaves out one "
        "that is split. A scalar has no dimension along which parts could be joined.",
        "Which shape does the body return on one device? `out_specs` has to describe that shape.",
    ),
    (
        "spec-count",
        "Specs and arguments do not match",
        "`in_specs` has one spec for each argument of the body, and `out_specs` one for each "
        "result. Here the numbers differ.",
        "Count the body's parameters and the specs.",
    ),
    (
        "explicit-mesh",
        "A mesh with explicit axes",
        "`jax.make_mesh` makes axes of the explicit kind: arrays then carry their sharding in "
        "their type, and a plain array does not fit a spec that splits it.",
        "Make the mesh with `Mesh(devices, ('data',))`, or pass `axis_types=(AxisType.Auto,)`.",
    ),
    (
        "no-mesh",
        "A shard_map without a mesh",
        "`shard_map` runs a function once for each device of a mesh, so it needs a mesh. `vmap` "
        "needs none; this is where the two differ.",
        "Pass `mesh=mesh` to `shard_map`.",
    ),
    (
        "no-shard-map",
        "Nothing is spread over the devices",
        "The numbers are right, but no `shard_map` runs over the devices: one device does all the "
        "work. The exercise is about dividing it.",
        "Wrap the function for one shard in `jax.shard_map(body, mesh=..., in_specs=..., "
        "out_specs=...)` and call that.",
    ),
    (
        "not-split",
        "Every device gets everything",
        "`in_specs` splits nothing, so each device receives the whole array and all compute the "
        "same. The work is not divided, and a sum over the devices counts everything once per "
        "device.",
        "`P('data')` splits the first dimension along the axis `data`; `P()` gives every device "
        "a copy.",
    ),
    (
        "not-sharded",
        "The whole batch at once",
        "The model sees all rows in one call, although it should see them shard by shard. The "
        "number is the same, but the shards are there to avoid needing memory for the whole "
        "batch.",
        "Cut the arrays into `num_shards` equal parts first, and call the model on one part at a "
        "time.",
    ),
    (
        "wrong-shape",
        "The wrong shape",
        "The result does not have the shape that the statement asks for. On several devices that "
        "is usually `out_specs`: what it names is put end to end, what it leaves out is taken "
        "once.",
        "Write the shape beside each line, first of the shard and then of the whole.",
    ),
    (
        "not-an-array",
        "Not an array",
        "The function returns something other than the array or arrays that the statement asks "
        "for.",
        "What does the statement ask the function to return? Return that itself: a string that "
        "looks like a number is none.",
    ),
    (
        "not-an-int",
        "A float where an integer is needed",
        "Seeds and counts come in as floats here. A range, a shape and a random key need Python "
        "integers.",
        "`int(num_shards)` first, then count with it.",
    ),
    (
        "traced-if",
        "A Python decision about a traced value",
        "Inside `shard_map`, `jit` and `grad` values are traced: they stand for numbers that are "
        "not known yet, so Python's `if`, `int()` and `float()` cannot look at them.",
        "Use `jnp.where` or `jax.lax.cond`, or decide before the function is traced.",
    ),
    (
        "mismatched-types",
        "A value that starts out the same and ends up different",
        "JAX keeps track of which values may differ between the devices. A loop or a `cond` needs "
        "the same answer on the way in and on the way out; here a value starts out the same on "
        "all devices and becomes different inside.",
        "Mark the value as varying before the loop: `jax.lax.pcast(x, 'data', to='varying')`.",
    ),
    (
        "follows-the-mesh",
        "The result depends on the number of devices",
        "On one device the result is right, but it changes as devices are added. Somewhere a value "
        "of one shard is used as if it were a value of the whole array.",
        "Go through the body line by line and ask of each value: is it one shard's, or the "
        "whole array's?",
    ),
    (
        "not-finite",
        "Not a number",
        "The result has NaN or infinity where there should be a number. A shard that is empty, or "
        "masked entirely, gives 0/0.",
        "Divide only once, after the sums over all devices.",
    ),
    (
        "signature",
        "The arguments do not match",
        "The function does not take the arguments that the statement names, in that order.",
        "Copy the signature from the statement.",
    ),
    (
        "raises",
        "It stops with an error",
        "The function raises an error before it returns a result. The last line of the message "
        "says the most.",
        "",
    ),
    (
        "too-slow",
        "It does not finish",
        "The run was stopped at its time limit. A loop that never ends is the usual reason.",
        "Which loop decides for itself when to stop?",
    ),
    (
        "too-much-memory",
        "Too much memory",
        "The run was stopped because it asked for far more memory than the exercise needs.",
        "Which array is larger than the inputs?",
    ),
    (
        "too-much-output",
        "Too much is printed",
        "The run was stopped because it prints, or writes, far more than anyone reads.",
        "Take the print out of the loop.",
    ),
    (
        "ends-the-process",
        "It ends the process",
        "The solution ends the process it runs in (`sys.exit`, a signal, a crash) before it "
        "returns a result.",
        "Return the result instead.",
    ),
    (
        "refused",
        "Something that no exercise needs",
        "The solution starts a process, opens a connection, sends a signal or reaches for files "
        "that are not its own. The kernel does not let it.",
        "Everything you need comes in as arguments.",
    ),
    (
        "unconfirmed",
        "What it does cannot be confirmed",
        "The numbers are right. To see how they come about, the judge has JAX make one program of "
        "the whole function, and runs that program in another process, on other numbers. Here "
        "there is no such program, or it does something else.",
        "Return arrays as they are: `float()`, `int()` and NumPy cannot look at values that JAX "
        "has yet to compute.",
    ),
    (
        "tampered",
        "An answer that cannot be read",
        "What came back from the run is not what the judge's own code writes. The solution may "
        "have written into the judge's channel or changed its functions.",
        "",
    ),
)
