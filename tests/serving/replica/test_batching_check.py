"""A model's answers in company: what holds is batched, the rest is served whole, and padding changes nothing."""

import numpy as np
import pytest

from serving.replica.batching_check import check_batching
from serving.replica.execution import Execution
from serving.replica.samples import Samples, samples_of
from serving.replica.warmup import entries_of
from serving.tensors.item_axes import detect_item_axes
from serving.values import DeclaredInputs, Signature, TensorSpec

RNG = np.random.default_rng(0)


def fp32(name, *shape):
    return TensorSpec(name=name, datatype="FP32", shape=shape)


class Computes:
    """A model of one function that does nothing but compute."""

    is_pure = True

    def __init__(self, function, *, inputs, outputs):
        self.signature = detect_item_axes(
            Signature(inputs=inputs, outputs=outputs), item_axis={}, shared=(), where=""
        )
        self._function = function

    def predict_batch(self, inputs):
        return self._function(**inputs)


def rows(function, shape=(-1, 4), output=(-1, 4)):
    return Computes(function, inputs=(fp32("x", *shape),), outputs=(fp32("y", *output),))


def found(model, *shapes, **told):
    samples = samples_of(model, None, shapes)
    assert isinstance(samples, Samples)
    signature, padding = check_batching(model, samples, DeclaredInputs(shapes=shapes, **told))
    return signature, padding


@pytest.mark.parametrize(
    ("phrase", "function"),
    [
        ("on the rest of the batch", lambda x: {"y": x / np.abs(x).max()}),
        ("on the rest of the batch", lambda x: {"y": np.cumsum(x, 0)}),
        ("on the rest of the batch", lambda x: {"y": x / len(x)}),
        ("on the rest of the batch", lambda x: {"y": x + np.float32(1e-3) * x.mean()}),
        ("on the rest of the batch", lambda x: {"y": quantise(x)}),
        ("for 1 items", lambda x: {"y": np.repeat(x, 3, 0)}),
        ("fails on two items together", lambda x: {"y": x.reshape(1, 4)}),
        (
            "differ from call to call",
            lambda x: {"y": x + RNG.random(4, np.float32)},
        ),
    ],
)
def test_items_that_are_not_alone_are_found(phrase, function):
    signature, _ = found(rows(function))
    assert not signature.is_batched
    assert phrase in signature.unbatched


def quantise(x):
    """With one scale for all that is in the batch: half of a step of 8 bits is lost."""
    scale = np.abs(x).max() / 127
    return (np.round(x / scale) * scale).astype(np.float32)


def as_bfloat16(x):
    """With 7 bits of the mantissa, as the matrix units of a GPU may take them."""
    return (np.ascontiguousarray(x).view(np.uint32) & 0xFFFF0000).view(np.float32)


def test_another_size_of_batch_may_be_rounded_otherwise():
    """By other kernels, as on a GPU; what it shares the batch with still makes no difference."""
    signature, _ = found(rows(lambda x: {"y": np.tanh(as_bfloat16(x) if len(x) > 1 else x)}))
    assert signature.unbatched == ""


def test_items_that_are_alone_are_batched():
    signature, _ = found(rows(lambda x: {"y": np.tanh(x)}))
    assert signature.unbatched == ""


def test_rounding_that_one_input_magnifies_is_no_dependence():
    """With some made-up inputs answers differ in a batch, with others they are equal: it is rounding."""

    def jumps(x):
        noise = 1e-7 if len(x) > 1 else 0.0
        return {"y": np.sign(x - x + noise) * (np.abs(x).max() < 2)}

    model = Computes(
        jumps,
        inputs=(TensorSpec(name="x", datatype="INT32", shape=(-1, 4)),),
        outputs=(TensorSpec(name="y", datatype="FP64", shape=(-1, 4)),),
    )
    assert found(model)[0].unbatched == ""


def test_another_replica_does_not_try_it_again():
    calls = []
    model = rows(lambda x: calls.append(len(x)) or {"y": x})
    found(model, unbatched="")
    assert calls == []


def masked_mean(x):
    """A mean over time of what is not 0: what is filled up with 0 changes nothing."""
    weights = (x != 0).sum(1, keepdims=True)
    return {"y": (x.sum(1, keepdims=True) / np.maximum(weights, 1)).astype(np.float32)}


@pytest.mark.parametrize(
    ("function", "output"),
    [(masked_mean, (-1, 1)), (lambda x: {"y": np.tanh(x)}, (-1, -1))],
    ids=["one answer", "an answer for each element"],
)
def test_what_is_filled_up_gets_its_own_answer(function, output):
    """Requests of all lengths share a call, and each answer is as alone, in its own length."""
    model = rows(function, (-1, -1), output)
    signature, padding = found(model, "x=16", pad={"x": 0.0}, pad_to=8)
    assert signature.padding == ""
    model.signature = signature
    rng = np.random.default_rng(0)
    requests = [{"x": rng.random((1, 9 + size), np.float32)} for size in range(8)]
    entries = entries_of(requests, signature)
    together = Execution(model, padding=padding).together(entries)
    for request, (answer,) in zip(requests, together, strict=True):
        alone = function(request["x"])["y"]
        assert answer.shape == alone.shape
        given = np.frombuffer(answer.data, np.float32).reshape(answer.shape)
        np.testing.assert_allclose(given, alone, rtol=1e-5)


@pytest.mark.parametrize(
    ("phrase", "function", "output", "pad"),
    [
        ("responses change", lambda x: {"y": x.mean(1, keepdims=True)}, (-1, 1), {"x": 0.0}),
        ("grows from", lambda x: {"y": np.repeat(x, 2, 1)}, (-1, -1), {"x": 0.0}),
        ("no fill value", lambda x: {"y": x}, (-1, -1), {"z": 0.0}),
    ],
)
def test_what_cannot_be_filled_up_says_why(phrase, function, output, pad):
    signature, padding = found(rows(function, (-1, -1), output), "x=16", pad=pad, pad_to=8)
    assert padding is None
    assert phrase in signature.padding


def test_requests_that_are_all_alike_prove_nothing():
    """Then a batch could not be tried; where they differ in one value, it is."""

    def mean_free(x):
        return {"y": (x - x.mean(0)).astype(np.float64)}

    def model(shape):
        return Computes(
            mean_free,
            inputs=(TensorSpec(name="x", datatype="INT64", shape=shape),),
            outputs=(TensorSpec(name="y", datatype="FP64", shape=shape),),
        )

    assert "the rest of the batch" in found(model((-1, 1)))[0].unbatched
    samples = samples_of(model((-1, 3)), None, values=["x=1"])
    signature, _ = check_batching(model((-1, 3)), samples, DeclaredInputs())
    assert "all alike" in signature.unbatched


def argmax(x):
    """The place of the largest: what is filled up with 0 is larger than all that is negative."""
    return {"y": np.argmax(x, 1).astype(np.int64)}


def mean_sign(x):
    """A class by a mean: one element more hardly moves it."""
    return {"y": (x.mean(1) > 0.2).astype(np.int64)}


@pytest.mark.parametrize(
    ("function", "multiple"), [(argmax, 2), (argmax, 8), (argmax, 128), (mean_sign, 8)]
)
def test_a_change_that_few_elements_hide_is_found(function, multiple):
    """Several requests are tried, with little and with much filled in."""
    model = Computes(
        function,
        inputs=(fp32("x", -1, -1),),
        outputs=(TensorSpec(name="y", datatype="INT64", shape=(-1,)),),
    )
    signature, padding = found(model, f"x={2 * multiple}", pad={"x": 0.0}, pad_to=multiple)
    assert padding is None
    assert "responses change" in signature.padding


def test_each_axis_gets_its_own_size_back():
    """Also where sizes are small: what was filled in is in no answer."""
    model = rows(lambda x: {"y": np.tanh(x)}, (-1, -1, -1), (-1, -1, -1))
    signature, padding = found(model, "x=3x3", pad={"x": 0.0}, pad_to=2)
    assert signature.padding == ""
    model.signature = signature
    request = {"x": np.ones((1, 3, 3), np.float32)}
    ((answer,),) = Execution(model, padding=padding).together(entries_of([request], signature))
    assert answer.shape == (1, 3, 3)


def test_nothing_is_made_up_for_a_size_that_nobody_told():
    reason = samples_of(rows(lambda x: {"y": x}, (-1, 3, -1, -1), (-1, 3, -1, -1)), None)
    assert isinstance(reason, str)
    assert "input 'x', axis 2" in reason
    assert 'model.shapes="x=3x224x224"' in reason


def test_sizes_of_what_may_turn_out_to_be_no_item_axis_may_be_told():
    """Of a model that is served whole after all: by the dimension's name, and among the sizes of an input."""
    model = rows(lambda x: {"y": np.cumsum(x, 0)}, (-1, -1), (-1, -1))
    for text in ("x=12x5", "x=5"):
        assert isinstance(samples_of(model, None, [text]), Samples)
    model.signature, _ = found(model, "x=12x5")
    samples = samples_of(model, None, ["x=12x5"])
    assert [request["x"].shape for request in samples.requests(2)] == [(12, 5), (12, 5)]
    (request,) = samples_of(model, None, ["x=5"]).requests(1)
    assert request["x"].shape == (1, 5)


def test_what_could_not_be_tried_is_served_whole():
    """No size was told, or nothing that is made up makes sense to the model: both say what to add."""
    model = rows(lambda x: {"y": x}, (-1, -1), (-1, -1))
    signature, _ = check_batching(model, samples_of(model, None), DeclaredInputs())
    assert "model.shapes" in signature.unbatched

    def picky(x):
        raise ValueError("these are no pixels")

    signature, _ = found(rows(picky))
    assert "could not be checked: ValueError: these are no pixels" in signature.unbatched


def test_sizes_that_are_tried_are_near_those_that_were_told():
    """A model that takes no less than five of a dimension, as a convolution does, can be filled up all the same."""

    def convolved(x):
        if x.shape[1] < 5:
            raise ValueError("an image is too small")
        return {"y": np.tanh(x)}

    model = rows(convolved, (-1, -1, -1), (-1, -1, -1))
    signature, padding = found(model, "x=24x32", pad={"x": 0.0}, pad_to=8)
    assert signature.padding == ""
    assert padding is not None
