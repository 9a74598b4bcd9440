"""Answers of `tune ab --json` about two files, for benchmarks that compare.

In: the contents of two settings or engine files, and the load. Out: its JSON, and its exit code. The files are
temporary, and nothing is left of a comparison that takes too long.
"""

from __future__ import annotations

import json
import pathlib
import subprocess
import sys
import tempfile
import threading
from collections.abc import Callable, Collection, Mapping, Sequence
from typing import Any

import yaml

ROOT = pathlib.Path(__file__).resolve().parents[1]
SPARE_S = 120.0
"""For what `tune ab` does beside its measuring, before it is given up."""


def ask(
    sides: Sequence[Mapping[str, Any]],
    *,
    model: str,
    concurrency: int,
    max_time_s: float,
    more: Sequence[str] = (),
    answers: Collection[int] = (0,),
    hear: Callable[[str], None] = lambda _: None,
) -> tuple[Mapping[str, Any], int]:
    """Run `tune ab`; returns its answer and its exit code.

    Args:
        sides: what stands in the files of A and B.
        model: of both.
        concurrency: requests in flight.
        max_time_s: of the measuring.
        more: options.
        answers: exit codes that are answers.
        hear: called with each line of its progress.

    Raises:
        SystemExit: it could not be measured, or took too long.
    """
    with tempfile.TemporaryDirectory() as folder:
        files = [str(pathlib.Path(folder) / f"{role}.yaml") for role in "ab"]
        for file, content in zip(files, sides, strict=True):
            pathlib.Path(file).write_text(yaml.safe_dump(content), encoding="utf-8")
        command = [sys.executable, "-m", "tuner", "ab", *files, "--json", "--model", model, *more]
        command += ["--concurrency", str(concurrency), "--max-time", f"{max_time_s:g}s"]
        process = subprocess.Popen(
            command, cwd=ROOT, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True
        )
        end = threading.Timer(max_time_s + SPARE_S, process.terminate)
        end.start()
        try:
            with process:
                assert process.stdout is not None
                assert process.stderr is not None
                said = ""
                for line in process.stderr:
                    said = line
                    hear(line)
                out = process.stdout.read()
        finally:
            end.cancel()
    if process.returncode not in answers:
        raise SystemExit(f"tune ab of {model} ended with {process.returncode}: {said.strip()}")
    return json.loads(out), process.returncode
