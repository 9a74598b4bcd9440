"""Functions as importable modules, without pickle: what is written, and what is refused."""

import importlib
import json
import math
import subprocess
import sys

import numpy as np
import pytest
from numpy import mean

from serving.clipper_admin.exceptions import ClipperException
from serving.clipper_admin.function_source import load_function, save_function
from serving.errors import InferenceFailed
from serving.models import load
from tests.serving.clipper_admin import functions

THRESHOLD = 0.5
TABLE = {"low": [1, 2.5], "high": (True, None)}


def helper(value):
    return value * 2


def through(function, inputs, folder, input_type="doubles"):
    """What a function answers after it was written out and loaded as new."""
    reference = save_function(function, folder, input_type=input_type)
    return load_function(reference)(inputs)


def closure():
    """A function with all that can be written down around it."""
    weights = np.arange(3.0)
    scale, names = 3, ["a", "b"]
    limits = {"nan": math.nan, "inf": -math.inf, "set": {1}, "empty": ()}
    step = np.float32(0.5)

    def inner(value):
        return helper(value) + scale

    def predict(inputs, *, extra=weights):
        """A docstring
        in two lines."""
        text = """two
lines"""
        assert math.isnan(limits["nan"])
        assert limits["inf"] == -math.inf
        return [
            json.dumps([names[0], TABLE["low"], float(extra @ weights), inner(1), len(text),
                        float(step), float(mean(values)), THRESHOLD])
            for values in inputs
        ]  # fmt: skip

    return predict


def test_a_closure_is_written_out(tmp_path):
    """Values, arrays, modules, functions, defaults: all that it uses comes along."""
    expected = closure()([np.array([1.0, 2.0])])
    assert through(closure(), [np.array([1.0, 2.0])], tmp_path) == expected
    assert json.loads(expected[0]) == ["a", [1, 2.5], 5.0, 5, 9, 0.5, 1.5, 0.5]
    assert (tmp_path / "array_0.npy").exists()


def test_a_lambda_is_written_out(tmp_path):
    """A lambda that stands alone in its line has a source."""
    offset = 7
    function = lambda inputs: [str(int(values[0]) + offset) for values in inputs]  # noqa: E731
    assert through(function, [np.array([1.0])], tmp_path) == ["8"]


def test_recursion(tmp_path):
    """A function may call itself."""

    def factorial(inputs):
        return ["1" if n <= 1 else str(int(n) * int(factorial([n - 1])[0])) for n in inputs]

    assert through(factorial, [5], tmp_path) == ["120"]


def test_a_function_of_a_module_is_named_not_copied(tmp_path):
    """What can be imported is imported, with all that its module holds."""
    module = tmp_path / "own" / "things.py"
    module.parent.mkdir()
    module.write_text("HELD = 3\ndef f(inputs):\n    return [str(HELD) for _ in inputs]\n")
    sys.path.insert(0, str(module.parent))
    try:
        function = importlib.import_module("things").f
        reference = save_function(function, tmp_path, input_type="doubles")
        text = (tmp_path / "model.py").read_text()
        assert "HELD" not in text
        assert "import things as " in text
        assert load_function(reference)([1]) == ["3"]
    finally:
        sys.path.remove(str(module.parent))
        del sys.modules["things"]


def test_a_function_of_a_script(tmp_path):
    """A function of the script itself is written out, and loads without the script."""
    script = tmp_path / "script.py"
    script.write_text(
        "import sys\n"
        "from serving.clipper_admin.function_source import save_function\n"
        "FACTOR = 4\n"
        "def predict(inputs):\n"
        "    return [str(FACTOR * len(text)) for text in inputs]\n"
        "print(save_function(predict, sys.argv[1], input_type='strings'))\n"
    )
    done = subprocess.run(
        [sys.executable, str(script), str(tmp_path)],
        capture_output=True, text=True, check=True, env={"PYTHONPATH": ":".join(sys.path)},
    )  # fmt: skip
    script.unlink()
    assert load_function(done.stdout.strip())(["ab"]) == ["8"]


class Own:
    """Not to be written down."""


def test_what_cannot_be_written_down_is_told(tmp_path):
    """An object that only pickle could carry is refused by its name, with what to do."""
    held = Own()

    def predict(inputs):
        return [str(held) for _ in inputs]

    with pytest.raises(ClipperException, match="uses 'held', a Own, which cannot be saved"):
        save_function(predict, tmp_path, input_type="doubles")


def undefined(inputs):
    return [nothing_of_this_name for _ in inputs]  # noqa: F821


@functions.decorated
def wrapped(inputs):
    return inputs


def object_array(inputs):
    return [str(OBJECTS) for _ in inputs]


OBJECTS = np.array([Own()], dtype=object)


@pytest.mark.parametrize(
    ("function", "message"),
    [
        (undefined, "'nothing_of_this_name', which is not defined"),
        (object_array, "uses 'OBJECTS', a ndarray"),
        (Own(), "expected a function"),
        (len, "expected a function"),
        (Own, "expected a function"),
        (eval("lambda inputs: inputs"), "is not to be found"),
    ],
)
def test_refusals(tmp_path, function, message):
    """What is no function, or uses what is not there, is refused in one line."""
    with pytest.raises(ClipperException) as caught:
        save_function(_as_script(function), tmp_path, input_type="doubles")
    assert message in caught.value.msg
    assert "\n" not in caught.value.msg


def test_what_is_used_by_name(tmp_path):
    """Classes, functions of numpy and of the standard library, one function used twice."""
    half, root, kind, parse = np.float64(0.5), np.sqrt, float, json.loads

    def shared(value):
        return value + half

    def left(value):
        return shared(value)

    def predict(inputs):
        return [
            str(kind(root(parse("4.0"))) + left(1) + shared(1) + math.floor(1.5)) for _ in inputs
        ]

    assert through(predict, [0], tmp_path) == predict([0]) == ["6.0"]


def test_what_has_no_value_yet_and_what_is_wrapped(tmp_path):
    """A name without a value, a decorated function and one of the kind that a script holds are refused."""

    def early(inputs):
        return [str(later) for _ in inputs]

    with pytest.raises(ClipperException, match="has no value yet"):
        save_function(early, tmp_path, input_type="doubles")
    later = 1
    assert early([0]) == ["1"]

    @functions.decorated
    def predict(inputs):
        return inputs

    with pytest.raises(ClipperException, match="is decorated"):
        save_function(predict, tmp_path, input_type="doubles")


def test_two_lambdas_in_a_line(tmp_path):
    """Which of two lambdas is meant is not guessed."""
    pair = (lambda inputs: inputs, lambda inputs: [str(x) for x in inputs])
    with pytest.raises(ClipperException, match="several lambdas"):
        save_function(pair[1], tmp_path, input_type="doubles")


def test_mutual_recursion_is_refused(tmp_path):
    """Functions that call one another belong into a module."""

    def even(inputs):
        return odd(inputs)

    def odd(inputs):
        return even(inputs)

    with pytest.raises(ClipperException, match="call one another"):
        save_function(even, tmp_path, input_type="doubles")


def _as_script(function):
    """A function of this module as if it were a script's: it has no module to be imported from."""
    if hasattr(function, "__code__"):
        function.__module__ = "__main__"
    return function


@pytest.mark.parametrize(
    ("input_type", "items", "expected"),
    [
        ("strings", ["ü", ""], [b"str", b"str"]),
        ("bytes", [b"\xff"], [b"bytes"]),
        ("doubles", [[1.0, 2.0]], [b"float64"]),
        ("floats", [[1.0]], [b"float32"]),
        ("integers", [[1], [2]], [b"int32", b"int32"]),
    ],
)
def test_the_kind_python_serves_what_was_written(tmp_path, input_type, items, expected):
    """The module is a model of the kind python, which gets inputs of the right type."""

    def kinds(inputs):
        return [str(getattr(item, "dtype", type(item).__name__)) for item in inputs]

    model = load("python", save_function(kinds, tmp_path, input_type=input_type), threads=1)
    (spec,) = model.signature.inputs
    if spec.datatype == "BYTES":
        batch = np.array([x.encode() if isinstance(x, str) else x for x in items], dtype=object)
    else:
        batch = np.array(items, dtype=spec.datatype.lower().replace("fp", "float"))
    assert model.predict_batch({"input": batch})["output"].tolist() == expected


@pytest.mark.parametrize(
    ("answers", "message"),
    [
        (["a", "b"], "2 answers to 1 inputs"),
        ("a", "returned str, expected a list of 1 strings"),
        (None, "returned NoneType"),
        ([1], "returned a int among its answers"),
    ],
)
def test_answers_by_the_contract(tmp_path, answers, message):
    """A list of as many strings, or an error that says what came instead."""

    def predict(inputs):
        return answers

    model = load("python", save_function(predict, tmp_path, input_type="doubles"), threads=1)
    with pytest.raises(InferenceFailed, match=message):
        model.predict_batch({"input": np.zeros((1, 1))})
