"""The verdict itself: its surface, tolerances, references, and programs of every shape."""

import decimal
import fractions
import json
import re
import sys
import types

import jax
import jax.numpy as jnp
import numpy as np
import optax
import pytest
from jax import P, lax

import shardwise as sw
from shardwise._jax.source_lines import library_folders
from tests.support import check, normal

from .marks import line_of

MESH = {"data": [1, 2, 4]}


WHOLE, PARTS = P(), P("data")


def split(body, out_specs=WHOLE, in_specs=PARTS, **options):
    """A function of arrays that runs `body` on each part."""

    def program(*args, mesh):
        specs = {"in_specs": in_specs, "out_specs": out_specs, **options}
        return jax.shard_map(body, mesh=mesh, **specs)(*args)

    return program


def total(x):
    return lax.psum(x.sum(), "data")


def too_large(x):
    return lax.psum(x.mean(), "data")  # here


X = normal(8, 3)


def certain(verdict):
    return [f for f in verdict.findings if f.certain]


# --- the surface


def test_a_right_program_is_true():
    verdict = check(split(total), X, mesh=MESH)
    assert verdict.ok
    assert verdict
    assert verdict.findings == ()
    assert verdict.meshes == ("{data: 1}", "{data: 2}", "{data: 4}")
    assert verdict.leaves == 1
    assert str(verdict) == "program: right on {data: 1}, {data: 2}, {data: 4}"
    assert verdict.raise_if_wrong() is verdict


def test_a_wrong_program_is_false_and_says_why():
    verdict = check(split(too_large), X, mesh=MESH)
    assert not verdict
    (finding,) = certain(verdict)
    assert finding.code == "SW401"
    assert finding.where.line == line_of(too_large, "# here")
    assert finding.where.file == __file__
    assert finding.where.text == 'return lax.psum(x.mean(), "data")  # here'
    assert finding.leaf == "result"
    assert finding.mesh == "{data: 4}"
    assert "pmean" in finding.remedy
    with pytest.raises(sw.ShardwiseError, match=r"SW401.*is 4 times what it is on one device"):
        verdict.raise_if_wrong()


def test_the_text_has_a_caret_under_the_call():
    text = str(check(split(too_large), X, mesh=MESH)).splitlines()
    at = next(i for i, line in enumerate(text) if "# here" in line)
    code, caret = text[at], text[at + 1]
    start = caret.index("^")
    assert code[start:].startswith("lax.psum(")
    assert caret.count("^") == len('lax.psum(x.mean(), "data")')
    assert text[at - 1].strip().startswith(f"--> {__file__}:{line_of(too_large, '# here')} in")


def test_plain_data_is_json():
    data = check(split(too_large), X, mesh=MESH).to_dict()
    again = json.loads(json.dumps(data))
    assert again == data
    assert again["ok"] is False
    assert again["findings"][0]["code"] == "SW401"
    assert set(again["findings"][0]["where"]) >= {"file", "line", "text", "function"}


def test_html_is_escaped():
    def program(x, *, mesh):
        body = lambda x: {"<b>&": lax.psum(x.mean(), "data")}  # noqa: E731
        return jax.shard_map(body, mesh=mesh, in_specs=P("data"), out_specs=P())(x)

    program.__name__ = "<script>"
    page = check(program, X, mesh=MESH)._repr_html_()
    assert "<script>" not in page
    assert "&lt;script&gt;" in page
    assert "<b>&" not in page
    assert "SW401" in page


# --- tolerances


@pytest.mark.parametrize("dtype", ["float32", "bfloat16"])
def test_a_right_program_passes_on_64_devices(dtype):
    x, w = normal(128, 8, dtype=dtype), normal(8, 4, dtype=dtype)

    def body(w, x):
        hidden = jnp.tanh(x @ w)
        return lax.pmean(jnp.mean(hidden**2), "data"), lax.psum(x.T @ hidden, "data") / 128

    step = split(body, in_specs=(P(), P("data")))
    verdict = check(step, w, x, mesh={"data": [1, 64]})
    assert verdict, verdict


def test_a_deep_right_program_passes():
    x, w = normal(16, 8), normal(12, 8, 8) * 0.6

    def loss(w, x):
        out = lax.scan(lambda x, w: (x + jnp.tanh(x @ w), None), x, w)[0]
        return lax.pmean(jnp.mean(out**2), "data")

    step = split(jax.value_and_grad(loss), in_specs=(P(), P("data")))
    verdict = check(step, w, x, mesh={"data": [1, 16]})
    assert verdict, verdict


@pytest.mark.parametrize("dtype", ["float32", "bfloat16"])
def test_a_gradient_wrong_by_one_percent_fails(dtype):
    x, w = normal(64, 8, dtype=dtype), normal(8, 16, dtype=dtype)

    def body(w, x):
        slip = 1 if lax.axis_size("data") == 1 else 1.01
        grads = jax.grad(lambda w: lax.pmean(jnp.mean((x @ w) ** 2), "data"))(w)
        return (slip * grads.astype("float32")).astype(dtype)

    verdict = check(split(body, in_specs=(P(), P("data"))), w, x, mesh={"data": [1, 8]})
    assert not verdict


def test_tolerances_can_be_set():
    def body(x):
        slip = 1 if lax.axis_size("data") == 1 else 1.01
        return slip * total(x)

    assert not check(split(body), X, mesh=MESH)
    assert check(split(body), X, mesh=MESH, rtol=0.02)
    assert check(split(body), X, mesh=MESH, atol=10.0)
    assert not check(split(body), X, mesh=MESH, atol=1e-6)


def test_a_result_that_is_nothing_but_rounding_is_not_faulted():
    """A sum that cancels has no size of its own to compare with."""

    def body(x):
        mean = lax.pmean(x.mean(0), "data")
        return lax.psum((x - mean).sum(0), "data")

    verdict = check(split(body), normal(64, 3), mesh={"data": [1, 8]})
    assert verdict, verdict


def test_integers_agree_exactly_or_not():
    x = np.arange(8, dtype="int32")
    assert check(split(total), x, mesh=MESH)
    wrong = check(split(lambda x: lax.psum(x.max(), "data")), x, mesh=MESH)
    assert not wrong


# --- references


def test_a_reference_may_be_a_function_or_a_value():
    mean = split(lambda x: lax.pmean(x.mean(), "data"))
    assert check(mean, X, mesh=MESH, reference=lambda x: jnp.mean(x))
    assert check(mean, X, mesh=MESH, reference=X.mean())
    assert not check(mean, X, mesh=MESH, reference=lambda x: jnp.sum(x))
    assert not check(mean, X, mesh=MESH, reference=2 * X.mean())


@pytest.mark.parametrize("dtype", ["int8", "uint32", "bfloat16", "float32", "complex64"])
def test_a_number_of_pythons_as_reference_has_the_type_of_the_result(dtype):
    three = split(lambda x: lax.pmax(jnp.sign(x.max()), "data").astype(dtype) + 2)
    for reference in (3, lambda x: 3):
        assert check(three, abs(X), mesh=MESH, reference=reference)
    for reference in (2, lambda x: 2, 259, lambda x: 259, np.int16(3), 3.5):
        assert not check(three, abs(X), mesh=MESH, reference=reference)


@pytest.mark.parametrize("dtype", ["bfloat16", "float16"])
def test_a_reference_may_be_coarser_than_the_program(dtype):
    coarse = lambda x: (x.astype(dtype) * 1.5).astype(x.dtype)  # noqa: E731
    x = jnp.asarray(normal(64))
    assert check(split(lambda x: x * 1.5, PARTS), x, mesh=MESH, reference=coarse)
    assert check(split(coarse, PARTS), x, mesh=MESH, reference=lambda x: x * 1.5)
    assert not check(split(lambda x: x * 1.6, PARTS), x, mesh=MESH, reference=coarse)


@pytest.mark.filterwarnings("ignore:overflow encountered")
@pytest.mark.parametrize(
    ("x", "wide"),
    [(np.full(8, 2**30, np.int32), np.int64), (np.full(8, 1e38, np.float32), np.float64)],
)
def test_a_reference_that_the_type_cannot_hold(x, wide):
    """Of NumPy's wider types it would be cut down to what the program gives."""
    for reference in (lambda x: np.asarray(x, wide).sum(), np.asarray(x, wide).sum()):
        with pytest.raises(sw.ShardingError, match="does not fit"):
            check(split(total), x, mesh=MESH, reference=reference)


def test_a_reference_shows_what_is_wrong_on_one_device_already():
    total_of_two = split(lambda x: 2 * lax.psum(x.sum(), "data"))
    assert check(total_of_two, X, mesh=MESH)
    verdict = check(total_of_two, X, mesh=MESH, reference=jnp.sum)
    assert not verdict


def test_a_reference_of_another_structure_is_refused():
    with pytest.raises(sw.ShardingError, match="structure of the program's result"):
        check(split(total), X, mesh=MESH, reference=lambda x: (x.sum(), x.sum()))


@pytest.mark.parametrize(
    ("reference", "words"),
    [
        (lambda x: {"a": x.sum(), "c": x.sum()}, r"it has result['c'], and it lacks result['b']"),
        (lambda x: (x.sum(), x.sum()), r"has result[0], result[1], and it lacks result['a'], "),
        (lambda x: x.sum(), r"it has result, and it lacks result['a'], result['b']"),
        ({"a": 1.0}, r"lacks result['b']"),
        ({"a": 1.0, "b": {"c": 1.0}}, r"it has result['b']['c']"),
    ],
)
def test_a_reference_is_paired_by_its_paths(reference, words):
    program = split(lambda x: {"a": total(x), "b": total(x * x)})
    with pytest.raises(sw.ShardingError, match=re.escape(words)):
        check(program, X, mesh=MESH, reference=reference)


def test_a_reference_with_swapped_keys_is_wrong_and_in_another_order_right():
    program = split(lambda x: {"a": total(x), "b": total(x * x)})
    right = lambda x: {"b": (x * x).sum(), "a": x.sum()}  # noqa: E731
    assert check(program, X, mesh=MESH, reference=right)
    swapped = lambda x: {"a": (x * x).sum(), "b": x.sum()}  # noqa: E731
    verdict = check(program, X, mesh=MESH, reference=swapped)
    assert not verdict
    assert "differs from the reference on one device already" in str(verdict)
    assert "depends on the number of devices" not in str(verdict)


def test_a_reference_in_numpy_and_one_that_takes_a_mesh():
    mean = split(lambda x: lax.pmean(x.mean(), "data"))
    assert check(mean, X, mesh=MESH, reference=lambda x: np.mean(np.asarray(x)))
    assert check(mean, X, mesh=MESH, reference=mean)


def test_the_users_error_in_a_reference_is_the_users():
    def reference(x):
        raise KeyError("mine")

    with pytest.raises(KeyError, match="mine"):
        check(split(total), X, mesh=MESH, reference=reference)


# --- options


@pytest.mark.parametrize("name", ["rtol", "atol"])
@pytest.mark.parametrize("given", [-1, -1e-9, np.nan, np.inf, 10**400, "a", "1", [1], True])
def test_tolerances_that_make_no_sense(name, given):
    with pytest.raises(sw.ShardwiseError, match=rf"(?s)sw.check: {name} is .*finite") as caught:
        check(split(total), X, mesh=MESH, **{name: given})
    assert "Remedy" in str(caught.value)


def test_other_options_that_make_no_sense():
    with pytest.raises(sw.ShardwiseError, match="f is 3"):
        check(3, X, mesh=MESH)  # pyright: ignore[reportArgumentType]
    with pytest.raises(sw.ShardwiseError, match="seed is -1"):
        check(split(total), X, mesh=MESH, seed=-1)


@pytest.mark.parametrize("given", [np.float32(0.02), 0, 1, jnp.float32(0.1)])
def test_tolerances_of_every_kind_of_number(given):
    assert check(split(total), X, mesh=MESH, rtol=given, atol=1)


# --- which meshes


def test_the_head_says_where_it_is_right_and_where_wrong():
    def body(x):
        return total(x) * (2 if lax.axis_size("data") == 4 else 1)

    verdict = check(split(body), X, mesh={"data": [1, 2, 4, 8]})
    assert verdict.wrong_on == ("{data: 4}",)
    assert verdict.right_on == ("{data: 1}", "{data: 2}", "{data: 8}")
    head = "program: WRONG on {data: 4}; right on {data: 1}, {data: 2}, {data: 8}"
    assert str(verdict).splitlines()[0] == head
    assert verdict.to_dict()["wrong_on"] == ["{data: 4}"]
    page = verdict._repr_html_()
    assert page.index("wrong</b> on {data: 4}") < page.index("right</b> on {data: 1}, {data: 2}")


def test_a_reference_may_be_missed_on_one_device_too():
    verdict = check(split(total), X, mesh=MESH, reference=lambda x: 2 * x.sum())
    assert verdict.wrong_on == verdict.meshes
    assert "right on" not in str(verdict)


def test_a_deadlock_on_some_meshes():
    def body(x):
        def wait(x):
            return lax.pcast(total(x), "data", to="varying")

        last = lax.axis_index("data") == 3
        return lax.psum(lax.cond(last, wait, lambda x: x.sum(), x), "data")

    verdict = check(split(body), X, mesh={"data": [1, 2, 4]})
    assert verdict.wrong_on == ("{data: 4}",)


# --- meshes


def test_several_axes_are_tried_in_every_combination():
    def body(x):
        return lax.psum(x.sum(), ("data", "model"))

    program = split(body, in_specs=P("data", "model"))
    verdict = check(program, normal(4, 4), mesh={"data": [1, 2], "model": [1, 2, 4]})
    assert verdict
    assert len(verdict.meshes) == 6
    assert verdict.meshes[-1] == "{data: 2, model: 4}"


def test_the_axis_at_fault_is_named():
    def body(x):
        return lax.psum(lax.pmean(x.sum(), "model"), "data")

    program = split(body, in_specs=P("data", "model"))
    verdict = check(program, normal(4, 4), mesh={"data": [1, 2], "model": [1, 4]})
    assert any(
        "is 1/4 of what" in f.message and "averaged over 'model'" in f.message and f.code == "SW402"
        for f in certain(verdict)
    )


@pytest.mark.parametrize(
    ("mesh", "words"),
    [
        ({}, "needs the axes and the sizes"),
        ({"data": []}, "'data' has no sizes"),
        ({"data": [0]}, "0"),
        ({"data": 3}, "does not divide"),
    ],
)
def test_bad_meshes_are_refused(mesh, words):
    with pytest.raises(sw.ShardingError, match=words):
        check(split(total), X, mesh=mesh)


def test_a_mesh_may_be_given_as_one():
    assert check(split(total), X, mesh=sw.mesh(data=4)).meshes == ("{data: 4}",)


# --- structure, shape, type


def test_another_shape():
    gather = split(lambda x: x, out_specs=P("data"), in_specs=P())
    (finding,) = certain(check(gather, X, mesh=MESH))
    assert finding.code == "SW108"
    assert "float32[32, 3]" in finding.message
    assert "float32[8, 3]" in finding.message


def test_another_dtype():
    def program(x, *, mesh):
        return total_of(x, mesh).astype("int32" if mesh.size > 1 else "float32")

    (finding,) = certain(check(program, X, mesh=MESH))
    assert finding.code == "SW108"
    assert "int32[]" in finding.message


def test_another_structure():
    def program(x, *, mesh):
        out = total_of(x, mesh)
        return (out, out) if mesh.size > 1 else out

    (finding,) = certain(check(program, X, mesh=MESH))
    assert finding.code == "SW108"
    assert "structure" in finding.message


def total_of(x, mesh):
    return jax.shard_map(total, mesh=mesh, in_specs=P("data"), out_specs=P())(x)


def test_a_program_without_shard_map():
    assert check(lambda x: jnp.sin(x), X, mesh=MESH)
    assert not check(lambda x, *, mesh: x * mesh.size, X, mesh=MESH)


def test_a_constant_result():
    assert check(lambda x, *, mesh: (total_of(x, mesh), 3.0, jnp.zeros(2)), X, mesh=MESH)


def test_keys_as_results():
    def program(key, x, *, mesh):
        def body(key, x):
            return jax.random.fold_in(key, 1), total(x)

        return jax.shard_map(body, mesh=mesh, in_specs=(P(), P("data")), out_specs=P())(key, x)

    def wrong(key, x, *, mesh):
        def body(key, x):
            return jax.random.fold_in(key, len(x)), total(x)

        return jax.shard_map(body, mesh=mesh, in_specs=(P(), P("data")), out_specs=P())(key, x)

    assert check(program, jax.random.key(0), X, mesh=MESH)
    assert not check(wrong, jax.random.key(0), X, mesh=MESH)


def test_nan_on_some_meshes_only():
    def body(x):
        count = (x > 0).sum()
        return lax.pmean(jnp.where(x > 0, x, 0).sum() / count, "data")

    x = np.float32([1, 2, 3, 4, -1, -2, -3, -4])
    verdict = check(split(body), x, mesh={"data": [1, 4]})
    (finding,) = certain(verdict)
    assert finding.code == "SW405"  # the cause; what it leads to is said beside it
    assert "division by a share" in finding.message
    assert "NaN or infinite on {data: 4}" in finding.message
    reference = lambda x: jnp.mean(x, where=x > 0)  # noqa: E731
    verdict = check(split(body), x, mesh={"data": [1, 4]}, reference=reference)
    assert [f.message for f in certain(verdict)] == [finding.message]


@pytest.mark.parametrize("options", [{}, {"rtol": 0.1}, {"rtol": 0.1, "atol": 9.0}])
@pytest.mark.parametrize("found", [-np.inf, 5.0, np.nan])
def test_infinity_agrees_with_infinity_alone(found, options):
    def body(x):
        on_several = lax.axis_size("data") > 1
        return lax.psum(x.sum(0), "data").at[0].set(found if on_several else np.inf)

    assert not check(split(body), X, mesh=MESH, **options)
    assert check(split(lambda x: lax.pmax(x.max(0), "data").at[0].set(np.inf)), X, mesh=MESH)


def test_nan_everywhere_is_no_difference():
    assert check(split(lambda x: total(x) * jnp.nan), X, mesh=MESH)


def test_leaves_are_named_by_their_path():
    def body(x):
        return {"metrics": {"loss": lax.psum(x.mean(), "data"), "total": total(x)}}

    (finding,) = certain(check(split(body), X, mesh=MESH))
    assert finding.leaf == "result['metrics']['loss']"


def test_results_that_fail_alike_are_told_once():
    def body(x):
        return lax.psum((x.mean(), x.mean(0)), "data")

    (finding,) = certain(check(split(body), X, mesh=MESH))
    assert "1 more result" in finding.message


# --- deadlocks


def test_a_deadlock_is_a_finding():
    def body(x):
        def wait(x):
            return lax.pcast(total(x), "data", to="varying")  # here

        first = lax.axis_index("data") == 0
        return lax.cond(first, wait, lambda x: x.sum(), x)[None]

    verdict = check(split(body, out_specs=P("data")), X, mesh=MESH)
    assert [f.code for f in certain(verdict)] == ["SW301"] or {
        f.code for f in certain(verdict)
    } == {"SW301", "SW108"}
    finding = next(f for f in certain(verdict) if f.code == "SW301")
    assert "never reach" in finding.message
    assert finding.where.file == __file__
    assert "jnp.where" in finding.remedy


def test_a_decision_that_may_differ_is_only_a_word_of_warning():
    def body(x):
        def wait(x):
            return lax.pcast(total(x), "data", to="varying")

        return lax.cond(x.sum() < 1e6, wait, lambda x: x.sum(), x)

    def program(x, *, mesh):
        out = jax.shard_map(
            lambda x: lax.pmax(body(x), "data"), mesh=mesh, in_specs=P("data"), out_specs=P()
        )
        return out(x)

    verdict = check(program, X, mesh=MESH)
    assert verdict.ok
    assert "SW202" in {f.code for f in verdict.findings}


# --- by reading


def test_an_unused_axis_is_mentioned():
    verdict = check(split(total), X, mesh={"data": [1, 2], "model": 2})
    assert verdict.ok
    assert {f.code for f in verdict.findings} == {"SW204"}
    assert "may be right" in str(verdict)


def test_a_gather_that_is_only_reduced_is_mentioned():
    def body(x):
        return lax.all_gather(x, "data").sum(0)

    x = np.ones((2, 1 << 18), "float32")
    verdict = check(split(body, check_vma=False), x, mesh={"data": [1, 2]})
    assert "SW205" in {f.code for f in verdict.findings}


def test_a_replicated_output_that_may_differ_is_mentioned():
    """Here it does not: all devices compute the same from different parts."""

    def body(x):
        return x.sum() * 0 + 1

    verdict = check(split(body, check_vma=False), X, mesh=MESH)
    assert verdict.ok
    assert {f.code for f in verdict.findings} == {"SW203"}


@pytest.mark.parametrize("used", [lambda y: y * 0 + 1, lambda y: (y > -9).sum()])
def test_what_is_used_on_the_way_is_not_said_to_be_the_same_unseen(used):
    """The value that is declared the same is no result, and no result shows that it differs."""

    def program(x, *, mesh):
        options = {"in_specs": P("data"), "out_specs": P(), "check_vma": False}
        return used(jax.shard_map(lambda x: x.sum(0), mesh=mesh, **options)(x))

    verdict = check(program, X, mesh=MESH)
    (finding,) = (one for one in verdict.findings if one.code == "SW203")
    assert verdict.ok
    assert "came out different on the devices here" in finding.message
    assert "which no result shows" in finding.message


@pytest.mark.parametrize("reference", [None, lambda x: 0 * x.sum()])
def test_what_came_out_different_is_not_said_to_be_right_perhaps(reference):
    """With a cause at hand, or with the fact itself, it goes without saying."""

    def body(x):
        return x.sum() * lax.axis_index("data")

    verdict = check(split(body, check_vma=False), X, mesh=MESH, reference=reference)
    assert not verdict
    assert "SW203" not in {f.code for f in verdict.findings}
    assert "may be right" not in str(verdict)


def test_a_ring_is_not_told_to_reduce():
    """After a ring all devices hold the sum; a psum on top would be n times too large."""

    def body(x):
        n = lax.axis_size("data")
        mine = running = x.sum(0)
        for _ in range(n - 1):
            running = lax.ppermute(running, "data", [(i, (i + 1) % n) for i in range(n)])
            mine = mine + running
        return mine

    verdict = check(split(body, check_vma=False), X, mesh=MESH)
    assert verdict.ok
    (finding,) = verdict.findings
    assert finding.code == "SW203"
    assert "psum" not in finding.remedy
    assert "ring" in finding.remedy


def test_a_mean_of_what_is_the_same_is_mentioned_but_right():
    verdict = check(split(lambda x: lax.pmean(total(x), "data"), check_vma=False), X, mesh=MESH)
    assert verdict.ok
    assert {f.code for f in verdict.findings} == {"SW201"}


# --- lines


def test_the_line_is_the_users_and_not_the_librarys():
    """optax adds up the norm; the user's line called it."""

    def body(grads):
        norm = optax.tree.norm(grads)  # here
        return lax.psum(norm, "data")  # or here

    verdict = check(split(body), X, mesh=MESH)
    (finding,) = certain(verdict)
    assert finding.where.file == __file__
    assert finding.where.line in {line_of(body, "# here"), line_of(body, "# or here")}


def test_where_libraries_live(tmp_path, monkeypatch):
    """Those of one user, and those installed into a folder of an application."""
    user, app, own = (tmp_path / name for name in ("local/site-packages", "vendor", "project"))
    for folder in (user, app / "jax-0.10.2.dist-info", own):
        folder.mkdir(parents=True)
    found = list(library_folders(["", str(own), str(user), str(app)]))
    assert {user, app} <= {*found}
    assert own not in found
    monkeypatch.chdir(app)  # the user's own files are there
    assert app not in list(library_folders([str(app)]))


def test_a_library_in_site_packages_is_named_as_the_way_through(tmp_path, monkeypatch):
    source = "from jax import lax\ndef reduce(x):\n    return lax.psum(x, 'data')\n"
    file = tmp_path / "site-packages" / "somelib.py"
    file.parent.mkdir()
    file.write_text(source)
    module = types.ModuleType("somelib")
    exec(compile(source, str(file), "exec"), module.__dict__)
    monkeypatch.setitem(sys.modules, "somelib", module)
    monkeypatch.setattr("shardwise._jax.LIBRARIES", (str(file.parent),))

    def body(x):
        return module.reduce(x.mean())  # here

    (finding,) = certain(check(split(body), X, mesh=MESH))
    assert finding.where.line == line_of(body, "# here")
    assert finding.where.through == "somelib.reduce"
    assert "through somelib.reduce" in str(finding)


def test_the_line_inside_a_jitted_function():
    @jax.jit
    def loss(x):
        return lax.psum(x.mean(), "data")  # here

    (finding,) = certain(check(split(lambda x: loss(x)), X, mesh=MESH))
    assert finding.where.text.endswith("# here")


def test_the_line_of_a_function_that_jax_jits_itself():
    """Inside `jnp.cumsum` JAX keeps no trace of the caller; the call has it."""

    def body(x):
        return jnp.cumsum(x)  # here

    (finding,) = certain(check(split(body, out_specs=P("data")), X[:, 0], mesh=MESH))
    assert finding.where.line == line_of(body, "# here")


@pytest.mark.parametrize("wrap", [jax.jit, jax.checkpoint])
def test_the_line_of_the_gradient_of_a_wrapped_loss(wrap):
    loss = wrap(lambda w, x: jnp.mean(jax.nn.relu(x @ w) ** 2))

    def body(w, x):
        return jax.grad(loss)(w, x)  # here

    step = split(body, in_specs=(P(), P("data")))
    (finding,) = certain(check(step, normal(3), X, mesh=MESH))
    assert finding.code == "SW401"
    assert finding.where.line == line_of(body, "# here")
    assert (
        "is 4 times what it is on one device: autodiff sums this gradient over 'data'"
        in finding.message
    )


def test_arguments_are_left_as_they_are():
    x = jnp.asarray(X)
    before = np.array(x)
    check(jax.jit(split(total), donate_argnums=0, static_argnames="mesh"), x, mesh=MESH)
    np.testing.assert_array_equal(x, before)


def test_a_program_that_takes_the_ambient_mesh():
    def program(x):
        return jax.shard_map(total, in_specs=P("data"), out_specs=P())(x)

    assert check(program, X, mesh=MESH)


def test_an_absolute_tolerance_also_holds_where_the_reference_is_zero():
    def noise(x, *, mesh):
        body = lambda x: lax.psum(x.sum() * 0.0 + 1e-9 * (mesh.size - 1), "data")  # noqa: E731
        return jax.shard_map(body, mesh=mesh, in_specs=P("data"), out_specs=P())(x)

    x, sizes = jnp.ones(8), {"data": [1, 2]}
    assert not check(noise, x, mesh=sizes)
    assert check(noise, x, mesh=sizes, atol=1e-6)
    assert not check(noise, x, mesh=sizes, atol=1e-12)


# --- what a reference shows that the mesh has no part in


@pytest.mark.parametrize("judge", [sw.check, sw.prove])
def test_an_error_of_the_user_on_one_mesh_of_several_says_on_which(judge):
    program = split(lambda x: total(x.reshape(2, -1)))
    with pytest.raises(TypeError, match="reshape") as caught:
        judge(program, np.ones(6, "float32"), mesh={"data": [1, 3, 6]})
    assert "shardwise: while tracing on {data: 6}" in caught.value.__notes__
    if judge is sw.check:
        with pytest.raises(ZeroDivisionError) as caught:
            check(split(total), X, mesh=MESH, reference=lambda x: 1 / 0)
        assert caught.value.__notes__ == ["shardwise: while computing the reference"]


class TestOnOneDeviceAlready:
    @pytest.mark.parametrize("sizes", [[1], [1, 2, 4], [2, 4]])
    @pytest.mark.parametrize("other", [lambda x: x.sum() * 2, lambda x: x.sum() + 100])
    def test_it_is_not_blamed_on_the_sharding(self, sizes, other):
        mesh = {"data": sizes}
        verdict = check(split(total), X, mesh=mesh, reference=other)
        (finding,) = certain(verdict)
        assert finding.code == "SW110"
        assert "on one device already" in finding.message
        assert finding.message.endswith("that is not the sharding")
        assert not finding.where.file

    def test_another_shape(self):
        (finding,) = certain(check(split(total), X, mesh=MESH, reference=lambda x: x[0]))
        assert finding.code == "SW110"
        assert "is float32[] on one device already, and the reference gives float32[3]" in str(
            finding
        )

    def test_what_the_sharding_does_besides_is_told_as_well(self):
        verdict = check(split(too_large), X, mesh=MESH, reference=lambda x: x.sum() + 100)
        assert [finding.code for finding in certain(verdict)] == ["SW110", "SW401"]
        assert "is 4 times what it is on one device" in certain(verdict)[1].message

    def test_only_the_results_that_differ(self):
        program = split(lambda x: (total(x), lax.pmean(x.mean(), "data")), (WHOLE, WHOLE))
        verdict = check(program, X, mesh=MESH, reference=lambda x: (x.sum(), x.mean() + 1))
        (finding,) = certain(verdict)
        assert (finding.code, finding.leaf) == ("SW110", "result[1]")

    def test_a_mistake_of_the_sharding_alone_is_told_as_before(self):
        verdict = check(split(too_large), X, mesh=MESH, reference=lambda x: x.mean())
        assert [finding.code for finding in certain(verdict)] == ["SW401"]


class TestAxesThatWereNotVaried:
    def test_an_axis_that_was_only_ever_one(self):
        verdict = check(split(total), X, mesh={"data": 1, "other": [1, 2]})
        told = [str(one) for one in verdict.findings if one.code == "SW502"]
        assert verdict
        assert told == [
            "SW502: axis 'data' was only ever 1: what goes wrong along it could not be seen\n"
            '  Remedy: mesh={"data": [1, 2, 4, 8], ...}.'
        ]
        assert str(verdict).startswith("program: passed a weak test on")

    def test_an_axis_that_the_program_does_not_use(self):
        verdict = check(split(total), X, mesh={"data": [1, 2], "other": 1})
        assert str(verdict) == "program: right on {data: 1, other: 1}, {data: 2, other: 1}"

    def test_several_axes_that_are_varied(self):
        verdict = check(split(total), X, mesh={"data": [1, 2], "other": [1, 2]})
        assert "SW502" not in {one.code for one in verdict.findings}


# --- numbers that leave the range of their type


@pytest.mark.parametrize(
    ("x", "wrong"),
    [
        (jnp.asarray([-12500.0] * 4 + [20000.0] * 4, "float16"), (2,)),
        (jnp.asarray([-3000.0] * 32 + [3500.0] * 32, "float16"), (2, 4, 8)),
        (jnp.asarray([-1.0] * 4 + [1.5] * 4, "float16"), ()),
    ],
)
def test_an_overflow_on_some_meshes_is_told_where_it_is(x, wrong):
    """A proof knows no end of numbers."""
    program = split(total)
    sizes = (1, 2, 4, 8)
    found = [sw.simulate(program, mesh=sw.mesh(data=n))(x) for n in sizes]
    assert tuple(n for n, one in zip(sizes, found, strict=True) if not jnp.isfinite(one)) == wrong
    verdict = check(program, x, mesh={"data": list(sizes)})
    assert verdict.wrong_on == tuple(f"{{data: {n}}}" for n in wrong)
    assert not set(verdict.wrong_on) & set(verdict.proved_on)
    assert {finding.code for finding in verdict.findings} == ({"SW107"} if wrong else set())
    if wrong and x.dtype == "float16":
        assert "range of float16 (65504)" in verdict.findings[0].remedy


# --- what is silenced


def noise(key, x):
    own = jax.random.fold_in(key, lax.axis_index("data"))
    noisy = x + jax.random.normal(own, x.shape)  # shardwise: ignore[SW106]
    return noisy, total(x) * (1.5 if lax.axis_size("data") == 4 else 1)


def test_a_mesh_is_not_blamed_for_what_is_silenced():
    program = split(noise, out_specs=(PARTS, WHOLE), in_specs=(WHOLE, PARTS))
    verdict = check(program, jax.random.key(0), jnp.arange(8.0), mesh=MESH)
    assert verdict.wrong_on == ("{data: 4}",)
    assert "right but for what is silenced on {data: 1}, {data: 2}" in str(verdict)


# --- tolerances of other kinds


def test_a_tolerance_is_any_number():
    x = jnp.arange(8.0)
    for number in (decimal.Decimal("1e-3"), fractions.Fraction(1, 1000), np.float32(1e-3)):
        assert check(split(total), x, mesh=MESH, rtol=number, atol=number)
    with pytest.raises(sw.ShardwiseError, match=r"rtol is np\.True_"):
        check(split(total), x, mesh=MESH, rtol=np.True_)


def test_empty_results_show_nothing():
    program = split(lambda x: lax.psum(x[:0], "data"))
    verdict = check(program, jnp.arange(8.0), mesh=MESH)
    assert "SW501: every result is empty" in str(verdict)
    assert "passed a weak test" in str(verdict)


def test_arguments_without_elements_are_not_told_to_be_drawn():
    (finding,) = check(split(total), np.ones((0,), np.float32), mesh=MESH).findings
    assert finding.code == "SW501"
    assert "no argument has an element" in finding.message
    assert "have elements" in finding.remedy


# --- devices that wait on some meshes alone


def waits_on_two(x):
    if lax.axis_size("data") != 2:
        return lax.psum(x.mean(), "data")
    first = lax.axis_index("data") == 0
    return lax.cond(first, total, jnp.sum, x)


def test_a_deadlock_on_one_mesh_and_a_factor_on_another():
    program = split(waits_on_two, check_vma=False)
    verdict = check(program, jnp.arange(16.0), mesh=MESH)
    assert verdict.wrong_on == ("{data: 2}", "{data: 4}")
    found = {finding.code: finding.mesh for finding in verdict.findings}
    assert found == {"SW301": "{data: 2}", "SW401": "{data: 4}"}


def waits_on_eight(x):
    late = lax.axis_index("data") >= 4
    y = lax.cond(late, lambda v: lax.psum(v, "data"), lambda v: v, x.sum())
    return total(x), lax.pmax(y, "data") * 0


def test_a_mesh_is_not_blamed_for_a_deadlock_on_a_larger_one():
    program = split(waits_on_eight, check_vma=False)
    verdict = check(program, jnp.arange(16.0), mesh={"data": [1, 2, 4, 8]})
    assert verdict.wrong_on == ("{data: 8}",)


def waits_at_the_second(x):
    here = lax.axis_index("data")
    a = lax.cond(here >= 0, total, jnp.sum, x)
    b = lax.cond(here == 0, lambda x: lax.pmax(x.sum(), "data"), jnp.sum, x)  # deadlock
    return a + b


def test_a_deadlock_is_named_where_it_is():
    program = split(waits_at_the_second, check_vma=False)
    verdict = check(program, jnp.arange(16.0), mesh=MESH)
    (finding,) = (one for one in verdict.findings if one.code == "SW301")
    assert finding.where.line == line_of(waits_at_the_second, "# deadlock")


def test_a_reference_in_numpy_may_take_the_mesh():
    def reference(x, *, mesh):
        assert mesh.shape == {"data": 1}
        return np.asarray(x, "float64").sum().astype("float32")

    assert check(split(total), jnp.arange(8.0), mesh=MESH, reference=reference)
