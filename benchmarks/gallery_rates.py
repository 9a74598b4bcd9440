"""How many requests a second a server answers at concurrency 8, over a bare loop of the same runtime.

In: a model with requests, and settings that were recommended. Out: rates of alternating rounds, the
server at the best of a few settings, the loop at the best of its forms.
"""

from __future__ import annotations

import contextlib
import dataclasses
import os
import pathlib
import statistics
from collections.abc import Mapping, Sequence
from typing import Any

import gallery_bare
import server_process
from gallery_bare import Arrays, Form
from gallery_models import Entry

from serving.values import Signature
from tuner.load_generator import oip_body, payloads
from tuner.load_generator.client_process import LoadGenerator
from tuner.load_generator.plan import PhasePlan

CONCURRENCY = 8
CORES = len(os.sched_getaffinity(0))
ALONE = Form(1, 1)
"""What a call takes alone."""
FORMS = (ALONE, Form(1, CORES), Form(CORES, 1))
"""Of the bare loop."""
LEAST_CALLS = 50
"""That a run of the bare loop should hold, so that a slow model's run is longer."""
LONGEST_RUN_S = 4.0


class CannotTell(Exception):
    """A step of a model came to nothing; the text is the line that says why."""


@dataclasses.dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class Subject:
    """A model and what it is sent."""

    entry: Entry
    given: pathlib.Path
    """What a server is given."""
    file: pathlib.Path
    signature: Signature
    requests: Sequence[Arrays]


def served(
    entry: Entry, given: pathlib.Path, settings: Mapping[str, object]
) -> contextlib.AbstractContextManager[server_process.Served]:
    """A server with the model, and with what is told of it."""
    told = {
        f"model.{name}": " ".join(f"{key}={text}" for key, text in words.items())
        for name, words in (("shapes", entry.shapes), ("values", entry.values))
        if words
    }
    return server_process.served(str(given), {"server.grpc_port": 0, **told, **settings})


def looked(subject: Subject, seconds: float) -> dict[str, float]:
    """Calls per second of the bare loop in each of its forms."""
    found = {}
    for form in FORMS:
        with gallery_bare.loop(subject.file, subject.requests, form) as loop:
            found[str(form)] = loop.rate(seconds)
    return found


def raced(
    subject: Subject,
    bare: Mapping[str, float],
    recommended: Mapping[str, object],
    *,
    rounds: int,
    least_s: float,
) -> dict[str, Any]:
    """The server's rate over that of the bare loop, in alternating rounds.

    Args:
        subject: what is served.
        bare: rates of the loop's forms.
        recommended: settings of a study.
        rounds: how many.
        least_s: shortest run; a slow model's is longer.

    Raises:
        CannotTell: an answer was lost or refused.
    """
    best_form = max(FORMS, key=lambda form: bare[str(form)])
    seconds = min(max(least_s, LEAST_CALLS / bare[str(best_form)]), LONGEST_RUN_S)
    with LoadGenerator() as generator:
        generator.set_payloads(_payloads(subject))
        forms = _candidates(recommended, is_batched=subject.signature.is_batched)
        ours = {}
        for name, settings in forms.items():
            with served(subject.entry, subject.given, settings) as where:
                ours[name] = _rate(generator, where.port, seconds)
        best_name = max(ours, key=ours.__getitem__)
        pairs = []
        with (
            gallery_bare.loop(subject.file, subject.requests, best_form) as loop,
            served(subject.entry, subject.given, forms[best_name]) as where,
        ):
            _rate(generator, where.port, least_s)
            for number in range(rounds):
                # Who goes first alternates, so that a drift of the machine favours neither.
                pair = {}
                for side in ("bare", "ours") if number % 2 else ("ours", "bare"):
                    pair[side] = (
                        loop.rate(seconds)
                        if side == "bare"
                        else _rate(generator, where.port, seconds)
                    )
                pairs.append(pair)
    ratios = [pair["ours"] / pair["bare"] for pair in pairs]
    return {
        "bare_form": str(best_form),
        "ours": ours,
        "ours_form": best_name,
        "rounds": pairs,
        "ratio": statistics.median(ratios),
        "ratios": ratios,
    }


def _candidates(
    recommended: Mapping[str, object], *, is_batched: bool
) -> dict[str, dict[str, object]]:
    """The settings between which a quick look decides, as it does between forms of the bare loop."""
    found = {"best.yaml": dict(recommended), f"replica.count={CORES}": {"replica.count": CORES}}
    if is_batched:
        alone = {"replica.count": CORES, "batching.max_size": 1}
        found[f"replica.count={CORES} batching.max_size=1"] = alone
    return found


def _payloads(subject: Subject) -> payloads.Payloads:
    return payloads.of_requests(
        [
            [oip_body.RequestInput(spec, request[spec.name]) for spec in subject.signature.inputs]
            for request in subject.requests
        ],
        path=payloads.infer_path(subject.entry.name),
        description=f"{len(subject.requests)} requests of {subject.entry.name}",
    )


def _rate(generator: LoadGenerator, port: int, seconds: float) -> float:
    """Answers per second.

    Raises:
        CannotTell: an answer was lost or refused.
    """
    plan = PhasePlan(host="127.0.0.1", port=port, concurrency=CONCURRENCY, seconds=seconds)
    phase = generator.run(plan)
    finished, status = phase.records.finished_s, phase.records.status
    if wrong := int((status != 200).sum()):
        raise CannotTell(f"{wrong} of {len(status)} requests failed: {phase.why_failed}")
    inside = (finished > phase.warmup_end_s) & (finished <= phase.measured_end_s)
    return float(inside.sum()) / phase.measured_s
