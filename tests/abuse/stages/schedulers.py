"""S: the laws of the schedulers, each with thousands of generated schedules in virtual time.

What Clockwork admitted is in time, whatever the mixture of deadlines; an idle server serves what can be served;
after a disturbance as much is done as without it. The ordinary suite tries the same with 200 schedules each.
"""

from __future__ import annotations

import os
import pathlib
import re
import subprocess
import sys

from tests.abuse.stage import Context, Stage

_ROOT = pathlib.Path(__file__).resolve().parents[3]
_SCHEDULING = "tests/serving/scheduling"
LAWS = {
    "what was admitted is in time": f"{_SCHEDULING}/clockwork/test_promises.py",
    "what can be in time is served": f"{_SCHEDULING}/test_adaptive_promises.py",
    "one stall costs one stall": f"{_SCHEDULING}/test_adaptive_recovery.py",
}
"""What each says -> where it is."""
SCHEDULES = 2000


def run(context: Context) -> None:
    """One law after another, with the seed of the run."""
    count = context.size(SCHEDULES, 50)
    for name, file in LAWS.items():
        done = subprocess.run(
            [sys.executable, "-m", "pytest", "-q", "-c", os.devnull, "--rootdir", str(_ROOT), "--color=no",
             "--import-mode=importlib", "-p", "no:cacheprovider", f"--hypothesis-seed={context.seed}", file],
            cwd=_ROOT, capture_output=True, text=True, check=False, timeout=max(10.0, context.left_s),
            env={**os.environ, "LUTHIER_SCHEDULES": str(count)},
        )  # fmt: skip
        found = re.findall(r"(?m)^(?:FAILED|ERROR) (.*)$|^E +(.*)$", done.stdout)
        told = "; ".join(a or b for a, b in found) or done.stderr[-300:] or done.stdout[-300:]
        context.count(count - 1)
        context.case(name, None if done.returncode == 0 else told)


STAGE = Stage(
    name="S",
    title="schedulers: laws of generated schedules",
    half=1,
    run=run,
    is_quick=True,
    limit_s=900,
    quick_limit_s=60,
    modules={"hypothesis": "hypothesis", "pytest": "pytest"},
    spec=None,
)
