"""Script that runs `tritonserver` from the wheel `nvidia-pytriton`, with its Python backend.

    python start.py --port 8000 --work FOLDER

FOLDER holds `models/NAME/config.pbtxt` for one model; everything else that Triton needs is put next
to it. Run this with the interpreter that has `nvidia-pytriton` installed.
"""

from __future__ import annotations

import argparse
import os
import pathlib
import shutil
import sys

try:
    import onnxruntime  # noqa: F401  what model.py lacks is reported here, not in one of Triton's many lines
    import pytriton
except ModuleNotFoundError as error:
    install = f"{sys.executable} -m pip install nvidia-pytriton onnxruntime"
    sys.exit(f"{sys.executable} has no {error.name}: {install}")

SITE = pathlib.Path(pytriton.__file__).parent.parent
SERVER = SITE / "pytriton" / "tritonserver"


def main() -> None:
    """Set up the model repository and the backend, and start the server."""
    parser = argparse.ArgumentParser()
    parser.add_argument("--port", type=int, required=True)
    parser.add_argument("--work", type=pathlib.Path, required=True)
    options = parser.parse_args()
    for configuration in options.work.glob("models/*/config.pbtxt"):
        version = configuration.parent / "1"
        version.mkdir()
        shutil.copy(pathlib.Path(__file__).with_name("model.py"), version)
    # The backend runs the model in a stub that is built for one version of Python.
    python = f"{sys.version_info.major}.{sys.version_info.minor}"
    stub = SERVER / "python_backend_stubs" / python / "triton_python_backend_stub"
    if not stub.exists():
        known = sorted(path.name for path in stub.parent.parent.iterdir())
        sys.exit(
            f"this Triton has a Python stub only for {', '.join(known)}, not for Python {python}"
        )
    backends = options.work / "backends"
    shutil.copytree(SERVER / "backends" / "python", backends / "python", symlinks=True)
    shutil.copy(stub, backends / "python")
    # The stub finds its packages through the first python3 of the PATH, its libraries (CUDA's, and
    # Python's own) through LD_LIBRARY_PATH.
    os.environ["PATH"] = os.pathsep.join((f"{sys.prefix}/bin", os.environ["PATH"]))
    libraries = (f"{SITE / 'nvidia_pytriton.libs'}", f"{sys.base_prefix}/lib")
    os.environ["LD_LIBRARY_PATH"] = os.pathsep.join(libraries)
    os.execv(
        SERVER / "bin" / "tritonserver",
        [
            "tritonserver",
            f"--model-repository={options.work / 'models'}",
            f"--backend-directory={backends}",
            "--http-address=127.0.0.1",
            f"--http-port={options.port}",
            "--allow-grpc=false",
            "--allow-metrics=false",
        ],
    )


if __name__ == "__main__":
    main()
