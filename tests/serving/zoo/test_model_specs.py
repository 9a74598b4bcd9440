"""Cards as plain data."""

import json
import pathlib

import pytest

from serving import zoo
from serving.errors import ModelLoadFailed
from serving.model_spec import ModelSpec, Program
from serving.zoo import model_specs

PROGRAM = Program(("/bin/cat", "-u"), pathlib.Path("/srv/there"))


@pytest.mark.parametrize(
    "card",
    [
        *[zoo.find(name) for name in ("echo", "linear", "opennmt", "resnet")],
        ModelSpec(name="p", version="v", kind="command", path=None, program=PROGRAM),
        ModelSpec(
            name="silero",
            version="1",
            kind="onnx",
            path=pathlib.Path("/srv/silero.onnx"),
            shapes=("input=512",),
            values=("sr=16000",),
            item_axis={"state": 1},
            shared=("sr",),
            pad={"input": 0.5},
        ),
        ModelSpec(name="m", version="2", kind="python", path=pathlib.Path("/srv/m.py:Model")),
    ],
    ids=lambda card: card.name,
)
def test_a_card_comes_back_through_json(card):
    """Bundled ones, a program, a user's own file."""
    assert model_specs.from_json(json.loads(json.dumps(model_specs.as_json(card)))) == card


def test_bundled_files_are_found_where_luthier_is_installed_then():
    """Their paths are told relative to the zoo."""
    assert model_specs.as_json(zoo.find("resnet"))["path"] == "zoo:resnet/model.onnx"


@pytest.mark.parametrize("data", [{}, [], {**model_specs.as_json(zoo.find("echo")), "path": 3}])
def test_what_is_no_card_is_told(data):
    """As a model that cannot be loaded."""
    with pytest.raises(ModelLoadFailed, match="its card cannot be read"):
        model_specs.from_json(data)
