"""The page of the gallery: a row of each model in each table, and whether the targets are met.

In: what was found of each model. Out: a result.
"""

from __future__ import annotations

import statistics
from collections.abc import Mapping
from typing import Any

import gallery_answers
from gallery_models import Entry
from result import Result, Table

LEAST = {"model files": 20, "projects": 8, "domains": 6}
RATIO = 0.85
SLOW_MS = 5.0
"""From so long on a model's ratio counts: of a quicker one the protocol is the larger part."""


def concluded(rows: Mapping[Entry, Mapping[str, Any]]) -> Result:
    """Tables and verdict."""
    done = {entry: row for entry, row in rows.items() if "ratio" in row}
    ratios = [row["ratio"] for row in done.values() if row["alone_ms"] >= SLOW_MS]
    ratio = statistics.median(ratios) if ratios else 0.0
    wrong = [entry.name for entry, row in done.items() if not row["are_right"]]
    counts = {
        "model files": len({(entry.wheel, entry.file) for entry in done}),
        "projects": len({entry.project for entry in done}),
        "domains": len({entry.domain for entry in done}),
    }
    counted = ", ".join(f"{count} {name}" for name, count in counts.items())
    return Result(
        name="gallery",
        question=(
            "Are model files that people have told, served and tuned at the first try? Files of wheels on PyPI, "
            "and some trained tabular ones."
        ),
        target=(
            f"at least {', '.join(f'{count} {name}' for name, count in LEAST.items())}; every row in figures; answers "
            f"within {gallery_answers.SAME:g} of the bare runtime's for the same batch and "
            f"{gallery_answers.TOGETHER:g} between alone and in batches; the median over models of {SLOW_MS:g} ms and "
            f"more at least {RATIO} of a bare loop on all cores"
        ),
        verdict=(
            f"{counted}; {len(rows) - len(done)} rows without figures; "
            f"{'all answers are right' if not wrong else 'wrong answers: ' + ', '.join(wrong)}; "
            f"{ratio:.2f} of the bare loop in the median over {len(ratios)} models of {SLOW_MS:g} ms and more"
        ),
        is_met=(
            all(counts[name] >= least for name, least in LEAST.items())
            and len(done) == len(rows)
            and not wrong
            and ratio >= RATIO
        ),
        tables=(_files(rows), _answers(rows), _rates(rows)),
        figures={entry.name: dict(row) for entry, row in rows.items()},
        packages=("tritonclient",),
        versions=tuple(sorted({row["runtime"] for row in done.values()})),
        notes=(
            "A difference is the largest one between elements of two tensors over the largest element of the bare one.",
            "Together: items sent at once, 2 to 8 of them, against the bare runtime's answer to each alone.",
            "The bare loop, processes x threads, calls the runtime with requests in memory, one item each.",
            "Loop and server run at the best of the forms that were looked at. In brackets: the rounds.",
            "Alone: one call of the bare runtime with one thread, on one core.",
            *(f"{entry.name}: {entry.notes}." for entry in rows if entry.notes),
        ),
    )


def _files(rows: Mapping[Entry, Mapping[str, Any]]) -> Table:
    return Table(
        title="What had to be told",
        head=(
            "model",
            "of",
            "file",
            "domain",
            "`tune inputs` with nothing told",
            "what was told",
            "then",
        ),
        rows=[
            (
                entry.name,
                entry.wheel or "trained here",
                entry.file.rpartition("/")[2],
                entry.domain,
                _said(row.get("untold")),
                f"`{entry.told}`" if entry.told else "nothing",
                row.get("problem") or _said(row.get("told")),
            )
            for entry, row in rows.items()
        ],
        left=7,
    )


def _said(found: Mapping[str, Any] | None) -> str:
    """An exit code, and of a failure its line."""
    if found is None:
        return "-"
    if found["code"] == 0:
        return "complete"
    return f"{found['code']}: {' '.join(found['lines']).removeprefix('tune: ').replace('|', '/')}"


def _answers(rows: Mapping[Entry, Mapping[str, Any]]) -> Table:
    return Table(
        title="Answers against the bare runtime's, relative differences",
        head=("model", "batched", "REST, same", "REST, together", "gRPC, same", "gRPC, together"),
        rows=[
            (
                entry.name,
                "yes" if row["is_batched"] else f"no: {row['unbatched']}",
                *(
                    "-"
                    if row["answers"][name][what] is None
                    else f"{row['answers'][name][what]:.0e}"
                    for name in gallery_answers.PROTOCOLS
                    for what in ("same", "together")
                ),
            )
            for entry, row in rows.items()
            if "answers" in row
        ],
        left=2,
    )


def _rates(rows: Mapping[Entry, Mapping[str, Any]]) -> Table:
    return Table(
        title="Rates at concurrency 8, and the study of four trials",
        head=(
            "model",
            "verdict of the study",
            "served with",
            "loop",
            "alone ms",
            "loop /s",
            "served /s",
            "served / loop",
            "study s",
        ),
        rows=[
            (
                entry.name,
                _verdict(row["study"]),
                row["ours_form"],
                row["bare_form"],
                f"{row['alone_ms']:.2f}",
                f"{statistics.median(pair['bare'] for pair in row['rounds']):,.1f}",
                f"{statistics.median(pair['ours'] for pair in row['rounds']):,.1f}",
                f"{row['ratio']:.2f} ({min(row['ratios']):.2f} to {max(row['ratios']):.2f})",
                f"{row['study']['seconds']:.0f}",
            )
            for entry, row in rows.items()
            if "ratio" in row
        ],
        left=4,
    )


def _verdict(study: Mapping[str, Any]) -> str:
    if study["ratio"] is None or study["interval"]["low"] is None:
        return str(study["outcome"])
    low, high = study["interval"]["low"], study["interval"]["high"]
    return f"{study['outcome']}: {study['ratio']:.2f} ({low:.2f} to {high:.2f})"
