"""I: a replica that lies in its HELLO, its LOADED or its RESULTs, beside a model that must not notice.

Each case deploys the hostile program under a seed, asks it where it got so far, and takes it away. The
gateway must answer each request and each command, within the time-outs that are set, and go on.
"""

from __future__ import annotations

import concurrent.futures
import json
import pathlib
import shutil
import threading

from tests.abuse.stage import Allowance, Context, Stage
from tests.abuse.subject import Subject, SubjectSpec

_PROGRAM = pathlib.Path(__file__).resolve().parents[1] / "hostile_replica.py"
_BODY = json.dumps(
    {"inputs": [{"name": "x", "shape": [1, 2], "datatype": "UINT8", "data": [1, 2]}]}
)
_LANES = 4
_FAIR = {200, 500, 503, 504}
PHASES = ("hello", "loaded", "result", "child")


def run(context: Context) -> None:
    """As many seeds as the time allows, some at a time."""
    count = context.size(2000, 20)
    seeds = [context.rng.getrandbits(32) for _ in range(count)]
    lock = threading.Lock()

    def lane(number: int) -> None:
        for at in range(number, count, _LANES):
            if context.left_s < 30:
                return
            phase = PHASES[(at // _LANES) % len(PHASES)]
            wrong = _tried(
                context.subject,
                context.folder / f"lane{number}",
                f"hostile-{number}",
                seeds[at],
                phase,
            )
            with lock:
                name = f"{phase}, seed {seeds[at]}"
                context.case(name, wrong, str(seeds[at]).encode(), phase=phase, seed=seeds[at])

    with concurrent.futures.ThreadPoolExecutor(_LANES) as pool:
        list(pool.map(lane, range(_LANES)))


def warm(context: Context) -> None:
    """The home of the kind is open: it stays for the next model of it, whatever this one was."""
    wrong = _tried(context.subject, context.folder / "honest", "honest", 0, "never")
    assert wrong is None, wrong


def _tried(subject: Subject, folder: pathlib.Path, name: str, seed: int, phase: str) -> str | None:
    folder.mkdir(exist_ok=True)
    shutil.copy(_PROGRAM, folder / "hostile.py")
    words = ["python3", "-I", "-S", str(folder / "hostile.py"), str(seed), phase]
    (folder / "model.yaml").write_text(
        json.dumps({"name": name, "version": "1", "kind": "command", "command": words})
    )
    deploy = json.dumps({"model": str(folder), "name": name})
    try:
        status, answer = subject.ask("POST", "/admin/models", deploy, admin=True, timeout_s=15)
        if status not in {201, 400, 409, 500}:
            return f"deploying was answered {status}: {answer[:100]!r}"
        if status == 201:
            for _ in range(2):
                status, answer = subject.ask(
                    "POST", f"/v2/models/{name}/infer", _BODY, timeout_s=15
                )
                if status not in _FAIR:
                    return f"a request was answered {status}: {answer[:100]!r}"
            path = f"/admin/models/{name}/versions/1"
            status, answer = subject.ask("DELETE", path, admin=True, timeout_s=15)
            if status != 200:
                return f"taking it away was answered {status}: {answer[:100]!r}"
    except OSError as error:
        return f"{type(error).__name__}: {error}"
    return None


SPEC = SubjectSpec(
    settings={
        "replica.ready_timeout_s": 1,
        "replica.hang_timeout_s": 1,
        "replica.warmup_s": 0,
        "scheduling.default_deadline_s": 3,
    }
)
STAGE = Stage(
    name="I",
    title="a hostile replica",
    half=2,
    run=run,
    warm=warm,
    limit_s=300,
    spec=SPEC,
    allowance=Allowance(peak_mib=256, log_lines_per_case=1),
)
