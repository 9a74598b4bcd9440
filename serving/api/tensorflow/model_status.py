"""Status and metadata of models, as in TensorFlow Serving's REST protocol."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, Literal, NamedTuple

from serving.api.tensorflow.rest_tensors import TYPE_NAMES
from serving.values import Signature, TensorSpec

SIGNATURE_NAME = "serving_default"
State = Literal["LOADING", "AVAILABLE", "END"]
"""State of a version, in TensorFlow Serving's terms."""


class VersionState(NamedTuple):
    """A version of a model and its state."""

    version: str
    state: State
    error: str = ""
    """Why the version failed to load."""


def version_number(version: str) -> int | None:
    """Return a version as a 64-bit number, or None if it is not numeric."""
    if version.isascii() and version.isdecimal() and len(version) <= 18:
        return int(version)
    return None


def status(versions: Sequence[VersionState]) -> dict[str, Any]:
    """Encode the states of a model's versions as JSON."""
    return {
        "model_version_status": [
            {
                "version": version,
                "state": state,
                "status": {"error_code": "UNKNOWN" if error else "OK", "error_message": error},
            }
            for version, state, error in versions
        ]
    }


def metadata(name: str, version: str, signature: Signature) -> dict[str, Any]:
    """Encode the inputs and outputs of a version as JSON."""
    definition = {
        "inputs": {spec.name: _tensor_info(spec) for spec in signature.inputs},
        "outputs": {spec.name: _tensor_info(spec) for spec in signature.outputs},
        "method_name": "tensorflow/serving/predict",
        "defaults": {},
    }
    return {
        "model_spec": {"name": name, "signature_name": "", "version": version},
        "metadata": {
            "signature_def": {
                "@type": "type.googleapis.com/tensorflow.serving.SignatureDefMap",
                "signature_def": {SIGNATURE_NAME: definition},
            }
        },
    }


def _tensor_info(spec: TensorSpec) -> dict[str, Any]:
    return {
        "name": spec.name,
        "dtype": f"DT_{TYPE_NAMES[spec.datatype].upper()}",
        "tensor_shape": {
            "dim": [{"size": str(length), "name": ""} for length in spec.shape],
            "unknown_rank": False,
        },
    }
