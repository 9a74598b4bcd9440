"""The warm-up: what is run before a model takes requests, on which samples, and what a failure means."""

import time
import zipfile

import numpy as np
import pytest

from serving.errors import ModelLoadFailed
from serving.models import echo, python
from serving.replica.execution import Execution
from serving.replica.samples import samples_of
from serving.replica.warmup import warm_up
from serving.values import Signature, TensorSpec


@pytest.fixture(autouse=True)
def _virtual_time(monkeypatch):
    """It passes only where somebody sleeps."""
    now_ns = 0

    def sleep(seconds):
        nonlocal now_ns
        now_ns += round(1e9 * seconds)

    monkeypatch.setattr(time, "sleep", sleep)
    monkeypatch.setattr(time, "monotonic", lambda: 1e-9 * now_ns)
    monkeypatch.setattr(time, "monotonic_ns", lambda: now_ns)


def specs(*declared):
    return tuple(
        TensorSpec(name=name, datatype=kind, shape=shape) for name, kind, shape in declared
    )


class Doubles:
    """Doubles `x`, keeps what it was asked; the first call is slow, and some numbers make it fail."""

    signature = Signature(
        inputs=specs(("x", "FP32", (-1, 2))), outputs=specs(("y", "FP32", (-1, 2)))
    )
    first_s = item_s = 0.0

    def __init__(self, **facts):
        self.calls = []
        self.__dict__.update(facts)

    def predict_batch(self, inputs):
        x = inputs["x"]
        time.sleep(self.item_s * len(x) if self.calls else self.first_s)
        self.calls.append(len(x))
        self.seen = x.copy()
        if (x == -1).any():
            raise ValueError("minus one is not liked")
        if (x == -2).any() and len(x) > 1:
            raise ValueError("minus two is not liked in company")
        if (x == -3).any():
            return {"y": x[1:]}
        return {"y": x * 2}


def warm(model, samples=None, max_items=8, within_s=5.0, shapes=()):
    found = samples_of(model, samples, shapes) if within_s else ""
    return warm_up(Execution(model), found, max_items=max_items, within_s=within_s)


def saved(tmp_path, **arrays):
    path = tmp_path / "samples.npz"
    np.savez(path, **arrays)
    return path


def test_the_first_call_is_paid_before_the_first_request(tmp_path):
    """Single items until a call is as fast as the one before, then the largest batch."""
    model = Doubles(first_s=0.2, item_s=0.001)
    warmed = warm(model, saved(tmp_path, x=np.array([[1, 2], [3, 4], [5, 6]], "f8")))
    assert model.calls[:2] == [1, 1]
    assert model.calls[-1] == 8
    assert set(model.calls) == {1, 8}
    assert model.seen.dtype == np.float32
    assert model.seen[:, 0].tolist() == [1, 3, 5, 1, 3, 5, 1, 3]
    assert warmed.source == "file"
    assert warmed.batch_s == {1: pytest.approx(0.001), 8: pytest.approx(0.008)}
    assert warmed.took_s == pytest.approx(0.209)
    for items, stages in warmed.stages_s.items():
        assert sum(stages) == warmed.batch_s[items]
    assert set(warmed.as_json()["stages_s"]) == {"1", "8"}


def test_a_second_slow_call_is_paid_too():
    """Runtimes that compile at the second call: it runs until the times have settled."""

    class Compiles(Doubles):
        def predict_batch(self, inputs):
            if len(self.calls) == 1:
                time.sleep(0.5)
            return super().predict_batch(inputs)

    model = Compiles(sample_inputs=lambda: {"x": [[1.0, 2.0]]}, first_s=0.05)
    assert warm(model, max_items=1).batch_s[1] == 0.0
    assert len(model.calls) >= 3


def test_what_would_end_too_late_is_not_begun():
    """A slow model gets a smaller batch than the largest, or single items only; one item is always run."""
    samples = {"sample_inputs": lambda: {"x": np.ones((1, 2))}}
    model = Doubles(item_s=0.1, **samples)
    warmed = warm(model, max_items=4096, within_s=2.0)
    assert 1 < max(model.calls) < 20
    assert warmed.took_s <= 2.0 + 1e-9
    model = Doubles(first_s=0.05, **samples)
    assert set(warm(model, within_s=0.01).batch_s) == {1}
    assert model.calls == [1], "the first call is made in any case"


def test_nothing_is_run_without_time_or_samples():
    """0 turns it off; a model that may do anything is not tried on what was made up."""
    for model, within_s in (
        (Doubles(), 1.0),
        (Doubles(sample_inputs=lambda: None), 1.0),
        (Doubles(is_pure=True), 0.0),
    ):
        assert warm(model, within_s=within_s).as_json() == {
            "source": "none",
            "warmup_s": 0.0,
            "batch_s": {},
            "stages_s": {},
        }
        assert model.calls == []


@pytest.mark.parametrize(
    ("phrase", "arrays"),
    [
        ("ValueError: minus one is not liked", {"x": np.full((1, 2), -1.0)}),
        ("minus one is not liked .in a batch of 8", {"x": np.array([[1.0, 1], [-1, -1]])}),
        (r"output 'y' of shape \[0, 2\]", {"x": np.full((1, 2), -3.0)}),
        (r"shape is \[1, 3\], the model takes \[-1, 2\]", {"x": np.ones((1, 3))}),
        (r"has no samples of the input 'x', only labels", {"labels": np.ones(3)}),
        ("are <U1, expected FP32", {"x": np.array([["a", "b"]])}),
        ("has no sample of the input 'x'", {"x": np.ones((0, 2))}),
    ],
)
def test_real_samples_that_fail_are_a_reason_not_to_serve(phrase, arrays, tmp_path):
    """Raised, broken contract, unfit or missing, of a file and of the model's own: the text tells which."""
    with pytest.raises(ModelLoadFailed, match=phrase):
        warm(Doubles(), saved(tmp_path, **arrays))
    with pytest.raises(ModelLoadFailed, match=phrase):
        warm(Doubles(sample_inputs=lambda: arrays))


def test_a_model_that_fails_in_company_only_is_served_as_requests_are(tmp_path):
    """A batch that fails is halved until its members succeed, here as later."""
    model = Doubles()
    assert set(warm(model, saved(tmp_path, x=np.full((1, 2), -2.0))).batch_s) == {1, 8}
    assert model.calls[-3:] == [2, 1, 1]


def test_a_file_that_is_no_npz_is_told(tmp_path):
    """Missing, garbage, or arrays of which the first rows cannot be read alone: one line with its path."""
    (tmp_path / "bad.npz").write_bytes(b"no zip")
    np.savez(tmp_path / "columns.npz", x=np.ones((3, 2), order="F"))
    np.savez(tmp_path / "unknown.npz", x=np.ones((3, 2)))
    packed = bytearray((tmp_path / "unknown.npz").read_bytes())
    packed[packed.find(b"PK\x01\x02") + 10] = 99  # a way of packing that nobody knows
    (tmp_path / "unknown.npz").write_bytes(packed)
    for name in ("bad.npz", "none.npz", "columns.npz", "unknown.npz"):
        with pytest.raises(ModelLoadFailed, match=rf"{name} cannot be read as npz"):
            warm(Doubles(), tmp_path / name)


def test_no_more_rows_are_read_than_are_run(tmp_path):
    """What is damaged behind them is not seen: a file may be larger than the memory."""
    path = saved(tmp_path, x=np.ones((1 << 16, 2), "f4"))
    data = bytearray(path.read_bytes())
    data[len(data) // 2] ^= 1
    path.write_bytes(data)
    with pytest.raises(zipfile.BadZipFile), np.load(path) as whole:
        whole["x"]
    assert warm(Doubles(), path).source == "file"


def test_unequal_numbers_of_samples_are_told(tmp_path):
    """Of each input how many; one of which there is one sample is the same for all."""

    class Two(Doubles):
        signature = Signature(
            inputs=specs(("x", "FP32", (-1, 2)), ("k", "FP32", (-1,))),
            outputs=Doubles.signature.outputs,
        )

    with pytest.raises(ModelLoadFailed, match="per input: 3 of 'x', 2 of 'k'"):
        warm(Two(), saved(tmp_path, x=np.ones((3, 2)), k=np.ones(2)))
    assert warm(Two(), saved(tmp_path, x=np.ones((3, 2)), k=np.ones(1))).source == "file"


def test_made_up_inputs_that_fail_are_no_fault_of_the_model(caplog):
    """It is loaded, with what was wrong, and no traceback is logged."""

    class NotZero(Doubles):
        is_pure = True

        def predict_batch(self, inputs):
            if np.abs(inputs["x"]).max() < 100:
                raise ValueError("nothing to do")
            return super().predict_batch(inputs)

    warmed = warm(NotZero())
    assert warmed.source == "made-up"
    assert warmed.as_json()["failure"] == "ValueError: nothing to do"
    assert not caplog.records


def test_made_up_inputs_fit_any_signature():
    """Free dimensions have the sizes that were told, texts are empty, a fixed first dimension is one request."""
    inputs = specs(("a", "FP32", (-1, -1, 3)), ("b", "BYTES", (-1, 2)), ("c", "BOOL", (-1,)))
    seen = []

    class Any:
        is_pure = True
        signature = Signature(inputs=inputs, outputs=specs(("n", "INT64", (-1,))))

        def predict_batch(self, given):
            seen.append({name: (array.shape, array.dtype) for name, array in given.items()})
            assert not given["b"].any()
            return {"n": np.zeros(len(given["a"]), np.int64)}

    assert "input 'a', axis 1" in warm(Any(), max_items=2).failure
    assert warm(Any(), max_items=2, shapes=["a=5x3"]).failure is None
    kinds = {"a": np.float32, "b": object, "c": bool}
    for items, given in ((1, seen[0]), (2, seen[-1])):
        shapes = {"a": (items, 5, 3), "b": (items, 2), "c": (items,)}
        assert given == {name: (shapes[name], kinds[name]) for name in kinds}

    class Fixed(Doubles):
        is_pure = True
        signature = Signature(
            inputs=specs(("x", "FP32", (4, 2))), outputs=specs(("y", "FP32", (4, 2)))
        )

    model = Fixed()
    assert set(warm(model).batch_s) == {1}
    assert set(model.calls) == {4}
    assert warm(echo.Model(None, threads=1), max_items=64, shapes=["data=3"]).failure is None


def test_a_python_model_brings_its_own_samples(tmp_path):
    """An attribute or a method, texts among them; of a function, its one input's items."""
    file = tmp_path / "own.py"
    file.write_text(
        "T = [{'name': 't', 'datatype': 'BYTES', 'shape': [-1]}]\n"
        "seen = []\n"
        "class Attribute:\n"
        "    inputs = outputs = T\n"
        "    sample_inputs = {'t': ['a', 'bc']}\n"
        "    def predict_batch(self, inputs):\n"
        "        seen.append(list(inputs['t']))\n"
        "        return inputs\n"
        "class Method(Attribute):\n"
        "    def sample_inputs(self):\n"
        "        return {'t': [b'd']}\n"
        "def function(items):\n"
        "    seen.append(items)\n"
        "    return items\n"
        "function.inputs = function.outputs = T\n"
        "function.sample_inputs = ['e']\n"
    )
    for name, expected in (
        ("Attribute", [b"a", b"bc", b"a"]),
        ("Method", [b"d"] * 3),
        ("function", [b"e"] * 3),
    ):
        model = python.Model(file.with_name(f"own.py:{name}"), threads=1)
        assert warm(model, max_items=3).source == "model"
        seen = model._predict.__globals__["seen"]
        assert [type(item) for item in seen[-1]] == [bytes] * 3
        assert seen[-1] == expected
