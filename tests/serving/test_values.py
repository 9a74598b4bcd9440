"""Values refuse what they cannot be, where they are made."""

import pytest

from serving.values import Signature, TensorSpec


@pytest.mark.parametrize("shape", [["n", 3], "ab", [None], [1.5], [True], [-2]], ids=str)
def test_a_shape_is_whole_numbers(shape):
    """What a container or a model declares otherwise is told as such, not met later as a fault of the server."""
    spec = {"name": "x", "datatype": "FP32", "shape": shape}
    with pytest.raises(ValueError, match="expected whole numbers, -1 for a free dimension"):
        Signature.from_json({"inputs": [spec], "outputs": []})


def test_free_and_empty_dimensions_are_shapes():
    """-1 is free, 0 is empty, and no dimension at all is one value."""
    for shape in ((-1, 0, 3), ()):
        assert TensorSpec(name="x", datatype="FP32", shape=shape).shape == shape
