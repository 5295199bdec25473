"""Wrong calls of everything public: each is told in words, and none ends in a raw traceback.

Each call below is right. One argument after the other is replaced by something that it cannot be,
or left out, and arguments are added that nobody takes. What comes of it is a result, or a
`ShardwiseError`, or an error out of the user's own function; never an error from inside that says
nothing of the argument, nor one of Python's about the call.
"""

from __future__ import annotations

import dataclasses
import functools
import pickle
import re
import warnings
from collections.abc import Callable
from pathlib import Path
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import optax
import pytest
from flax import nnx
from jax.sharding import PartitionSpec as P

import shardwise as sw

HOME = str(Path(sw.__file__).parent)


class Nothing:
    """Something that is nothing of what is asked for."""


BAD: dict[str, Any] = {
    "None": None,
    "0": 0,
    "-1": -1,
    "huge": 10**30,
    "nan": float("nan"),
    "text": "a",
    "bytes": b"",
    "empty list": [],
    "empty dict": {},
    "dict of lists": {"data": []},
    "nested": [[1, "a"], None],
    "object": object(),
    "function": lambda: None,
    "type": Nothing,
    "empty array": np.zeros(0),
    "array of text": np.array(["a", "b"]),
    "array of objects": np.array([None, 1]),
    "nan array": np.full(8, np.nan, np.float32),
}


def total(x, *, mesh=None):
    def body(part):
        return jax.lax.psum(part.sum(), "data")

    return jax.shard_map(body, mesh=mesh, in_specs=P("data"), out_specs=P())(x)


def loss(params, batch):
    return (batch - params) ** 2


def model_loss(model, batch):
    return (model(batch[:, None]) ** 2).mean(-1)


X = np.arange(8, dtype=np.float32)
MESH = sw.mesh(data=2)
STEP = sw.data_parallel(loss, optax.sgd(0.1), mesh=MESH, donate=False)


def some_model():
    model = nnx.Linear(1, 1, rngs=nnx.Rngs(0))
    return model, nnx.Optimizer(model, optax.sgd(0.1), wrt=nnx.Param)


def call_simulated(*args, **options):
    return sw.simulate(*args[:1], **options)(*args[1:])


def call_step(*args, **options):
    return STEP(*args, **options)


def call_object_step(*args, **options):
    return sw.nnx.data_parallel(model_loss, mesh=MESH)(*args, **options)


def call_fit(*args, **options):
    return sw.fit(*args, progress=False, **options)


def call_connect(*args, **options):
    """As one of two: what is given is looked at before it turns out that JAX has started."""
    jax.devices()
    try:
        sw.connect(*args, **options)
    except sw.ShardwiseError as error:
        if "JAX has already initialized its devices" not in str(error):
            raise


def declared(*args, **options):
    return sw.case(*args, **options)(lambda: (total, (X,)))


def call_hardware(*args, **options):
    return sw.Hardware(*args, **{**dataclasses.asdict(sw.Hardware.named("h100-node")), **options})


RESULTS = {
    "verdict": lambda: sw.check(total, X, mesh=MESH),
    "report": lambda: sw.explain(total, X, mesh=MESH),
    "inspection": lambda: sw.inspect(total, X, mesh=MESH),
    "evaluation": lambda: sw.evaluate(lambda _, b: b, None, X, batch=4, progress=False),
}


@functools.cache
def result(name: str) -> Any:
    return RESULTS[name]()


def on_result(name: str, method: str, *args: Any, **kwargs: Any) -> Any:
    return getattr(result(name), method)(*args, **kwargs)


Call = tuple[Callable[..., Any], tuple[Any, ...], dict[str, Any]]

CALLS: dict[str, Callable[[Any], Call]] = {
    "mesh": lambda tmp: (sw.mesh, ({"data": 2},), {}),
    "mesh by name": lambda tmp: (sw.mesh, (), {"data": 2, "model": 2}),
    "simulate": lambda tmp: (
        call_simulated,
        (total, X),
        {
            "mesh": MESH,
            "at_once": 1,
            "in_specs": P("data"),
            "static_argnums": (),
            "static_argnames": (),
        },
    ),
    "check": lambda tmp: (
        sw.check,
        (total, X),
        {
            "mesh": {"data": [1, 2]},
            "reference": np.float32(28),
            "rtol": 1e-3,
            "atol": 0.0,
            "seed": 0,
            "in_specs": None,
            "static_argnums": (),
            "static_argnames": (),
        },
    ),
    "prove": lambda tmp: (
        sw.prove,
        (total, X),
        {"mesh": {"data": 2}, "reference": None, "run": False, "in_specs": None},
    ),
    "explain": lambda tmp: (
        sw.explain,
        (total, X),
        {"mesh": MESH, "hardware": "h100-node", "in_specs": None},
    ),
    "inspect": lambda tmp: (sw.inspect, (total, X), {"mesh": MESH, "line": None, "where": "psum"}),
    "evaluate": lambda tmp: (
        sw.evaluate,
        (lambda state, batch: batch, None, X),
        {"batch": 4, "mesh": MESH, "journal": None, "progress": False},
    ),
    "data_parallel": lambda tmp: (
        sw.data_parallel,
        (loss, optax.sgd(0.1)),
        {
            "mesh": MESH,
            "axis": "data",
            "accumulate": 1,
            "has_aux": False,
            "mutable": (),
            "rng": None,
            "seed": 0,
            "statistics": "batch",
            "norms": False,
            "donate": True,
            "at_once": 1,
            "feed": None,
        },
    ),
    "step.init": lambda tmp: (STEP.init, (jnp.ones(()),), {}),
    "step": lambda tmp: (call_step, (STEP.init(jnp.ones(())), X), {"mesh": None}),
    "nnx.data_parallel": lambda tmp: (
        sw.nnx.data_parallel,
        (model_loss,),
        {"mesh": MESH, "axis": "data", "accumulate": 1, "seed": 0, "statistics": "batch"},
    ),
    "nnx step": lambda tmp: (call_object_step, (*some_model(), X), {}),
    "fit": lambda tmp: (
        call_fit,
        (STEP, STEP.init(jnp.ones(())), [X]),
        {
            "steps": 1,
            "every": 1,
            "keep": 2,
            "checkpoint": None,
            "evaluate": None,
            "log": None,
            "callbacks": (),
            "on_nan": "warn",
        },
    ),
    "case": lambda tmp: (declared, (), {"mesh": {"data": 2}}),
    "Hardware": lambda tmp: (
        call_hardware,
        (),
        {"name": "mine", "flops": 1e12, "memory": 1e10, "node": 8, "utilisation": 0.5},
    ),
    "connect": lambda tmp: (
        sw.connect,
        (None,),
        {"processes": None, "process": None, "heartbeat": 10, "timeout": 2},
    ),
    "connect two": lambda tmp: (
        call_connect,
        ("127.0.0.1:8476",),
        {"processes": 2, "process": 1, "heartbeat": 10, "timeout": 2},
    ),
    "Sum": lambda tmp: (sw.Sum, (X,), {}),
    "Mean": lambda tmp: (sw.Mean, (X, X), {}),
    "Max": lambda tmp: (sw.Max, (X,), {}),
    "Min": lambda tmp: (sw.Min, (X,), {}),
    "sharded_eval_loss": lambda tmp: (
        sw.primitives.sharded_eval_loss,
        (0, X[:, None], X, 2),
        {"form": "loop", "mesh": None},
    ),
    "shard_map_simulate": lambda tmp: (
        sw.primitives.shard_map_simulate,
        (0, X[:, None], 2, 1),
        {"mesh": None},
    ),
    "shard_map_psum": lambda tmp: (sw.primitives.shard_map_psum, (X,), {"mesh": None}),
    "shard_map_vs_vmap": lambda tmp: (
        sw.primitives.shard_map_vs_vmap,
        (X[:, None],),
        {"mesh": None},
    ),
    "verdict.to_dict": lambda tmp: (on_result, ("verdict", "to_dict"), {}),
    "report.on": lambda tmp: (on_result, ("report", "on", "h100-node"), {}),
    "report.save": lambda tmp: (on_result, ("report", "save", tmp / "page.html"), {}),
    "report.compare": lambda tmp: (on_result, ("report", "compare", result("report")), {}),
    "inspection.at": lambda tmp: (on_result, ("inspection", "at", None, "psum"), {}),
    "inspection.save": lambda tmp: (on_result, ("inspection", "save", tmp / "page.html"), {}),
    "evaluation.to_dict": lambda tmp: (on_result, ("evaluation", "to_dict"), {}),
}

RIGHT = {
    ("fit", "steps=huge"),  # would take for ever
}
"""What is no mistake."""

NAMES_OF_ALL = {name for name in dir(sw) if not name.startswith("_")}
RESULT_TYPES = {
    "Connection",
    "Evaluation",
    "Finding",
    "Fix",
    "Inspection",
    "Proof",
    "Report",
    "TrainState",
    "Verdict",
}


def complaint(error: BaseException) -> str:
    """What is wrong with an error as a user meets it; nothing if it is told in words."""
    if isinstance(error, sw.ShardwiseError):
        return "" if str(error).strip() else "it says nothing"
    frames, trace = [], error.__traceback__
    while trace is not None:
        frames.append(trace.tb_frame)
        trace = trace.tb_next
    if CALLED_WRONGLY.match(str(error)):
        return ""  # The user's function was given what the user gave.
    inside = [k for k, frame in enumerate(frames) if frame.f_code.co_filename.startswith(HOME)]
    if not inside:
        return f"{type(error).__name__}: {error}"  # Python itself refused the call.
    own = [k for k, frame in enumerate(frames) if frame.f_code in USERS]
    if own and own[-1] > inside[0]:
        return ""  # It comes out of the user's function.
    last = frames[inside[-1]]
    place = f"{last.f_code.co_filename.removeprefix(HOME)}:{last.f_lineno}"
    return f"{type(error).__name__} from {place}: {error}"


CALLED_WRONGLY = re.compile(r"(total|loss|Nothing|.*<lambda>)\(\) (takes|missing) ")
USERS = {f.__code__ for f in (total, loss, model_loss)}


def outcome(call: Callable[..., Any], args: Any, kwargs: Any) -> str:
    try:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")
            call(*args, **kwargs)
    except Exception as error:
        return complaint(error)
    return ""


def variations(args: tuple[Any, ...], kwargs: dict[str, Any], first: int):
    for label, bad in BAD.items():
        for place in range(first, len(args)):
            yield f"argument {place}: {label}", (*args[:place], bad, *args[place + 1 :]), kwargs
        for name in kwargs:
            yield f"{name}={label}", args, {**kwargs, name: bad}
    for place in range(first, len(args)):
        yield f"without argument {place}", (*args[:place], *args[place + 1 :]), kwargs
    yield "without arguments", args[:first], {}
    for name in kwargs:
        yield f"without {name}=", args, {key: kwargs[key] for key in kwargs if key != name}
    yield "an unknown argument", args, {**kwargs, "epochs": 3}
    yield "an argument too many", (*args, 3), kwargs
    yield "an array too many", (*args, X), kwargs
    if len(args) - first > 1:
        yield "the arguments as a tuple", (*args[:first], args[first:]), kwargs
        yield "but for the first, as a tuple", (*args[: first + 1], args[first + 1 :]), kwargs
    if len(args) - first > 1:
        yield "in another order", (*args[:first], *reversed(args[first:])), kwargs


@pytest.mark.once
@pytest.mark.parametrize("name", CALLS)
def test_wrong_calls_are_told_in_words(name, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    call, args, kwargs = CALLS[name](tmp_path)
    call(*args, **kwargs)
    first = 2 if call is on_result else 0
    told = (
        (what, outcome(call, changed, options))
        for what, changed, options in variations(args, kwargs, first)
        if (name, what) not in RIGHT
    )
    assert [f"{what}: {found}" for what, found in told if found] == []


def test_every_public_call_is_walked():
    calls = {name.split(".")[0].split(" ")[0] for name in CALLS}
    errors = {name for name in NAMES_OF_ALL if name.endswith("Error")}
    modules = {"nnx", "primitives"}
    assert NAMES_OF_ALL - calls - errors - modules - RESULT_TYPES == set()


@pytest.mark.parametrize("key", BAD)
def test_an_evaluation_is_asked_for_something_else(key):
    with pytest.raises(sw.UnknownNameError):
        result("evaluation")[BAD[key]]


@pytest.mark.parametrize("verb", [sw.simulate, sw.check, sw.prove, sw.inspect, sw.explain])
def test_a_case_is_no_program(verb):
    """It has no `shard_map`, and would be called right."""
    with pytest.raises(sw.ArgumentError, match=r"f, args = declared\(\)"):
        verb(sw.case(mesh={"data": 2})(declared), mesh={"data": 2})


def test_a_raw_error_would_be_seen():
    from shardwise._mesh import axes_of

    assert complaint(ValueError("mine")) == "ValueError: mine"
    assert outcome(axes_of, (3,), {}).startswith("AttributeError from /_mesh.py")


def test_errors_can_be_sent_to_another_process():
    error = sw.ShardingError("mesh=: it does not fit")
    assert str(pickle.loads(pickle.dumps(error))) == str(error)


def test_a_name_that_is_taken_by_its_place_is_not_the_one_that_was_meant():
    with pytest.raises(sw.ArgumentError, match=r"functools\.partial\(f, fn="):
        sw.check(total, jnp.arange(8.0), fn=jnp.sin, mesh={"data": [1, 2]})
    with pytest.raises(sw.ArgumentError, match="did you mean f="):
        sw.check(fn=total, mesh={"data": [1, 2]})
