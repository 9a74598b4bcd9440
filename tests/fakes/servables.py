"""Models that are functions on arrays, in replicas of a running gateway."""

import asyncio
import math
import struct

import numpy as np

from serving import wire
from serving.model_spec import ModelSpec
from serving.tensors.json_tensors import NUMPY
from serving.values import ModelId, Signature, Tensor, TensorSpec
from tests.fakes.replicas import FakeHome


def signature(inputs, outputs):
    """A signature from `{name: (datatype, shape)}`."""
    return Signature(
        inputs=tuple(TensorSpec(name=n, datatype=d, shape=s) for n, (d, s) in inputs.items()),
        outputs=tuple(TensorSpec(name=n, datatype=d, shape=s) for n, (d, s) in outputs.items()),
        platform="fake",
    )


def array_of(tensor):
    """A tensor as an array; BYTES as bytes objects."""
    if tensor.datatype != "BYTES":
        return np.frombuffer(tensor.data, NUMPY[tensor.datatype]).reshape(tensor.shape)
    data, position, found = bytes(tensor.data), 0, []
    while position < len(data):
        (length,) = struct.unpack_from("<I", data, position)
        found.append(data[position + 4 : position + 4 + length])
        position += 4 + length
    assert len(found) == math.prod(tensor.shape)
    array = np.empty(len(found), dtype=object)
    array[:] = found
    return array.reshape(tensor.shape)


def arrays_of(frame):
    """Arrays by name of a frame in pieces."""
    tensors = wire.decode_frame(memoryview(b"".join(frame)))
    return {tensor.name: array_of(tensor) for tensor in tensors}


def frame_of(arrays, specs):
    """The frame of outputs, each in its declared datatype."""
    tensors = []
    for spec in specs:
        if spec.name not in arrays:
            continue
        array = np.asarray(arrays[spec.name])
        if spec.datatype == "BYTES":
            flat = [x if isinstance(x, bytes) else str(x).encode() for x in array.ravel()]
            data = b"".join(struct.pack("<I", len(item)) + item for item in flat)
        else:
            data = np.ascontiguousarray(array.astype(NUMPY[spec.datatype])).tobytes()
        tensors.append(Tensor(spec.name, spec.datatype, array.shape, data))
    return b"".join([wire.encode_descriptor(tensors), *(tensor.data for tensor in tensors)])


class FunctionHome(FakeHome):
    """A home whose replicas run functions on arrays; a model without one gives back what it gets."""

    def __init__(self):
        super().__init__()
        self._models = {}

    def signature_of(self, model):
        signature, _ = self._models.get(model, (self.signature, None))
        return signature

    def answer(self, model, frame):
        signature, function = self._models.get(model, (None, None))
        if function is None:
            return frame
        return frame_of(function(arrays_of([frame])), signature.outputs)

    def deploy(self, running, name, version, signature, function):
        """Serve a function under a name and a version, in a running gateway."""
        self._models[ModelId(name, version)] = (signature, function)
        card = ModelSpec(name=name, version=version, kind="echo", path=None, shapes=("data=3",))
        running.call(running.engine.deploy(card))


class _Refusing:
    """A target that refuses every request."""

    def __init__(self, target, error):
        self._target = target
        self._error = error

    def __getattr__(self, name):
        return getattr(self._target, name)

    def submit(self, query, handler, flow=""):
        asyncio.get_running_loop().call_soon(handler.on_error, self._error)


class Altered:
    """A running engine, with what a test wants to see of it."""

    def __init__(self, engine):
        self.engine = engine
        self.more_states = {}
        self.fail_with = None

    def __getattr__(self, name):
        return getattr(self.engine, name)

    def resolve(self, name, version):
        target = self.engine.resolve(name, version)
        return target if self.fail_with is None else _Refusing(target, self.fail_with)

    def states(self):
        return self.engine.states() | self.more_states


def counted(engine):
    """Inferences by status, over all models and those that meant none."""
    total = dict(engine.unknown_model_responses)
    for served in engine.deployments():
        for status, count in dict(served.counters.responses).items():
            total[status] = total.get(status, 0) + count
    return total
