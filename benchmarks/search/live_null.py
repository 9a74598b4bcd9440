"""Studies of configurations that do not differ, served for real: how often one is called better.

    python benchmarks/search/live_null.py [--studies 20] [--data FILE]

Each is a whole `tune`, with finals and verification, in a space whose configurations are the same in all
but name (`null.yaml`, four requests in flight). Verdicts go to `data/live-null.json`, one by one, and what
is there is not run again. Takes some four minutes each, on a machine that does nothing else.
"""

from __future__ import annotations

import argparse
import json
import pathlib
import subprocess
import sys
import tempfile
from typing import Any

HERE = pathlib.Path(__file__).resolve().parent
SPACE = HERE / "null.yaml"
DATA = HERE / "data" / "live-null.json"
MODEL, CONCURRENCY, TRIALS = "linear", 4, 10
TIMEOUT_S = 900.0


def study(seed: int) -> dict[str, Any]:
    """One study's verdict."""
    tune = pathlib.Path(sys.executable).with_name("tune")
    with tempfile.TemporaryDirectory() as folder:
        command = [str(tune), "--model", MODEL, "--concurrency", str(CONCURRENCY)]
        command += ["--space", str(SPACE), "--trials", str(TRIALS), "--seed", str(seed)]
        command += ["--runs-dir", folder, "--study", "null", "--stop-ei", "0", "--json"]
        done = subprocess.run(
            command, stdout=subprocess.PIPE, check=True, text=True, timeout=TIMEOUT_S
        )
    verdict = json.loads(done.stdout).get("verdict")
    if verdict is None:  # the default was the best of all: nothing to compare
        return {"seed": seed, "outcome": "the default", "ratio": None, "interval": None, "pairs": 0}
    return {
        "seed": seed,
        "outcome": verdict["outcome"],
        "ratio": verdict["ratio"],
        "interval": [verdict["interval"]["low"], verdict["interval"]["high"]],
        "pairs": len(verdict["default"]),
    }


def main() -> int:
    """Run the studies that are not there yet."""
    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0])
    parser.add_argument("--studies", type=int, default=20)
    parser.add_argument("--data", type=pathlib.Path, default=DATA)
    arguments = parser.parse_args()
    found: list[dict[str, Any]] = []
    if arguments.data.exists():
        found = json.loads(arguments.data.read_text(encoding="utf-8"))["studies"]
    for seed in range(len(found), arguments.studies):
        found.append(study(seed))
        arguments.data.parent.mkdir(parents=True, exist_ok=True)
        arguments.data.write_text(json.dumps({"studies": found}, indent=1) + "\n", encoding="utf-8")
        sys.stderr.write(f"{seed}: {found[-1]}\n")
    better = sum(one["outcome"] == "better" for one in found)
    sys.stdout.write(f"{better} of {len(found)} studies call one better\n")
    return 0


if __name__ == "__main__":
    sys.exit(main())
