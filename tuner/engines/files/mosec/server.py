"""mosec server of an ONNX model with one input: an item's bytes in, its first output's bytes out.

    MODEL_FILE=model.onnx WORKERS=2 THREADS=1 MAX_BATCH=8 MAX_WAIT_MS=1 python server.py --port 8000

Settings that mosec lacks come from environment variables, which its workers read too.
"""

import os
import sys

import numpy as np

try:
    import onnxruntime
    from mosec import Server, Worker
except ModuleNotFoundError as error:
    sys.exit(
        f"{sys.executable} has no {error.name}: {sys.executable} -m pip install mosec onnxruntime"
    )

DATATYPES = {"float": "f4", "double": "f8", "int32": "i4", "int64": "i8", "uint8": "u1"}
"""ONNX Runtime's names of datatypes -> NumPy's."""


class OnnxModel(Worker):
    """Worker process whose `forward` gets one item, or a list of items if batching is on."""

    resp_mime_type = "application/octet-stream"

    def __init__(self) -> None:
        limits = onnxruntime.SessionOptions()
        limits.intra_op_num_threads = int(os.environ["THREADS"])
        self.session = onnxruntime.InferenceSession(
            os.environ["MODEL_FILE"], limits, providers=["CPUExecutionProvider"]
        )
        (self.input,) = self.session.get_inputs()
        self.datatype = np.dtype(DATATYPES[self.input.type.removeprefix("tensor(").rstrip(")")])
        self.shape = [size if isinstance(size, int) else -1 for size in self.input.shape[1:]]

    def deserialize(self, data: bytes) -> bytes:
        """Return the body unchanged."""
        return data

    def serialize(self, data: bytes) -> bytes:
        """Return the answer unchanged."""
        return data

    def forward(self, data: bytes | list[bytes]) -> bytes | list[bytes]:
        """Run one batch."""
        bodies = data if isinstance(data, list) else [data]
        items = np.stack(
            [np.frombuffer(body, self.datatype).reshape(self.shape) for body in bodies]
        )
        first, *_ = self.session.run(None, {self.input.name: items})
        answers = [row.tobytes() for row in first]
        return answers if isinstance(data, list) else answers[0]


if __name__ == "__main__":
    server = Server()
    server.append_worker(
        OnnxModel,
        num=int(os.environ["WORKERS"]),
        max_batch_size=int(os.environ["MAX_BATCH"]),
        max_wait_time=int(os.environ["MAX_WAIT_MS"]),
    )
    server.run()
