"""Kind tensorflow: SavedModels through the real host, and what is refused."""

import numpy as np
import pytest

from serving.errors import ModelLoadFailed
from serving.wire import ActionStatus
from tests.frameworks.conftest import THREADS, frame, import_tensorflow

tf = import_tensorflow()

pytestmark = pytest.mark.frameworks
WEIGHTS = np.arange(8, dtype=np.float32).reshape(4, 2)
X = np.arange(12, dtype=np.float32).reshape(3, 4)


def load(path, threads=THREADS):
    from serving.models.tensorflow import Model  # noqa: PLC0415 - imports TensorFlow

    return Model(path, threads=threads)


def tensor(shape, dtype, name):
    return tf.TensorSpec(shape, dtype, name=name)


@pytest.fixture(scope="module", name="folder")
def _folder(tmp_path_factory):
    return tmp_path_factory.mktemp("tensorflow")


@pytest.fixture(scope="module", name="path")
def _path(folder):
    """A model of numbers and texts; some numbers make it misbehave."""

    class Model(tf.Module):
        def __init__(self):
            super().__init__()
            self.weights = tf.Variable(WEIGHTS)

        @tf.function(
            input_signature=[
                tensor([None, 4], tf.float32, "x"),
                tensor([None], tf.string, "text"),
            ]
        )
        def call(self, x, text):
            tf.debugging.assert_none_equal(x, -1.0, message="minus one is not liked")
            kept = tf.cond(tf.reduce_any(x < -1), lambda: x[1:], lambda: x)
            return {"y": kept @ self.weights, "upper": tf.strings.upper(text)}

    model = Model()
    tf.saved_model.save(model, folder / "model", signatures={"serving_default": model.call})
    return folder / "model"


def request(x, *texts):
    data = b"".join(len(text).to_bytes(4, "little") + text for text in texts)
    return frame(
        ("x", "FP32", np.asarray(x, np.float32)),
        ("text", "BYTES", Raw((len(texts),), data)),
    )


class Raw:
    """A tensor by its shape and bytes."""

    def __init__(self, shape, data):
        self.shape = shape
        self.tobytes = lambda: data


def test_a_saved_model_is_served_with_its_default_signature(path, talk):
    """A host loads it, tells its signature, and answers numbers and texts of each request."""
    loaded = talk.load("tensorflow", path, threads=THREADS)
    assert loaded.status == 0, loaded.detail
    assert loaded.detail["signature"] == {
        "inputs": [
            {"name": "text", "datatype": "BYTES", "shape": [-1]},
            {"name": "x", "datatype": "FP32", "shape": [-1, 4]},
        ],
        "outputs": [
            {"name": "upper", "datatype": "BYTES", "shape": [-1]},
            {"name": "y", "datatype": "FP32", "shape": [-1, 2]},
        ],
        "platform": "tensorflow_savedmodel",
        "parameters": {"unbatched": ""},  # it is batched
    }
    batch = [request(X[:1], b"lute"), request(X[1:], b"a", "é".encode())]
    message, outcomes = talk.infer(batch)
    assert message.status == 0, outcomes
    found = [{value.name: value for value in tensors} for tensors in outcomes]
    assert bytes(found[0]["upper"].data) == b"\4\0\0\0LUTE"
    assert bytes(found[1]["upper"].data) == b"\1\0\0\0A\2\0\0\0" + "é".encode()
    for values, rows in zip(found, (X[:1], X[1:]), strict=True):
        answer = np.frombuffer(values["y"].data, "<f4").reshape(-1, 2)
        np.testing.assert_allclose(answer, rows @ WEIGHTS)


@pytest.mark.parametrize(
    ("number", "status", "text"),
    [
        (-1.0, ActionStatus.MODEL_RAISED, "minus one is not liked"),
        (-2.0, ActionStatus.BROKEN_CONTRACT, "for 1 items"),
    ],
)
def test_a_fault_stays_with_its_request(path, talk, number, status, text):
    """What the model raises or returns wrongly fails the request at fault, not its neighbour."""
    assert talk.load("tensorflow", path, threads=THREADS).status == 0
    bad = np.full((1, 4), number, np.float32)
    _, (answer, fault) = talk.infer([request(X[:1], b"a"), request(bad, b"b")])
    found = {tensor.name: tensor for tensor in answer}
    np.testing.assert_allclose(np.frombuffer(found["y"].data, "<f4"), (X[:1] @ WEIGHTS)[0])
    assert fault[0] == status
    assert text in fault[1]


def test_threads_are_those_asked_for(path):
    """The pool has as many threads as the replica is given; a second number in a process is refused."""
    load(path)
    assert tf.config.threading.get_intra_op_parallelism_threads() == THREADS
    with pytest.raises(ModelLoadFailed, match="cannot be modified"):
        load(path, threads=THREADS + 1)


def store(folder, function, **signatures):
    model = tf.Module()
    model.function = function
    tf.saved_model.save(model, folder, **signatures)
    return folder


def test_a_model_of_no_or_another_signature_says_what_it_has(folder):
    """Without `serving_default` the signatures that are there are named."""
    same = tf.function(lambda x: {"y": x}, input_signature=[tensor([None, 4], tf.float32, "x")])
    path = store(folder / "other", same, signatures={"train": same})
    with pytest.raises(ModelLoadFailed, match="no signature 'serving_default' but train"):
        load(path)


@pytest.mark.parametrize(
    ("shape", "dtype", "reason"),
    [
        ([2, 4], tf.float32, r"fixed shape \[2, 4\], which takes no batches"),
        (None, tf.float32, "no fixed number of dimensions"),
        ([None, 4], tf.complex64, "is of type complex64"),
    ],
)
def test_a_signature_that_cannot_be_served_is_told(folder, shape, dtype, reason):
    """Fixed sizes of a batch, unknown ranks and other types are refused with the input's name."""
    function = tf.function(lambda x: {"y": x}, input_signature=[tensor(shape, dtype, "x")])
    name = f"{dtype.name}-{'any' if shape is None else len(shape)}-{(shape or [None])[0]}"
    path = store(folder / name, function, signatures=function)
    with pytest.raises(ModelLoadFailed, match=f"'x' .*{reason}"):
        load(path)


def test_folders_that_are_no_models_are_one_clear_line(folder, tmp_path):
    """No folder, an empty one, and one whose file is another's."""
    for path in (None, tmp_path, tmp_path / "none"):
        with pytest.raises(ModelLoadFailed, match="no SavedModel"):
            load(path)
    (tmp_path / "saved_model.pb").write_text("this is no model")
    with pytest.raises(ModelLoadFailed, match="TensorFlow 2") as caught:
        load(tmp_path)
    assert "\n" not in str(caught.value)
