"""Where data comes from: arrays, datasets, iterables, and what is wrong with them."""

from __future__ import annotations

import sys

import jax.numpy as jnp
import numpy as np
import pytest
from numpy.dtypes import StringDType

from shardwise import ShardingError, UnsupportedError
from shardwise._runtime.evaluate import Sum
from shardwise._runtime.evaluate.data import kinds

from ..optional import needed
from ..support import normal
from .helpers import Lazy, devices, evaluate, linear_data, squared_error

W = normal(3)
DATA = linear_data(103)


@pytest.fixture(scope="module")
def want() -> float:
    return run(DATA)


def run(data, **options) -> float:
    return evaluate(squared_error, W, data, batch=16, mesh=devices(2), **options)["mean"]


def examples():
    return [{"x": x, "y": y} for x, y in zip(DATA["x"], DATA["y"], strict=True)]


def batches(*sizes):
    """Batches of these sizes in turn, for as long as there is data."""
    start = number = 0
    while start < 103:
        stop = start + sizes[number % len(sizes)]
        yield {name: array[start:stop] for name, array in DATA.items()}
        start, number = stop, number + 1


class Dataset:
    def __len__(self):
        return 103

    def __getitem__(self, index):
        return {"x": DATA["x"][index], "y": float(DATA["y"][index])}


class ManyAtOnce(Dataset):
    def __init__(self):
        self.calls = 0

    def __getitems__(self, indices):
        self.calls += 1
        return [self[k] for k in indices]


class Loader:
    """Iterable, with a length in batches: the shape of a torch DataLoader."""

    def __len__(self):
        return 11

    def __iter__(self):
        return batches(10)


class Refilled:
    """One buffer for all examples, or for all batches."""

    def __init__(self, rows):
        self._buffer = np.zeros(rows, np.float32) if rows else np.zeros((), np.float32)

    def __len__(self):
        return 50

    def __getitem__(self, index):
        self._buffer[...] = index
        return self._buffer

    def batches(self):
        for index in range(50):
            yield self[index]


class TestMemoryThatIsFilledAgain:
    def test_examples(self):
        assert evaluate(lambda _, b: b, None, Refilled(0), batch=8)["mean"] == 24.5

    def test_batches(self):
        assert evaluate(lambda _, b: b, None, Refilled(10).batches(), batch=20)["mean"] == 24.5


class TestExamplesOfOtherDtypes:
    @pytest.mark.parametrize(
        ("data", "what"),
        [
            ([0, 0.5], "data is float64, expected int64"),
            ([{"y": 1}, {"y": 0.5}], r"data\['y'\] is float64"),
            ([True, 0.25], "data is float64, expected bool"),
            ([1.0, 2j], "data is complex128, expected float64"),
            ([1.0, "2.5"], "data is <U3, expected float64"),
        ],
    )
    def test_are_refused(self, data, what):
        with pytest.raises(ShardingError, match=rf"(?s)example 1 of the data: {what}.*one dtype"):
            evaluate(lambda _, b: b["y"] if isinstance(b, dict) else b, None, data)

    def test_unless_nothing_is_lost(self):
        assert evaluate(lambda _, b: b, None, [0.5, 1, True, np.float32(0.5)])["mean"] == 0.75


class TestKinds:
    def test_memory_mapped(self, tmp_path, want):
        for name, array in DATA.items():
            np.save(tmp_path / name, array)
        mapped = {name: np.load(tmp_path / f"{name}.npy", mmap_mode="r") for name in DATA}
        assert run(mapped) == want

    def test_of_another_byte_order(self, want):
        assert run({name: array.astype(">f4") for name, array in DATA.items()}) == want

    def test_tensorstore(self, want):
        tensorstore = needed("tensorstore", "that its arrays are read")
        assert run({name: tensorstore.array(array) for name, array in DATA.items()}) == want

    def test_jax_arrays(self, want):
        assert run({name: jnp.asarray(array) for name, array in DATA.items()}) == want

    def test_jax_arrays_on_an_accelerator(self, want, monkeypatch):
        monkeypatch.setattr(kinds, "_is_on_accelerator", lambda leaf: True)
        assert run({name: jnp.asarray(array) for name, array in DATA.items()}) == want

    def test_anything_with_shape_dtype_and_slices(self):
        data = Lazy(100)
        assert evaluate(lambda _, b: Sum(b), None, data, batch=16)["sum"] == 4950
        assert data.reads == [(k, min(k + 16, 100)) for k in range(0, 100, 16)]

    def test_a_tuple_and_a_single_array(self):
        x = normal(20)
        got = evaluate(lambda _, b: Sum(b[0] * b[1]), None, (x, np.ones_like(x)), batch=8)
        assert got["sum"] == evaluate(lambda _, b: Sum(b), None, x, batch=8)["sum"]

    def test_a_dataset(self, want):
        assert run(Dataset()) == want

    def test_a_dataset_that_gives_many_at_once(self, want):
        data = ManyAtOnce()
        assert run(data) == want
        assert data.calls == 7

    def test_a_list_of_examples(self, want):
        assert run(examples()) == want

    @pytest.mark.parametrize("sizes", [(16,), (10,), (103,), (1,), (3, 40, 1, 16, 0), (200,)])
    def test_batches_of_any_size(self, sizes, want):
        assert run(batches(*sizes)) == want

    def test_a_loader(self, want):
        assert run(Loader()) == want

    def test_the_batch_follows_the_first_of_an_iterable(self):
        assert evaluate(squared_error, W, batches(10)).batch == 10

    def test_hdf5(self, tmp_path, want):
        h5py = needed("h5py", "that HDF5 files are read")
        with h5py.File(tmp_path / "data.h5", "w") as file:
            for name, array in DATA.items():
                file[name] = array
            assert run({"x": file["x"], "y": file["y"]}) == want

    def test_zarr(self, tmp_path, want):
        zarr = needed("zarr", "that its arrays are read")
        stored = {}
        for name, array in DATA.items():
            chunks = (25, 3)[: array.ndim]
            stored[name] = zarr.create_array(
                str(tmp_path / name), shape=array.shape, dtype="float32", chunks=chunks
            )
            stored[name][:] = array
        assert run(stored) == want

    def test_arrays_that_know_no_copy(self, want):
        """NumPy warns where it asks such an array for one."""

        class Tensor:
            def __init__(self, array):
                self.array, self.shape, self.dtype = array, array.shape, array.dtype

            def __array__(self, dtype=None):
                return self.array

        rows = [{"x": Tensor(x), "y": y} for x, y in zip(DATA["x"], DATA["y"], strict=True)]
        assert run(rows) == want

    def test_torch(self, want):
        torch = needed("torch", "that its tensors, datasets and loaders are read")
        tensors = {name: torch.from_numpy(array) for name, array in DATA.items()}
        assert run(tensors) == want
        dataset = torch.utils.data.TensorDataset(tensors["x"], tensors["y"])

        def fn(w, batch):
            return squared_error(w, {"x": batch[0], "y": batch[1]})

        loader = torch.utils.data.DataLoader(dataset, batch_size=10)
        plainly = evaluate(fn, W, (DATA["x"], DATA["y"]), batch=16)["mean"]
        for data in (dataset, loader):
            assert evaluate(fn, W, data, batch=16)["mean"] == plainly

    def test_grain(self, want):
        grain = needed("grain", "that its datasets are read")
        source = grain.MapDataset.source(examples())
        assert run(source) == want
        assert run(source.batch(10).to_iter_dataset()) == want

    def test_hugging_face(self, want):
        datasets = needed("datasets", "that Hugging Face's datasets are read")
        data = datasets.Dataset.from_dict({k: v.tolist() for k, v in DATA.items()})
        assert run(data.with_format("numpy")) == want


class TestListsOfNumbers:
    """As a Hugging Face dataset gives them; to JAX they are that many scalars."""

    SQUARE = np.arange(16.0, dtype=np.float32).reshape(4, 4)

    def first(self, data) -> float:
        """A mean that tells rows from columns, in batches as large as a row is long."""
        return evaluate(lambda _, b: b["x"][:, 0], None, data, batch=4)["mean"]

    def test_a_list_in_an_example_is_an_array(self):
        assert self.first([{"x": row} for row in self.SQUARE.tolist()]) == 6.0

    @pytest.mark.parametrize("kind", [np.float16, np.float32, np.float64, np.int32, np.uint8])
    def test_and_one_of_numpys_numbers(self, kind):
        assert self.first([{"x": list(row.astype(kind))} for row in self.SQUARE]) == 6.0
        assert self.first(iter([{"x": list(map(list, self.SQUARE.astype(kind)))}])) == 6.0

    def test_and_one_in_a_batch(self):
        assert self.first(iter([{"x": self.SQUARE[k : k + 2].tolist()} for k in (0, 2)])) == 6.0

    def test_lists_of_lists(self):
        pairs = [{"x": row.reshape(2, 2).tolist()} for row in self.SQUARE]
        found = evaluate(lambda _, b: b["x"][:, 1, 0], None, pairs, batch=4)["mean"]
        assert found == 8.0

    def test_a_dataset_of_lists_is_as_one_of_arrays(self, want):
        assert run([{"x": one["x"].tolist(), "y": float(one["y"])} for one in examples()]) == want

    def test_a_list_of_arrays_is_a_tree(self):
        pairs = [{"x": [np.float32(k), np.full(2, k)]} for k in range(4)]
        assert evaluate(lambda _, b: b["x"][1][:, 0] + b["x"][0], None, pairs)["mean"] == 3.0

    def test_a_tuple_of_numbers_is_a_tree(self):
        assert evaluate(lambda _, b: b[1], None, [(0.0, 1.0), (0.0, 3.0)])["mean"] == 2.0

    def test_a_list_of_batches_columns_is_a_tree(self):
        found = evaluate(lambda _, b: b[1], None, iter([[[0.0, 0.0], [1.0, 3.0]]]))
        assert found["mean"] == 2.0

    def test_ragged_lists(self):
        with pytest.raises(ShardingError, match=r"example 0 of .*: data\['x'\] is a list of lis"):
            self.first([{"x": [[1.0, 2.0], [3.0]]}])
        with pytest.raises(ShardingError, match=r"batch 1: data\['x'\] is a list of lists that"):
            self.first(iter([{"x": [[1.0]]}, {"x": [[1.0, 2.0], [3.0]]}]))

    @pytest.mark.parametrize("ragged", [[[1.0], []], [[], [1.0]], [1.0, []], [[np.int8(1)], []]])
    def test_lists_of_which_some_are_empty(self, ragged):
        with pytest.raises(ShardingError, match=r"data\['x'\] is a list of lists that differ"):
            self.first([{"x": ragged}] * 4)

    @pytest.mark.parametrize("broken", [[1.0, None], [[1.0, 2.0], [None, 3.0]], [[1.0], None]])
    def test_lists_with_none_in_them(self, broken):
        with pytest.raises(ShardingError, match=r"example 0 of .* numbers with None in it"):
            self.first([{"x": broken}] * 4)
        with pytest.raises(ShardingError, match=r"batch 0: .* numbers with None in it"):
            self.first(iter([{"x": broken}]))

    def test_examples_of_other_lengths(self):
        with pytest.raises(
            ShardingError, match=r"example 1 of .* data\['x'\] is \[1\], expected \[2\]"
        ):
            self.first([{"x": [1.0, 2.0]}, {"x": [3.0]}])

    def test_a_list_by_itself_could_be_two_things(self):
        with pytest.raises(UnsupportedError, match="one array or several leaves"):
            evaluate(lambda _, b: b[:, 0], None, [[1.0, 2.0], [3.0, 4.0]])


class TestRefusals:
    @pytest.mark.parametrize("data", [np.zeros((0, 3)), {"x": np.zeros(0)}, [], iter([])])
    def test_nothing(self, data):
        with pytest.raises(ShardingError, match="there are no examples in it"):
            run(data)

    def test_an_empty_dataset(self):
        class Empty(Dataset):
            def __len__(self):
                return 0

        with pytest.raises(ShardingError, match=r"no examples in it .Empty of 0 examples"):
            run(Empty())

    def test_leaves_of_several_lengths(self):
        with pytest.raises(ShardingError) as caught:
            run({"x": np.zeros((4, 3)), "y": np.zeros(5), "z": np.float32(0)})
        message = str(caught.value)
        for line in ("data['x']: 4 rows", "data['y']: 5 rows", "data['z']: a scalar"):
            assert line in message

    def test_a_list_of_rows_is_told_in_a_few_lines(self):
        batch = {"x": [*np.zeros((5000, 3))], "y": np.zeros(5000)}
        with pytest.raises(ShardingError, match=r"and 4993 more(.|\n)*np.stack") as caught:
            run(iter([batch]))
        assert len(str(caught.value).splitlines()) < 15

    def test_a_complex_number_that_does_not_fit(self):
        with pytest.raises(ShardingError, match=r"1e\+39j.* does not fit complex64"):
            evaluate(lambda w, batch: abs(batch["x"]), W, {"x": np.full(3, 1e39j)}, batch=4)

    @pytest.mark.parametrize(("kind", "name"), [("U1", "<U1"), (StringDType(), "StringDType")])
    def test_text(self, kind, name):
        data = {"x": normal(3), "name": np.array(["a", "b", "c"], kind)}
        with pytest.raises(UnsupportedError, match=rf"data\['name'\]: its dtype is {name}"):
            run(data)

    @pytest.mark.parametrize("kind", ["timedelta64[s]", "datetime64[s]"])
    def test_times(self, kind):
        data = {"x": normal(3), "at": np.zeros(3, kind)}
        with pytest.raises(
            UnsupportedError, match=rf"\['at'\]: its dtype is {kind[:9]}(.|\n)*seconds"
        ):
            run(data)

    @pytest.mark.parametrize("length", [sys.maxsize, sys.maxsize // 1024])
    def test_a_dataset_that_repeats_without_end(self, length):
        class Endless(Dataset):
            def __len__(self):
                return length

        with pytest.raises(ShardingError, match=f"its length is {length}: it repeats without end"):
            run(Endless())

    @pytest.mark.parametrize("data", [None, 3, "a path", {}, object()])
    def test_what_is_no_data(self, data):
        with pytest.raises(UnsupportedError, match="not a supported kind of data"):
            run(data)

    @pytest.mark.parametrize(
        ("data", "found"),
        [
            ({**DATA, "y": DATA["y"].tolist()}, "data['y'] is of type list, not an array"),
            ((DATA["x"], {"y": ["a", "b"]}), "data[1]['y'] is of type list, not an array"),
            ({"x": 3}, "data['x'] is of type int, not an array"),
        ],
    )
    def test_a_leaf_that_is_no_array_is_named(self, data, found):
        with pytest.raises(UnsupportedError) as caught:
            run(data)
        assert found in str(caught.value)
        assert f"np.asarray({found.partition(' ')[0]})" in str(caught.value)

    def test_a_list_of_arrays_could_be_two_things(self):
        with pytest.raises(UnsupportedError, match="a list of 2 arrays"):
            run([DATA["x"], DATA["y"]])

    def test_a_batch_of_another_shape(self):
        def stream():
            yield from list(batches(20))[:2]
            yield {"x": normal(20, 4), "y": normal(20)}

        with pytest.raises(ShardingError) as caught:
            run(stream())
        message = str(caught.value)
        assert "batch 2 of the data: data['x'] is [20, 4], expected [batch, 3]" in message
        assert any("while reading step" in note for note in caught.value.__notes__)

    def test_a_batch_of_another_dtype(self):
        stream = iter([{"x": normal(4)}, {"x": np.arange(4, dtype=np.int32)}])
        with pytest.raises(ShardingError, match=r"batch 1 of the data: data\['x'\] is int32, exp"):
            evaluate(lambda _, b: b["x"], None, stream)

    def test_a_batch_of_another_structure(self):
        stream = iter([{"x": normal(4)}, {"y": normal(4)}])
        with pytest.raises(ShardingError, match=r"batch 1 of the data: data\['x'\] is missing; in"):
            evaluate(lambda _, b: b["x"], None, stream)

    @pytest.mark.parametrize(
        ("second", "found"),
        [
            ({"x": 1.0, "y": None}, "example 1 of the data: data['y'] is None; in the first it is"),
            (
                {"x": 1.0},
                "example 1 of the data: data['y'] is missing; in the first it is an array",
            ),
            ({"x": 1.0, "y": 1.0, "z": 1.0}, "data['z'] is an array; in the first it is missing"),
            ((1.0, 1.0), "data['x'] is missing; in the first it is an array"),
        ],
    )
    def test_an_example_of_another_structure(self, second, found):
        with pytest.raises(ShardingError) as caught:
            evaluate(lambda _, b: b["x"], None, [{"x": 1.0, "y": 1.0}, second])
        assert found in str(caught.value)
        assert "remove such examples" in str(caught.value)

    def test_an_example_of_another_kind_of_container(self):
        with pytest.raises(ShardingError, match=r"its structure is PyTreeDef\(\[\*, \*\]\)"):
            evaluate(
                lambda _, b: b[0], None, [(np.float32(1), normal(2)), [np.float32(1), normal(2)]]
            )

    def test_batches_that_are_single_examples(self):
        with pytest.raises(ShardingError, match=r"(?s)batch 0, .*a scalar.*has to be batched"):
            run(iter(examples()))

    @pytest.mark.parametrize("batch", [None, 3])
    def test_single_examples_that_look_like_batches(self, batch):
        rows = [{"x": x, "more": x} for x in DATA["x"]]
        with pytest.raises(ShardingError) as caught:
            evaluate(lambda w, b: b["x"] @ w + b["more"].sum(-1), W, iter(rows), batch=batch)
        message = str(caught.value)
        assert message.startswith("argument 'data': its arrays (data['more'], data['x']) have one")
        assert "the data seems not to be batched" in message

    def test_a_scalar_of_what_is_batched_is_for_fn(self):
        for data in (iter([DATA["x"]]), DATA["y"]):
            with pytest.raises(ShardingError, match="fn: it did not return per-example values"):
                evaluate(lambda _, b: b.mean(), None, data)
        numbers = iter([DATA["y"]])
        with pytest.raises(ShardingError, match="fn: it did not return per-example values"):
            evaluate(lambda _, b: {"all": b, "one": b.mean()}, None, numbers)

    @pytest.mark.parametrize(
        ("data", "where"),
        [
            (lambda x: {"x": x}, "data['x']: "),
            (lambda x: [{"x": row} for row in x], "example 0 of list"),
            (lambda x: [{"x": row.data} for row in x[:5]] + [{"x": x[5]}], "example 5: "),
            (lambda x: iter([{"x": x}]), "batch 0: "),
        ],
        ids=["arrays", "examples", "a later example", "batches"],
    )
    def test_masked_arrays(self, data, where):
        x = np.ma.masked_greater(normal(20, 3), 0)
        with pytest.raises(UnsupportedError) as caught:
            evaluate(lambda _, b: b["x"].sum(-1), None, data(x), batch=4)
        message = str(caught.value)
        assert message.startswith(where)
        assert "a masked array of NumPy" in message
        assert "~np.ma.getmaskarray(x)" in message

    def test_a_file_or_a_group_of_hdf5(self, tmp_path):
        h5py = needed("h5py", "that open HDF5 files are refused")
        with h5py.File(tmp_path / "data.h5", "w") as file:
            group = file.create_group("inner")
            for name, array in DATA.items():
                group[name] = array
            for data in (file, group):
                with pytest.raises(UnsupportedError) as caught:
                    run(data)
                message = str(caught.value)
                assert f"got h5py.{type(data).__name__}, a mapping" in message
                assert "{'x': data['x'], 'y': data['y']}" in message
            assert run({"x": group["x"], "y": group["y"]}) == run(DATA)

    @pytest.mark.parametrize("given", [3, 20])
    def test_an_array_that_is_not_as_long_as_it_says(self, given):
        class Liar(Lazy):
            def __getitem__(self, rows):
                return np.zeros(given if rows.start >= 32 else rows.stop - rows.start, self.dtype)

        with pytest.raises(ShardingError) as caught:
            evaluate(lambda _, b: b, None, Liar(100), batch=16)
        assert f"data: a slice of 16 rows has shape [{given}]" in str(caught.value)
        assert "step 2 (examples 32 to 47)" in caught.value.__notes__[0]

    def test_an_example_of_another_shape(self):
        data = examples()
        data[50]["x"] = normal(5)
        with pytest.raises(ShardingError, match=r"example 50 of the data: data\['x'\] is \[5\]"):
            run(data)
