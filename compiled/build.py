"""The compiled form of the request path: the modules below through mypyc.

    python compiled/build.py DIR [FOLDER...]
    python compiled/build.py DIR --wheel FOLDER
    python compiled/build.py --check

Copies the checkout, or some folders of it, to DIR and compiles there, or takes the libraries from a wheel that
compiled/wheel.py has put into a folder; the checkout stays pure Python. Both
forms are the same source, and the pure one is the reference. Needs a C compiler, Python's headers, mypy and
setuptools; `--check` tells whether the first two are there. Takes one to two minutes.
Why: docs/decisions/0007-compiled-form.md.
"""

from __future__ import annotations

import os
import pathlib
import shutil
import sys
import sysconfig
import zipfile

from mypyc.build import mypycify
from setuptools import Distribution
from setuptools.command.build_ext import build_ext

ROOT = pathlib.Path(__file__).resolve().parent.parent

MODULES = (
    "serving/deployment/dispatch/actions.py",
    "serving/deployment/dispatch/connection.py",
    "serving/deployment/dispatch/dispatcher.py",
    "serving/deployment/dispatch/inflight.py",
    "serving/deployment/dispatch/model_load.py",
    "serving/deployment/dispatch/request_table.py",
    "serving/metrics/counters.py",
    "serving/metrics/statistics.py",
    "serving/scheduling/adaptive/batch_planner.py",
    "serving/scheduling/adaptive/batch_times.py",
    "serving/api/grpc/codec.py",
    "serving/api/grpc/listener.py",
    "serving/api/grpc/messages.py",
    "serving/api/grpc/parse_cache.py",
    "serving/api/grpc/routes.py",
    "serving/api/grpc/streams.py",
    "serving/api/transport/buffered_bytes.py",
    "serving/api/transport/listener.py",
    "serving/api/http/exchange.py",
    "serving/api/http/listener.py",
    "serving/api/http2/events.py",
    "serving/api/http2/fields.py",
    "serving/api/http2/frame_reader.py",
    "serving/api/http2/frames.py",
    "serving/api/http2/incoming.py",
    "serving/api/http2/outgoing.py",
    "serving/api/http2/responder.py",
    "serving/api/http2/session.py",
    "serving/api/http/messages.py",
    "serving/api/http/pipeline.py",
    "serving/api/http/reader.py",
    "serving/api/http/head_cache.py",
    "serving/api/http/head_fields.py",
    "serving/api/open_inference/codec.py",
    "serving/api/open_inference/infer_request.py",
    "serving/api/open_inference/parameters.py",
    "serving/api/open_inference/skeleton.py",
    "serving/api/open_inference/response_encoder.py",
    "serving/api/open_inference/request_decoder.py",
    "serving/api/open_inference/routes.py",
    "serving/replica/output_frames.py",
    "serving/tensors/arrays.py",
    "serving/replica/collation.py",
    "serving/replica/request_plan.py",
    "serving/replica/execution.py",
    "serving/replica/main_loop.py",
    "serving/replica/message_socket.py",
    "serving/wire/batches.py",
    "serving/wire/frames.py",
    "serving/wire/stream.py",
    "serving/scheduling/adaptive/fair_queue.py",
    "serving/scheduling/adaptive/queue.py",
    "serving/scheduling/adaptive/scheduler.py",
    "serving/scheduling/adaptive/shedding.py",
    "serving/scheduling/adaptive/sizing.py",
    "serving/scheduling/adaptive/workers.py",
    "serving/scheduling/interface.py",
    "serving/deployment/deployment.py",
)
"""What runs once per request or per batch. They are compiled together, so that they call one another directly."""

_OPTIONS = ("--config-file=", "--ignore-missing-imports")
"""Of mypy: `make check` is what checks. Where a wheel is built most of what is imported is not installed, so the strict
rules of pyproject.toml would refuse what they cannot see, such as a class that extends one of a missing package."""

_NOT_COPIED = (".*", "__pycache__", "build", "dist", "runs", "*.egg-info", "*.so")


def lacking() -> str | None:
    """What this machine lacks for compiling, in a line; nothing if it can compile."""
    compiler = os.environ.get("CC") or sysconfig.get_config_var("CC") or "cc"
    if shutil.which(compiler.split()[0]) is None:
        return f"no C compiler, {compiler.split()[0]}; on Debian: apt-get install gcc"
    headers = pathlib.Path(sysconfig.get_path("include"))
    if not (headers / "Python.h").exists():
        return f"no Python.h in {headers}; on Debian: apt-get install python3-dev"
    return None


def copy(target: pathlib.Path, folders: list[str]) -> None:
    """Copy the checkout, or folders of it and its pyproject.toml; what was at the target is replaced."""
    shutil.rmtree(target, ignore_errors=True)
    ignored = shutil.ignore_patterns(*_NOT_COPIED)
    if not folders:
        shutil.copytree(ROOT, target, ignore=ignored)
        return
    target.mkdir(parents=True)
    shutil.copy(ROOT / "pyproject.toml", target)
    for folder in folders:
        shutil.copytree(ROOT / folder, target / folder, ignore=ignored)


def build(folder: pathlib.Path) -> None:
    """Compile the modules of a copy where they stand."""
    os.chdir(folder)  # mypyc names modules by their paths
    extensions = mypycify(
        [*_OPTIONS, *MODULES],
        opt_level="2",
        debug_level="0",
        group_name="luthier",
    )
    command = build_ext(Distribution({"name": "luthier", "ext_modules": extensions}))
    command.inplace = True
    command.build_temp = "build"
    command.ensure_finalized()
    command.run()


def take(folder: pathlib.Path, wheels: pathlib.Path) -> None:
    """Put the libraries of the wheel into a copy."""
    (wheel,) = wheels.glob("luthier-*.whl")
    with zipfile.ZipFile(wheel) as archive:
        archive.extractall(folder, [name for name in archive.namelist() if name.endswith(".so")])


if __name__ == "__main__":
    if missing := lacking():
        sys.exit(f"the request path cannot be compiled here: {missing}")
    if sys.argv[1] != "--check":
        place, is_made = pathlib.Path(sys.argv[1]).resolve(), sys.argv[2:3] == ["--wheel"]
        copy(place, [] if is_made else sys.argv[2:])
        if is_made:
            take(place, pathlib.Path(sys.argv[3]))
        else:
            build(place)
