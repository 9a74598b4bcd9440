"""Optimised copies of ONNX models, whose graph was optimised for this processor.

A key (SHA-256 of the file, versions of the runtime and Luthier, options, processor) names a folder
in the user's cache, which a replica writes on request. A folder is complete once it exists and
never changes, as replicas map its weights; it may be deleted at any time. The least recently loaded
copies are removed once they exceed a total size or an age. As the files determine responses, only
folders that nobody else can write to are used.
"""

from __future__ import annotations

import contextlib
import functools
import hashlib
import json
import logging
import mmap
import os
import pathlib
import shutil
import tempfile
import time
from collections.abc import Mapping

import onnxruntime

from serving import __version__
from serving.models import cuda
from serving.models.onnx_session import open_session, reason_of, session_options
from serving.system import fingerprint, machine, private_folder

log = logging.getLogger(__name__)

COPIES = "optimised"
MOST_BYTES = 16 * 2**30
MOST_DAYS = 30
_LEAST_FREE = 4
_UNFINISHED = ".new-"
_LEFT_S = 3600.0
_DAY_S = 86_400.0
_GRAPH, _WEIGHTS = "model.onnx", "weights.bin"
_MAPPED_BYTES = 65_536
_WRITING: Mapping[str, str] = {
    "session.optimized_model_external_initializers_file_name": _WEIGHTS,
    "session.optimized_model_external_initializers_min_size_in_bytes": str(_MAPPED_BYTES),
}
_FITS = json.dumps([__version__, onnxruntime.__version__, _WRITING, machine.cpu_digest()])
"""Key without the file's digest, computed once, before replicas are forked."""
_ADVICE = "set XDG_CACHE_HOME"


def copy_of(digest: str) -> pathlib.Path | None:
    """Return the folder of the optimised copy for this digest, or None if no folder is safe."""
    name = hashlib.sha256(f"{digest} {_FITS}".encode()).hexdigest()[:32]
    try:
        folder = private_folder.ensure(private_folder.cache_folder() / COPIES, advice=_ADVICE)
        copy = folder / name
        if copy.is_symlink() or copy.exists():
            private_folder.check(copy, advice=_ADVICE)
    except OSError as error:
        _tell(str(error))
        return None
    return copy


@functools.cache
def _tell(reason: str) -> None:
    log.warning("models are loaded from their original files", extra={"reason": reason})


def write_copy(copy: pathlib.Path, path: pathlib.Path, digest: str) -> bool:
    """Write the optimised model of `path` to the folder `copy`; return whether it exists.

    The folder is created atomically, from a duplicate with SHA-256 `digest`, as the file may be
    replaced at any time; so models with external weights get no copy. Failures are logged.
    """
    try:
        size = path.stat().st_size
        if _LEAST_FREE * size > min(shutil.disk_usage(copy.parent).free, MOST_BYTES):
            raise OSError(
                f"{copy.parent} has less free space than {_LEAST_FREE} times the size of a model"
            )
        with tempfile.TemporaryDirectory(dir=copy.parent, prefix=_UNFINISHED) as name:
            own, made = pathlib.Path(name, "own", "model.onnx"), pathlib.Path(name, "made")
            own.parent.mkdir(mode=0o700)
            made.mkdir(mode=0o700)
            shutil.copyfile(path, own)
            if fingerprint.digest_of(own) != digest:
                raise ValueError("it has changed since it was deployed")
            _optimise(own, made)
            made.rename(copy)
    except Exception as error:  # no disk space, or one of the runtime's exceptions
        if not copy.is_dir():  # otherwise another replica was faster
            facts = {"model": str(path), "error": reason_of(error)}
            log.warning("no optimised copy is written", extra=facts)
            return False
    _trim(copy.parent)
    return True


def _optimise(path: pathlib.Path, folder: pathlib.Path) -> None:
    options = session_options(threads=1)
    options.optimized_model_filepath = str(folder / _GRAPH)
    for name, value in _WRITING.items():
        options.add_session_config_entry(name, value)
    open_session(path, options, cuda.CPU)
    for file in folder.iterdir():
        with file.open("rb") as written:
            os.fsync(written.fileno())
    open_session(folder / _GRAPH, _as_it_is(session_options(threads=1)), cuda.CPU)


def _trim(folder: pathlib.Path) -> None:
    used_s: dict[pathlib.Path, float] = {}
    with contextlib.suppress(OSError):
        for copy in folder.iterdir():
            with contextlib.suppress(OSError):  # removed by another replica
                used_s[copy] = copy.stat().st_mtime
    together = 0
    for copy in sorted(used_s, key=lambda one: -used_s[one]):
        with contextlib.suppress(OSError):
            together += sum(file.stat().st_size for file in copy.glob("*"))
        most_s = _LEFT_S if copy.name.startswith(_UNFINISHED) else MOST_DAYS * _DAY_S
        if together > MOST_BYTES or time.time() - used_s[copy] > most_s:
            shutil.rmtree(copy, ignore_errors=True)


def open_copy(copy: pathlib.Path, threads: int) -> onnxruntime.InferenceSession | None:
    """Open a session with an optimised model, or return None; a broken copy is removed."""
    if not copy.is_dir():
        return None
    try:
        with contextlib.suppress(OSError):  # read-only file system
            os.utime(copy)  # the least recently loaded are removed first
        _read_in(copy / _WEIGHTS)
        return open_session(copy / _GRAPH, _as_it_is(session_options(threads=threads)), cuda.CPU)
    except Exception as error:  # removed meanwhile, or corrupt
        facts = {"folder": str(copy), "error": reason_of(error)}
        log.warning(
            "the optimised copy cannot be loaded; the model's own file is loaded", extra=facts
        )
        shutil.rmtree(copy, ignore_errors=True)
        return None


def _read_in(weights: pathlib.Path) -> None:
    """Read the weights into memory, so no batch waits for a disk."""
    if not weights.is_file() or not weights.stat().st_size:
        return
    with weights.open("rb") as file:
        flags = mmap.MAP_SHARED | mmap.MAP_POPULATE
        mmap.mmap(file.fileno(), 0, flags=flags, prot=mmap.PROT_READ).close()


def _as_it_is(options: onnxruntime.SessionOptions) -> onnxruntime.SessionOptions:
    options.graph_optimization_level = onnxruntime.GraphOptimizationLevel.ORT_DISABLE_ALL
    return options
