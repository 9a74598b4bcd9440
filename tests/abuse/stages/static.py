"""R: what reads the code, and the versions of what it needs: bandit, pip-audit.

What bandit may find is listed with its reason; anything else fails. pip-audit asks a list of known faults
over a network: where that is out of reach the stage says so.
"""

from __future__ import annotations

import importlib.metadata
import json
import pathlib
import subprocess
import sys

from tests.abuse.stage import Context, Stage

_ROOT = pathlib.Path(__file__).resolve().parents[3]
TRIAGED: dict[str, str] = {
    "B101": "asserts narrow types; input is never checked by them",
    "B311": "random numbers sample, they keep no secret",
    "B404": "replicas and engines are processes",
    "B603": "words, never a shell",
    "B607": "programs of the PATH are meant",
    "B110": "ruff's S110 looks at those",
    "B112": "likewise",
    "B105": "names of variables and fields that hold tokens, not tokens",
    "B106": "likewise",
    "B107": "likewise",
    "B606": "a program is started in place of this process, without a shell",
    "B104": "an address of a container's own network, in what is exported",
    "B301": "MLflow's own models, and only with --trust",
    "B310": "addresses that the operator gave, over HTTP alone",
    "B108": "names below the temporary folder, which are checked for their owner",
}
"""Test of bandit -> why what it finds is no fault here; ruff's rules S look at each place with its own reason."""


def run(context: Context) -> None:
    """Both."""
    done = subprocess.run(
        [sys.executable, "-m", "bandit", "-q", "-r", "serving", "tuner", "-f", "json"],
        cwd=_ROOT, capture_output=True, text=True, check=False, timeout=300,
    )  # fmt: skip
    found = json.loads(done.stdout[done.stdout.index("{") :])["results"]
    context.count(len(found))
    for one in found:
        if one["test_id"] not in TRIAGED and one["issue_severity"] != "LOW":
            where = f"{one['filename']}:{one['line_number']}"
            context.case(f"bandit {one['test_id']} at {where}", one["issue_text"])
    _audit(context)


def _audit(context: Context) -> None:
    names = sorted(
        f"{package.metadata['Name']}=={package.version}"
        for package in importlib.metadata.distributions()
        if package.metadata["Name"] not in {"luthier", None}
    )
    pinned = context.folder / "pinned.txt"
    pinned.write_text("\n".join(dict.fromkeys(names)) + "\n")
    done = subprocess.run(
        [sys.executable, "-m", "pip_audit", "-r", str(pinned), "--no-deps", "--disable-pip",
         "-f", "json", "--timeout", "15"],
        capture_output=True, text=True, check=False, timeout=240,
    )  # fmt: skip
    try:
        packages = json.loads(done.stdout)["dependencies"]
    except (ValueError, KeyError):
        context.note(
            f"pip-audit reaches no list of known faults here: {done.stderr.strip()[-160:]}"
        )
        return
    for package in packages:
        for fault in package.get("vulns", []):
            context.case(
                f"{package['name']} {package['version']}: {fault['id']}",
                str(fault.get("fix_versions")),
            )
        context.count(1)


STAGE = Stage(
    name="R",
    title="static: bandit, pip-audit",
    half=2,
    run=run,
    limit_s=600,
    modules={"bandit": "bandit", "pip_audit": "pip-audit"},
    spec=None,
)
