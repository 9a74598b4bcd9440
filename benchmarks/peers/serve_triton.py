"""Triton's python backend on the tritonserver binary that the wheel `nvidia-pytriton` ships.

PyTriton's own Python layer is left out: the model is a plain `model.py` in a model repository, which
is the shorter way.

Settings: port, model, input (its name), max_batch_size (1: no dynamic batching), delay_us, preferred (a batch size to
wait for, or null), instances, threads.
"""

from __future__ import annotations

import os
import pathlib
import shutil
import sys
import tempfile

import pytriton
from peer_model import SETTINGS

HERE = pathlib.Path(__file__).resolve().parent
SITE = pathlib.Path(pytriton.__file__).parent.parent
SERVER = SITE / "pytriton" / "tritonserver"


def configuration() -> str:
    """The model's config.pbtxt."""
    is_echo = SETTINGS["model"] == "echo"
    dims, output = (
        ("3072", "UINT8 dims: [ 3072 ]") if is_echo else ("3, 32, 32", "FP32 dims: [ 10 ]")
    )
    batching = ""
    if SETTINGS["max_batch_size"] > 1:
        preferred = SETTINGS["preferred"]
        wanted = f"preferred_batch_size: [ {preferred} ]" if preferred else ""
        batching = (
            f"dynamic_batching {{ max_queue_delay_microseconds: {SETTINGS['delay_us']} {wanted} }}"
        )
    return f"""
name: "model"
backend: "python"
max_batch_size: {SETTINGS["max_batch_size"]}
input [ {{ name: "{SETTINGS["input"]}" data_type: TYPE_UINT8 dims: [ {dims} ] }} ]
output [ {{ name: "scores" data_type: TYPE_{output} }} ]
instance_group [ {{ kind: KIND_CPU count: {SETTINGS["instances"]} }} ]
{batching}
"""


def main() -> None:
    """Lay out the repository and become the server."""
    folder = pathlib.Path(tempfile.mkdtemp())  # in TMPDIR, which the benchmark removes
    version = folder / "models" / "model" / "1"
    version.mkdir(parents=True)
    (version.parent / "config.pbtxt").write_text(configuration())
    shutil.copy(HERE / "triton_model.py", version / "model.py")
    shutil.copy(HERE / "peer_model.py", version)
    # The backend runs the model in a stub that is built for one version of Python.
    python = f"{sys.version_info.major}.{sys.version_info.minor}"
    stub = SERVER / "python_backend_stubs" / python / "triton_python_backend_stub"
    shutil.copytree(SERVER / "backends", folder / "backends")
    shutil.copy(stub, folder / "backends" / "python" / stub.name)
    # The stub finds its packages through the first python3 of the PATH; with NumPy 2, for which it
    # was not built, its answers would be empty.
    os.environ["PATH"] = os.pathsep.join((f"{sys.prefix}/bin", os.environ["PATH"]))
    libraries = (f"{SITE / 'nvidia_pytriton.libs'}", f"{sys.base_prefix}/lib")  # CUDA's, Python's
    os.environ["LD_LIBRARY_PATH"] = os.pathsep.join(libraries)
    os.execv(
        SERVER / "bin" / "tritonserver",
        [
            "tritonserver",
            f"--model-repository={folder / 'models'}",
            f"--backend-directory={folder / 'backends'}",
            "--http-address=127.0.0.1",
            f"--http-port={SETTINGS['port']}",
            "--allow-grpc=false",
            "--allow-metrics=false",
        ],
    )


if __name__ == "__main__":
    main()
