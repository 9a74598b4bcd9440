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
    "serving/dispatch/actions.py",
    "serving/dispatch/connection.py",
    "serving/dispatch/dispatcher.py",
    "serving/dispatch/ended.py",
    "serving/dispatch/job.py",
    "serving/dispatch/loads.py",
    "serving/dispatch/refusals.py",
    "serving/dispatch/worker.py",
    "serving/metrics/counters.py",
    "serving/metrics/statistics.py",
    "serving/profiles.py",
    "serving/protocol/grpc_oip/codec.py",
    "serving/protocol/grpc_oip/listener.py",
    "serving/protocol/grpc_oip/messages.py",
    "serving/protocol/grpc_oip/repeats.py",
    "serving/protocol/grpc_oip/routes.py",
    "serving/protocol/grpc_oip/streams.py",
    "serving/protocol/held.py",
    "serving/protocol/http.py",
    "serving/protocol/http2/events.py",
    "serving/protocol/http2/fields.py",
    "serving/protocol/http2/frames.py",
    "serving/protocol/http2/outgoing.py",
    "serving/protocol/http2/series.py",
    "serving/protocol/http2/session.py",
    "serving/protocol/http_messages.py",
    "serving/protocol/http_reader.py",
    "serving/protocol/known_heads.py",
    "serving/protocol/oip.py",
    "serving/protocol/oip_answers.py",
    "serving/protocol/oip_requests.py",
    "serving/protocol/routes.py",
    "serving/replica/answers.py",
    "serving/replica/arrays.py",
    "serving/replica/collation.py",
    "serving/replica/execution.py",
    "serving/replica/host.py",
    "serving/replica/wire/batches.py",
    "serving/replica/wire/frames.py",
    "serving/replica/wire/stream.py",
    "serving/scheduling/adaptive/fair_queue.py",
    "serving/scheduling/adaptive/queue.py",
    "serving/scheduling/adaptive/scheduler.py",
    "serving/scheduling/adaptive/shedding.py",
    "serving/scheduling/adaptive/sizing.py",
    "serving/scheduling/adaptive/workers.py",
    "serving/scheduling/seam.py",
    "serving/served.py",
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
