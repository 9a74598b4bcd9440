"""An image classifier on mosec: bytes of an image in, bytes of its scores out.

    MODEL_FILE=model.onnx WORKERS=2 THREADS=1 MAX_BATCH=8 MAX_WAIT_MS=1 python server.py --port 8000

What is not mosec's own comes in variables: its worker processes read them as well.
"""

import os

import numpy as np
import onnxruntime
from mosec import Server, Worker


class Classifier(Worker):
    """One process; `forward` gets one item, or a list of them when batching."""

    resp_mime_type = "application/octet-stream"

    def __init__(self) -> None:
        limits = onnxruntime.SessionOptions()
        limits.intra_op_num_threads = int(os.environ["THREADS"])
        self.session = onnxruntime.InferenceSession(
            os.environ["MODEL_FILE"], limits, providers=["CPUExecutionProvider"]
        )
        (self.input,) = self.session.get_inputs()
        self.shape = [n for n in self.input.shape if isinstance(n, int)]

    def deserialize(self, data: bytes) -> bytes:
        """The body as it is."""
        return data

    def serialize(self, data: bytes) -> bytes:
        """The answer as it is."""
        return data

    def forward(self, data: bytes | list[bytes]) -> bytes | list[bytes]:
        """One batch."""
        bodies = data if isinstance(data, list) else [data]
        images = np.frombuffer(b"".join(bodies), np.uint8).reshape(-1, *self.shape)
        (scores,) = self.session.run(None, {self.input.name: images})
        answers = [row.tobytes() for row in scores]
        return answers if isinstance(data, list) else answers[0]


if __name__ == "__main__":
    server = Server()
    server.append_worker(
        Classifier,
        num=int(os.environ["WORKERS"]),
        max_batch_size=int(os.environ["MAX_BATCH"]),
        max_wait_time=int(os.environ["MAX_WAIT_MS"]),
    )
    server.run()
