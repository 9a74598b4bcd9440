"""B: a fuzzer for each reader and each stream, two at a time; their corpora are replayed in the quick run.

The corpus of the repository, `tests/abuse/corpus/TARGET`, and good inputs are where they begin; what they
find is kept in `build/abuse/corpus` for the next run.
"""

from __future__ import annotations

import concurrent.futures
import hashlib
import json
import pathlib
import subprocess
import sys

from tests.abuse import targets
from tests.abuse.cases import Case
from tests.abuse.stage import Context, Stage
from tests.abuse.subject import Subject

_ROOT = pathlib.Path(__file__).resolve().parents[3]
STORED = _ROOT / "tests" / "abuse" / "corpus"
_FOUND = _ROOT / "build" / "abuse" / "corpus"
SECONDS = 110


def corpus(target: str) -> pathlib.Path:
    """A folder with all inputs that are known for a target."""
    folder = _FOUND / target
    folder.mkdir(parents=True, exist_ok=True)
    stored = STORED / target
    known = [path.read_bytes() for path in sorted(stored.iterdir())] if stored.exists() else []
    for data in (*known, *targets.seeds(target)):
        (folder / hashlib.sha1(data).hexdigest()).write_bytes(data)
    return folder


def run(context: Context) -> None:
    """Replay what is known, then fuzz."""
    folders = {name: corpus(name) for name in targets.TARGETS}
    for name, folder in folders.items():
        for path in sorted(folder.iterdir()):
            data = path.read_bytes()
            context.case(
                f"{name}, corpus {path.name[:12]}", targets.escaped(name, data), data, target=name
            )
    seconds = context.size(SECONDS, 1)
    with concurrent.futures.ThreadPoolExecutor(2) as pool:
        jobs = {
            name: pool.submit(_fuzzed, name, folder, seconds, context.rng.getrandbits(31))
            for name, folder in folders.items()
        }
    engines = set()
    for name, job in jobs.items():
        runs, engine, data, wrong = job.result()
        context.count(max(0, runs - 1))
        engines.add(engine)
        context.case(f"{name}, fuzzed", wrong, data, target=name)
    context.note(f"fuzzed by {', '.join(sorted(engines))}")


def _fuzzed(
    target: str, folder: pathlib.Path, seconds: int, seed: int
) -> tuple[int, str, bytes, str | None]:
    """Runs, engine, and the input that failed with what was wrong."""
    done = subprocess.run(
        [sys.executable, "-m", "tests.abuse.fuzz", target, str(folder), str(seconds), str(seed)],
        cwd=_ROOT, capture_output=True, text=True, errors="replace", timeout=seconds + 120, check=False,
    )  # fmt: skip
    lines = [line for line in done.stdout.splitlines() if line.startswith('{"runs"')]
    if not lines:
        return 0, "none", b"", f"the fuzzer ended with {done.returncode}: {done.stderr[-300:]}"
    wrong = [json.loads(line) for line in lines if '"wrong": null' not in line]
    last = wrong[0] if wrong else json.loads(lines[-1])
    told = last["wrong"]
    if told is None and done.returncode:
        told = f"the fuzzer ended with {done.returncode}: {done.stderr[-300:]}"
    return int(last["runs"]), str(last["engine"]), bytes.fromhex(last["data"]), told


def replay(case: Case, subject: Subject) -> str | None:
    """Try a stored input again."""
    return targets.escaped(case.replay["target"], case.data)


STAGE = Stage(
    name="B",
    title="fuzzers of readers and streams",
    half=1,
    run=run,
    is_quick=True,
    limit_s=1200,
    quick_limit_s=120,
    spec=None,
)
