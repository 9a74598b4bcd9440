"""REST codec of the Open Inference Protocol v2, for one model version."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from serving.api.open_inference.request_decoder import RequestDecoder
from serving.api.open_inference.response_encoder import ResponseEncoder
from serving.api.parsing.bounded_json import MAX_JSON_BYTES
from serving.values import Signature

EXTENSIONS = ("binary_tensor_data", "classification", "schedule_policy")


class RestCodec:
    """Decoder and encoder for one model version."""

    def __init__(
        self,
        name: str,
        version: str,
        signature: Signature,
        max_json_bytes: int = MAX_JSON_BYTES,
    ) -> None:
        self._name = name
        self._signature = signature
        self.requests = RequestDecoder(name, signature, max_json_bytes)
        self.answers = ResponseEncoder(name, version, signature)

    def metadata(self, versions: Sequence[str]) -> dict[str, Any]:
        """Return the model's metadata with its served versions."""
        signature = self._signature
        known = {"parameters": signature.parameters} if signature.parameters else {}
        return {
            "name": self._name,
            "versions": list(versions),
            "platform": signature.platform,
            "inputs": [spec.as_json() for spec in signature.inputs],
            "outputs": [spec.as_json() for spec in signature.outputs],
            **known,
        }
