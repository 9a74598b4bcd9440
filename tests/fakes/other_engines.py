"""Engine files for the tiny server beside this file, and whether processes are gone."""

from __future__ import annotations

import pathlib
import time

TINY = pathlib.Path(__file__).with_name("tiny_server.py")
ENGINE = """
name: tiny
command: ["{{python}}", "{server}", "{{port}}", "{{delay.ms}}", "{fault}"]
ready: {{path: /health, timeout_s: {ready_s}}}
request: {{protocol: raw, path: /predict, body: body.txt}}
stop: {{signal: TERM, grace_s: 0.3}}
knobs:
  delay.ms: {{type: int, choices: [1, 20], default: 20, unit: ms}}
"""
MEMORY = "  engine.memory_mb: {type: int, choices: [64, 96], default: 64, unit: MiB}\n"


def text(fault: str = "none", *, ready_s: float = 20, knobs: str = "") -> str:
    """An engine file; `knobs` are further entries."""
    return ENGINE.format(server=TINY, fault=fault, ready_s=ready_s) + knobs


def written(folder: pathlib.Path, fault: str = "none", **options: object) -> pathlib.Path:
    """The file with its body beside it."""
    folder.mkdir(parents=True, exist_ok=True)
    (folder / "body.txt").write_text("hello")
    path = folder / "engine.yaml"
    path.write_text(text(fault, **options))  # type: ignore[arg-type]
    return path


def is_alive(pid: int) -> bool:
    """Whether a process is there and is no zombie."""
    try:
        stat = pathlib.Path(f"/proc/{pid}/stat").read_text(encoding="latin-1")
    except OSError:
        return False
    return stat.rpartition(")")[2].split()[0] != "Z"


def gone(pids: set[int], *, within_s: float = 10.0) -> bool:
    """Whether all processes end in time."""
    until_s = time.monotonic() + within_s
    while any(map(is_alive, pids)) and time.monotonic() < until_s:
        time.sleep(0.02)
    return not any(map(is_alive, pids))


def with_argument(word: str) -> set[int]:
    """Processes that have a word on their command line."""
    found = set()
    for path in pathlib.Path("/proc").glob("[0-9]*/cmdline"):
        try:
            words = path.read_bytes().split(b"\0")
        except OSError:
            continue
        if word.encode() in words:
            found.add(int(path.parent.name))
    return found
