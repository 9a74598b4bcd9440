"""An engine of functions on arrays: many models, versions and labels, answers in the next turn of the loop."""

import asyncio
import math
import struct

import numpy as np

from serving import waiter as waiters
from serving.errors import UnknownModel
from serving.json_tensors import NUMPY
from serving.replica import wire
from serving.values import ModelId, Signature, Tensor, TensorSpec


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


class FakeTicket:
    def __init__(self):
        self.cancelled = False

    def cancel(self):
        self.cancelled = True


class FakeServables:
    """Implements `serving.protocol.tfs_routes.Servables`."""

    def __init__(self):
        self._models = {}
        self.labels = {}
        self.states = {}
        self.fail_with = None
        self.hold = False
        self.tickets = []

    def add(self, name, version, signature, function, state="AVAILABLE"):
        self._models[ModelId(name, version)] = (signature, function)
        self.states[name, version] = state

    def resolve(self, name, version):
        found = [int(model.version) for model in self._models if model.name == name]
        model = ModelId(name, version or str(max(found, default="")))
        if model not in self._models:
            raise UnknownModel(name, tuple(sorted({one.name for one in self._models})), version)
        return model, self._models[model][0]

    def resolve_label(self, name, label):
        return self.labels.get((name, label))

    def versions(self, name):
        return [(one, state) for (model, one), state in self.states.items() if model == name]

    def submit(self, model, query, waiter):
        ticket = FakeTicket()
        self.tickets.append(ticket)
        if not self.hold:
            asyncio.get_running_loop().call_soon(self._run, model, query, waiter, ticket)
        return ticket

    def _run(self, model, query, waiter, ticket):
        if ticket.cancelled:
            return
        if self.fail_with is not None:
            waiter.refuse(self.fail_with)
            return
        signature, function = self._models[model]
        arrays = arrays_of(query.frame)
        assert query.frame_bytes == sum(map(len, query.frame))
        frame = frame_of(function(arrays), signature.outputs)
        waiters.answer(waiter, memoryview(frame))
