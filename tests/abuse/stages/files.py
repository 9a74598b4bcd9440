"""O: damaged files: settings, cards, models, samples: cut, bit-flipped, bombs, links, FIFOs and devices.

The command that reads such a file must end with 1 or 2 and one line within seconds, without a traceback, or
start where the damage changed nothing that matters; and it must not take much memory to say so.
"""

from __future__ import annotations

import concurrent.futures
import contextlib
import dataclasses
import gzip
import os
import pathlib
import random
import resource
import signal
import subprocess
import sys
import time
from collections.abc import Callable

from tests.abuse import machine
from tests.abuse.cases import Case
from tests.abuse.stage import Context, Stage
from tests.abuse.subject import Subject

_ROOT = pathlib.Path(__file__).resolve().parents[3]
ENDED_S = 8.0
"""Reading a file takes moments; starting Python on a shared core takes the rest."""
MEMORY_MIB = 700
"""Libraries take some 150 MiB; what a file may add is bounded."""
_SCENARIO = b"""seconds: 2
seed: 1
workers: 1
memory_pages: 100
models:
  hot: {copies: 2, profile: resnet50-v100}
traffic:
  hot: {rate: 20, deadline_ms: 100}
"""
_BOMB = "a: &a [x,x,x,x,x,x,x,x,x]\n" + "".join(
    f"{chr(98 + i)}: &{chr(98 + i)} [{','.join([f'*{chr(97 + i)}'] * 9)}]\n" for i in range(9)
)


@dataclasses.dataclass(frozen=True, slots=True, kw_only=True)
class Kind:
    """A kind of file, a good one, and who reads it."""

    name: str
    file: str
    good: bytes
    words: Callable[[pathlib.Path], list[str]]
    may_run: bool = False
    """A good one takes longer than a bad one."""
    beside: dict[str, bytes] = dataclasses.field(default_factory=dict)


def kinds() -> dict[str, Kind]:
    """All of them, with good files from the repository."""
    zoo = _ROOT / "serving" / "zoo"
    onnx = zoo / "mnist" / "model.onnx"
    space = _ROOT / "search_spaces" / "echo.yaml"
    serve = [sys.executable, "-m", "serving", "--port", "0", "--admin-port", "0"]
    tune = [sys.executable, "-m", "tuner", "--model", "echo", "--concurrency", "2"]
    card = b'name: mine\nversion: "1"\nkind: onnx\nfile: model.onnx\nsample: sample.npz\n'
    sample = (zoo / "mnist" / "samples.npz").read_bytes()
    found = [
        Kind(name="settings", file="settings.yaml", good=b"batching: {max_size: 4}\nreplica: {count: 1}\n",
             words=lambda path: [*serve, "--model", "echo", "--settings", str(path)]),
        Kind(name="space", file="space.yaml", good=space.read_bytes(),
             may_run=True, words=lambda path: [*tune, "--space", str(path), "--trials", "1"]),
        Kind(name="scenario", file="scenario.yaml", good=_SCENARIO, may_run=True,
             words=lambda path: [sys.executable, "-m", "tuner", "pool", str(path)]),
        Kind(name="card", file="model.yaml", good=card, beside={"model.onnx": onnx.read_bytes(), "sample.npz": sample},
             words=lambda path: [*serve, "--model", str(path.parent)]),
        Kind(name="onnx", file="model.onnx", good=onnx.read_bytes(),
             words=lambda path: [*serve, "--model", str(path)]),
        Kind(name="sample", file="sample.npz", good=sample,
             beside={"model.yaml": card, "model.onnx": onnx.read_bytes()},
             words=lambda path: [*serve, "--model", str(path.parent)]),
        Kind(name="token", file="token", good=b"a-token-of-many-letters-0123456789\n",
             words=lambda path: [*serve, "--model", "echo", "--set", f"server.token_file={path}"]),
        Kind(name="certificate", file="certificate.pem",
             good=b"-----BEGIN CERTIFICATE-----\nMIIB\n-----END CERTIFICATE-----\n",
             words=lambda path: [*serve, "--model", "echo", "--set", f"server.tls_certificate={path}",
                     "--set", f"server.tls_key={path}"]),
    ]  # fmt: skip
    return {kind.name: kind for kind in found}


def damaged(good: bytes, rng: random.Random, count: int) -> dict[str, bytes]:
    """The file in so many wrong forms."""
    made = {
        "empty": b"",
        "NULs": bytes(1000),
        "noise": rng.randbytes(2000),
        "aliases": _BOMB.encode(),
        "deep": b"[" * 100_000,
        "gzip of 100 MiB": gzip.compress(bytes(100 << 20), 9, mtime=0),
        "a long line": b"a: " + b"b" * 2_000_000,
        "a tag of Python": b"a: !!python/object/apply:os.system ['true']\n",
        "not UTF-8": b"a: \xff\xfe\n",
        "another mapping": b"a: {b: {c: d}}\n",
        "twice": good + good,
    }
    while len(made) < count:
        data = bytearray(good)
        if rng.random() < 0.4:
            del data[rng.randrange(len(data)) :]
        for _ in range(max(1, int(len(data) * 8 * 0.001))):
            if data:
                data[rng.randrange(len(data))] ^= 1 << rng.randrange(8)
        made[f"flipped {len(made)}"] = bytes(data)
    return made


def wrong(kind: Kind, data: bytes | None, folder: pathlib.Path, special: str = "") -> str | None:
    """What is not as promised when a file is read; None: nothing."""
    folder.mkdir(parents=True, exist_ok=True)
    for name, content in kind.beside.items():
        (folder / name).write_bytes(content)
    path = folder / kind.file
    path.unlink(missing_ok=True)
    if special == "FIFO":
        os.mkfifo(path)
    elif special:
        path.symlink_to(special)
    elif data is not None:
        path.write_bytes(data)
    return _ended(kind.words(path), folder, may_run=kind.may_run and not special)


def _ended(words: list[str], folder: pathlib.Path, *, may_run: bool) -> str | None:
    """How a command ended that was to end by itself, or to be ready."""
    environment = {
        **os.environ,
        "PYTHONPATH": str(_ROOT),
        "XDG_CACHE_HOME": str(folder),
        "TMPDIR": str(folder),
    }
    said, complained = folder / "out", folder / "err"
    with said.open("w") as out, complained.open("w") as err:
        process = subprocess.Popen(
            words,
            cwd=folder,
            env=environment,
            stdin=subprocess.DEVNULL,
            stdout=out,
            stderr=err,
            start_new_session=True,
        )
    with contextlib.suppress(OSError):  # a device has no end: the machine must have one
        resource.prlimit(process.pid, resource.RLIMIT_DATA, (4 << 30, 4 << 30))
    began_s = time.monotonic()
    peak_mib = 0.0
    while time.monotonic() - began_s < ENDED_S and '"ready"' not in said.read_text(
        errors="replace"
    ):
        # Not what wait4 says: that counts what this process had in memory when it started the other.
        peak_mib = max(peak_mib, machine.memory_mib(process.pid, "VmHWM"))
        pid, status = os.waitpid(process.pid, os.WNOHANG)
        if pid:
            process.returncode = os.waitstatus_to_exitcode(status)
            break
        time.sleep(0.02)
    took_s = time.monotonic() - began_s
    was_ready = '"ready"' in said.read_text(errors="replace")
    has_ended = process.returncode is not None
    if not has_ended and not _stopped(process):
        return f"it did not end: {_end_of(complained)}"
    text = complained.read_text(errors="replace")
    if "Traceback (most recent call last)" in text:
        return f"a traceback: {_end_of(complained)}"
    if not has_ended:
        return (
            None
            if was_ready or may_run
            else f"neither ended nor ready within {ENDED_S:g} s: {_end_of(complained)}"
        )
    if process.returncode not in {0, 1, 2}:
        return f"ended with {process.returncode} after {took_s:.1f} s: {_end_of(complained)}"
    if process.returncode and not text.strip():
        return "it ended without a word"
    if peak_mib > MEMORY_MIB:
        return f"it took {peak_mib:.0f} MiB"
    return None


def _stopped(process: subprocess.Popen[bytes]) -> bool:
    """End it in order; False: it had to be killed."""
    process.send_signal(signal.SIGTERM)
    try:
        process.wait(10)
    except subprocess.TimeoutExpired:
        os.killpg(process.pid, signal.SIGKILL)
        process.wait()
        return False
    return True


def _end_of(file: pathlib.Path) -> str:
    return repr(file.read_text(errors="replace")[-150:])


def run(context: Context) -> None:
    """Every kind in every form; those that start a server well are stopped."""
    count = context.size(40, 6)
    jobs: list[tuple[str, Kind, bytes | None, str]] = []
    for kind in kinds().values():
        jobs += [
            (name, kind, data, "") for name, data in damaged(kind.good, context.rng, count).items()
        ]
        jobs += [
            (special, kind, None, special)
            for special in (
                "FIFO",
                "/dev/zero",
                "/nowhere/at/all",
                "/proc/self/mem",
                str(context.folder),
            )
        ]
    with concurrent.futures.ThreadPoolExecutor(2) as pool:
        for number, (name, kind, data, special) in enumerate(jobs):
            folder = context.folder / f"f{number}"
            pool.submit(_one, context, f"{kind.name}: {name}", kind, data, special, folder)


def _one(
    context: Context, name: str, kind: Kind, data: bytes | None, special: str, folder: pathlib.Path
) -> None:
    if context.left_s < 20:
        context.note(f"no time for {name}")
        return
    try:
        found = wrong(kind, data, folder, special)
    except OSError as error:
        found = f"{type(error).__name__}: {error}"
    context.case(name, found, data or special.encode(), kind=kind.name, special=special)


def replay(case: Case, subject: Subject) -> str | None:
    """Try a stored file again."""
    special = case.replay["special"]
    return wrong(
        kinds()[case.replay["kind"]],
        None if special else case.data,
        subject.folder / "file",
        special,
    )


STAGE = Stage(
    name="O",
    title="damaged files",
    half=2,
    run=run,
    limit_s=480,
    spec=None,
)
