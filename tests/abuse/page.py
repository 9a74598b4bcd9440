"""Results page of the campaign, `benchmarks/results/abuse.md`, from its ledger. Pure except for `write`."""

from __future__ import annotations

import pathlib
import platform
from collections.abc import Sequence

from tests.abuse.ledger import Entry, Ledger
from tests.abuse.stage import Stage

PAGE = pathlib.Path(__file__).resolve().parents[2] / "benchmarks" / "results" / "abuse.md"
RUNS = 2
"""Newest runs on the page."""
_SHOWN = 12


def rendered(runs: Sequence[Sequence[Entry]], stages: Sequence[Stage], machine: str) -> str:
    """Return the page.

    Args:
        runs: entries of each run, the newest run last.
        stages: all stages, in order.
        machine: description of the machine.
    """
    parts = [
        "# The abuse campaign",
        "`make abuse` writes this page; [tests/abuse](../../tests/abuse/README.md) describes the stages.",
        f"Machine: {machine}. The server has core 0 and 2 GiB; attackers and observer have core 1.",
        (
            "The slowest health, echo and null responses are those of an observer that sends each request every "
            "20 ms. The null server does nothing on the server's core, so its delays are those of the machine."
        ),
    ]
    for entries in reversed(runs):
        parts += _run({entry.stage: entry for entry in entries}, stages)
    return "\n\n".join(parts) + "\n"


def _run(entries: dict[str, Entry], stages: Sequence[Stage]) -> list[str]:
    some = next(iter(entries.values()))
    passed = sum(entry.has_passed for entry in entries.values())
    missing = [stage.name for stage in stages if stage.name not in entries]
    sentence = (
        f"{sum(entry.cases for entry in entries.values()):,} cases in "
        f"{sum(entry.seconds for entry in entries.values()) / 60:.0f} minutes: "
        f"{passed} of {len(entries)} stages passed."
    )
    if missing:
        sentence += f" Not run: {', '.join(missing)}."
    head = (
        "| stage | subject | cases | failed | s | slowest health, ms | echo, ms | null, ms "
        "| memory growth, MiB | at its peak, MiB | result |"
    )
    rows = [head, "|" + "---|" * 11]
    rows += [_row(entries[stage.name]) for stage in stages if stage.name in entries]
    size = ", quick" if some.is_quick else ""
    parts = [
        f"## Seed {some.seed}, commit {some.commit}, {some.date}{size}",
        sentence,
        "\n".join(rows),
    ]
    told = [
        line for stage in stages if stage.name in entries for line in _told(entries[stage.name])
    ]
    if told:
        parts += ["\n".join(told)]
    return parts


def _row(entry: Entry) -> str:
    cells = [
        entry.stage,
        entry.title,
        f"{entry.cases:,}",
        str(entry.failures),
        f"{entry.seconds:.0f}",
        _number(entry.worst_health_ms),
        _number(entry.worst_echo_ms),
        _number(entry.worst_null_ms),
        _number(entry.growth_mib, "+.0f"),
        _number(entry.peak_mib, "+.0f"),
        "passed" if entry.has_passed else "**failed**",
    ]
    return "| " + " | ".join(cells) + " |"


def _told(entry: Entry) -> list[str]:
    lines = [f"- {entry.stage}: {_plain(text)}" for text in (*entry.notes, *entry.broken)]
    failed = list(entry.failed.items())
    lines += [f"- {entry.stage} `{_plain(name)}`: {_plain(text)}" for name, text in failed[:_SHOWN]]
    if len(failed) > _SHOWN:
        lines.append(f"- {entry.stage}: and {entry.failures - _SHOWN} more")
    return lines


def _plain(text: str) -> str:
    """Return the text on one line, with Markdown escaped."""
    line = " ".join(text.split())
    for mark in "\\`|<>*_[]":
        line = line.replace(mark, f"\\{mark}" if mark != "`" else "'")
    return line[:300]


def _number(value: float | None, form: str = ".0f") -> str:
    return "-" if value is None else format(value, form)


def write(ledger: Ledger, stages: Sequence[Stage], path: pathlib.Path = PAGE) -> None:
    """Write the page of the newest complete runs, or of quick ones if there are no others."""
    keys = ledger.runs()
    chosen = [key for key in keys if not key[2]] or list(keys)
    runs = [
        list(ledger.done(seed=seed, commit=commit, is_quick=is_quick).values())
        for seed, commit, is_quick in chosen[-RUNS:]
    ]
    if runs:
        path.write_text(rendered(runs, stages, _machine()), encoding="utf-8")


def _machine() -> str:
    model = "unknown processor"
    for line in pathlib.Path("/proc/cpuinfo").read_text(encoding="utf-8").splitlines():
        if line.startswith("model name"):
            model = line.partition(":")[2].strip()
            break
    return f"{model}, Linux {platform.release()}, Python {platform.python_version()}"
