"""Requests that are made up: in shapes and values that were told, or not at all."""

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from serving.tensors import input_values
from serving.tensors.sizes import sizes_of
from serving.values import ITEM_BYTES, Signature, TensorSpec
from tests.fakes.oip_requests import parsed
from tuner.errors import UnknownSize, UsageError
from tuner.load_generator import synthetic

TEXT = Signature(
    inputs=tuple(
        TensorSpec(name=name, datatype="INT64", shape=(-1, -1), dimensions=("batch", "sequence"))
        for name in ("ids", "mask")
    ),
    outputs=(),
    unbatched="",
)
SPEECH = Signature(
    inputs=(
        TensorSpec(name="input", datatype="FP32", shape=(-1, -1)),
        TensorSpec(name="state", datatype="FP32", shape=(2, -1, 4), item_axis=1),
        TensorSpec(name="sr", datatype="INT64", shape=(), item_axis=None),
    ),
    outputs=(),
    unbatched="",
)


def plan(signature, *shape, values=(), card=()):
    return synthetic.plan_inputs(
        signature,
        input_values.value_specs_of(values, signature, read=pytest.fail),
        options=sizes_of(shape, read=lambda _path: "3\n5\n"),
        card=sizes_of(card),
    )


def arrays(signature, *shape, values=(), seed=0, client_batch=1):
    made = plan(signature, *shape, values=values).payloads(
        np.random.default_rng(seed), model="m", client_batch=client_batch
    )
    assert made.is_synthetic
    return [{name: array for name, (_, array) in one.items()} for one in parsed(made)]


SPECS = st.lists(
    st.builds(
        TensorSpec,
        name=st.text("abcxyz.:0", min_size=1, max_size=8),
        datatype=st.sampled_from(list(ITEM_BYTES)),
        shape=st.lists(st.sampled_from([-1, 1, 2, 3]), max_size=4).map(tuple),
    ),
    min_size=1,
    max_size=3,
    unique_by=lambda spec: spec.name,
)


@given(inputs=SPECS, low=st.integers(1, 3), more=st.integers(0, 3), seed=st.integers(0, 2**32))
def test_requests_fit_any_signature(inputs, low, more, seed):
    """Names, datatypes and fixed sizes are the model's; free ones lie in what was told, and items are one."""
    signature = Signature(inputs=tuple(inputs), outputs=())
    free = f"{low}..{low + more}"
    told = [
        f"{spec.name}={'x'.join(free if size < 0 else str(size) for size in sizes)}"
        for spec in inputs
        if -1 in (sizes := spec.shape[signature.is_batched :])
    ]
    for item in arrays(signature, *told, seed=seed)[:5]:
        assert list(item) == [spec.name for spec in inputs]
        for spec in inputs:
            shape = item[spec.name].shape
            assert len(shape) == len(spec.shape)
            for axis, (size, wanted) in enumerate(zip(shape, spec.shape, strict=True)):
                if signature.is_batched and axis == 0:
                    assert size == 1
                else:
                    assert size == wanted or (wanted == -1 and low <= size <= low + more)


@given(seed=st.integers(0, 2**32))
def test_the_seed_decides_the_requests(seed):
    """The same seed gives the same bytes, also of shapes that are drawn, and requests differ."""
    first, second = (
        plan(TEXT, "sequence=1..50").payloads(np.random.default_rng(seed), model="m").requests
        for _ in range(2)
    )
    assert first == second
    assert len(set(first)) > 200


def test_dimensions_of_one_name_are_equally_long_in_a_request():
    """And differ from request to request; all items of a request have its length."""
    made = arrays(TEXT, "sequence=@lengths", client_batch=3)
    assert len(made) == synthetic.VARYING_REQUESTS
    assert {one["ids"].shape for one in made} == {(3, 3), (3, 5)}
    assert all(one["ids"].shape == one["mask"].shape for one in made)


def test_items_lie_where_the_signature_says():
    """Along axis 1 of a state; what items share is sent once, and a scalar is a scalar."""
    (one, *_) = arrays(SPEECH, "input=512", values=["sr=16000"], client_batch=3)
    assert {name: array.shape for name, array in one.items()} == {
        "input": (3, 512),
        "state": (2, 3, 4),
        "sr": (),
    }
    assert one["sr"] == 16000


def test_a_model_that_is_served_whole_has_all_its_sizes_told():
    """Its first dimension is a size like others."""
    whole = Signature(inputs=SPEECH.inputs[:1], outputs=(), unbatched="it is so")
    with pytest.raises(UnknownSize, match="axis 0; input 'input', axis 1"):
        arrays(whole)
    assert arrays(whole, "input=2x512")[0]["input"].shape == (2, 512)


@pytest.mark.parametrize("told", ["3x48x192", "1x3x48x192"])
def test_of_what_is_served_whole_the_sizes_of_one_item_will_do(told):
    """They are what one tells before it is known that the model cannot be batched."""
    image = TensorSpec(name="x", datatype="FP32", shape=(-1, 3, -1, -1))
    whole = Signature(inputs=(image,), outputs=(), unbatched="it is quantised dynamically")
    assert arrays(whole, f"x={told}")[0]["x"].shape == (1, 3, 48, 192)


def test_a_size_that_is_missing_is_an_error_with_its_option():
    """Nothing is made up in its place."""
    with pytest.raises(UnknownSize, match=r"input 'ids', axis 1 \(sequence\)") as error:
        arrays(TEXT)
    assert error.value.option == "--shape sequence=128"
    assert arrays(TEXT, "sequence=128")[0]["ids"].shape == (1, 128)


def test_an_option_wins_over_what_the_card_tells():
    """Axis by axis: the card's other sizes stay."""
    image = Signature(
        inputs=(
            TensorSpec(
                name="image",
                datatype="FP32",
                shape=(-1, -1, -1),
                dimensions=("batch", "height", "width"),
            ),
        ),
        outputs=(),
    )
    found = plan(image, "height=10", card=["image=4x5"])
    assert found.shape(image.inputs[0]) == "10x5"


def test_large_requests_are_fewer(monkeypatch):
    """Together they stay below a bound, however large each is; one there is always."""
    monkeypatch.setattr(synthetic, "MAX_BYTES", 10_000)
    assert len(arrays(TEXT, "sequence=100")) == 6
    assert len(arrays(TEXT, "sequence=100000")) == 1


@pytest.mark.parametrize(
    ("shape", "text"),
    [
        ("tokens=3", "no such input or free dimension"),
        ("ids=3x4", "2 sizes, expected 1"),
        ("sequence=3x4", "2 sizes for one dimension"),
    ],
)
def test_sizes_that_fit_nothing_are_refused(shape, text):
    """With what there is."""
    with pytest.raises(UsageError, match=text):
        plan(TEXT, shape)
