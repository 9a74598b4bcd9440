"""Runs stages one after another: a server and an observer for each, the stage, the oracles, a line in the ledger."""

from __future__ import annotations

import contextlib
import dataclasses
import datetime as dt
import pathlib
import shutil
import signal
import sys
import tempfile
import threading
import time
import traceback
from collections.abc import Iterator, Sequence

from tests.abuse import machine, oracles
from tests.abuse.ledger import Entry, Ledger
from tests.abuse.observer import Observer, Seen
from tests.abuse.stage import Context, Stage
from tests.abuse.subject import Holding, NotReady, Subject

_WARM_UP = 50
"""Requests before the first look at the memory: what a server needs once is not what it grew by."""
_QUIET_S = 1.0
_SAMPLE_S = 0.25


class StageTooLong(BaseException):
    """A stage did not end; not an Exception, which a stage that looks for faults would catch."""


@dataclasses.dataclass(frozen=True, slots=True, kw_only=True)
class Run:
    """What all stages of a run share."""

    seed: int
    commit: str
    is_quick: bool
    ledger: Ledger
    keeps: bool = True

    def stage(self, stage: Stage) -> Entry:
        """Run one stage to its end, whatever happens in it, and note what came of it."""
        say(f"== {stage.name}: {stage.title} (seed {self.seed})")
        began_s = time.monotonic()
        folder = pathlib.Path(tempfile.mkdtemp(prefix="abuse-", dir="/tmp"))
        try:
            found = self._found(stage, folder)
        finally:
            shutil.rmtree(folder, ignore_errors=True)
        entry = Entry(
            stage=stage.name,
            title=stage.title,
            half=stage.half,
            seed=self.seed,
            commit=self.commit,
            is_quick=self.is_quick,
            date=dt.datetime.now(dt.UTC).date().isoformat(),
            seconds=round(time.monotonic() - began_s, 1),
            **found,
        )
        self.ledger.add(entry)
        _show(entry)
        return entry

    def _found(self, stage: Stage, folder: pathlib.Path) -> dict[str, object]:
        missing = stage.missing()
        if missing:
            return _nothing(broken=[f"a tool is missing: {', '.join(missing)}"])
        limit_s = stage.quick_limit_s if self.is_quick else stage.limit_s
        with contextlib.ExitStack() as owns:
            subject = None
            if stage.spec is not None:
                subject = Subject(folder, stage.spec)
                try:
                    owns.enter_context(subject)
                except NotReady as error:
                    return _nothing(broken=[f"O1 the server did not start: {error}"])
            journal = self.ledger.path.with_name(f"cases-{stage.name}.jsonl")
            journal.parent.mkdir(parents=True, exist_ok=True)
            journal.unlink(missing_ok=True)
            context = Context(
                stage.name,
                seed=self.seed,
                is_quick=self.is_quick,
                folder=folder,
                subject=subject,
                limit_s=limit_s,
                journal=journal,
                keeps=self.keeps,
            )
            if subject is None:
                broken = _ran(stage, context, limit_s)
                return _nothing(broken=broken, context=context)
            return _watched(stage, context, subject, limit_s)


def say(text: str) -> None:
    """A line for who watches."""
    sys.stdout.write(text + "\n")
    sys.stdout.flush()


def _watched(stage: Stage, context: Context, subject: Subject, limit_s: float) -> dict[str, object]:
    """Run a stage against a server that is observed, and judge it."""
    for _ in range(_WARM_UP):
        subject.ask("GET", "/v2/health/ready")
        subject.ask("POST", "/v2/models/echo/infer", _ECHO)
    if stage.warm is not None:
        stage.warm(context)
    observer = Observer(context.folder / "observed", subject.port, subject.spec.token)
    try:
        time.sleep(_QUIET_S)
        before = subject.holding()
        log_start, mark = subject.log_bytes(), observer.mark()
        machine.forget_peak(subject.pid)
        with _peak_of(subject) as peak:
            broken = _ran(stage, context, limit_s)
        ready_s = subject.ready_within(oracles.READY_S)
        time.sleep(2 * _SAMPLE_S)
        seen = observer.since(mark)
        after = _settled(subject, before)
    finally:
        observer.end()
    evidence = oracles.Evidence(
        is_alive=subject.is_alive,
        ready_s=ready_s,
        before=before,
        after=after,
        peak_mib=max(peak[0], after.memory_mib),
        seen=seen,
        log=subject.log_text(log_start),
        log_bytes=subject.log_bytes() - log_start,
        memory_kills=subject.memory_kills(),
    )
    broken += oracles.broken(evidence, stage.allowance)
    if broken or context.tally.failures:
        _keep_log(stage, subject)
    return _nothing(broken=broken, context=context) | _figures(evidence)


def _ran(stage: Stage, context: Context, limit_s: float) -> list[str]:
    """Run it within its time; what went wrong with the stage itself."""

    def too_long(*_: object) -> None:
        raise StageTooLong

    before = signal.signal(signal.SIGALRM, too_long)
    signal.setitimer(signal.ITIMER_REAL, limit_s)
    try:
        stage.run(context)
    except StageTooLong:
        where = traceback.extract_tb(sys.exc_info()[2])[-1]
        return [f"the stage took more than {limit_s:g} s, at {where.name}, line {where.lineno}"]
    except Exception as error:  # a fault of one stage must not end the run
        traceback.print_exc()
        where = traceback.extract_tb(error.__traceback__)[-1]
        return [
            f"the stage ended with {type(error).__name__}: {error} ({where.name}:{where.lineno})"
        ]
    finally:
        signal.setitimer(signal.ITIMER_REAL, 0)
        signal.signal(signal.SIGALRM, before)
    return []


@contextlib.contextmanager
def _peak_of(subject: Subject) -> Iterator[list[float]]:
    """The most memory of all processes of a server, from samples and the gateway's own peak."""
    peak, is_over = [0.0], threading.Event()

    def sample() -> None:
        while not is_over.wait(_SAMPLE_S):
            peak[0] = max(peak[0], subject.memory_mib())

    thread = threading.Thread(target=sample, daemon=True)
    thread.start()
    try:
        yield peak
    finally:
        is_over.set()
        thread.join()
        gateway = machine.memory_mib(subject.pid)
        at_worst = machine.memory_mib(subject.pid, "VmHWM")
        peak[0] = max(peak[0], subject.memory_mib() - gateway + at_worst)


def _settled(subject: Subject, before: Holding) -> Holding:
    """What a server holds when it holds no more than before, or has had its time."""
    until_s = time.monotonic() + oracles.SETTLE_S
    while True:
        after = subject.holding()
        grown = after.memory_mib - before.memory_mib > oracles.GROWTH_MIB
        if (not after.over(before) and not grown) or time.monotonic() > until_s:
            return after
        time.sleep(0.2)


def _keep_log(stage: Stage, subject: Subject) -> None:
    """Let who looks for the cause have the server's log."""
    target = pathlib.Path("build", "abuse", f"log-{stage.name}")
    target.parent.mkdir(parents=True, exist_ok=True)
    text = subject.log_text()
    target.write_text(text[-2_000_000:], encoding="utf-8")


def _nothing(*, broken: Sequence[str] = (), context: Context | None = None) -> dict[str, object]:
    """What an entry says of a stage, without figures of a server."""
    tally = None if context is None else context.tally
    return {
        "cases": tally.cases if tally else 0,
        "failures": tally.failures if tally else 0,
        "failed": tally.failed if tally else {},
        "broken": list(broken),
        "notes": tally.notes if tally else [],
        "worst_health_ms": None,
        "worst_echo_ms": None,
        "worst_null_ms": None,
        "p99_health_ms": None,
        "growth_mib": None,
        "peak_mib": None,
    }


def _figures(evidence: oracles.Evidence) -> dict[str, object]:
    def worst(kind: str) -> float | None:
        return evidence.seen[kind].worst_ms if kind in evidence.seen else None

    return {
        "worst_health_ms": worst("health"),
        "worst_echo_ms": worst("echo"),
        "worst_null_ms": worst("null"),
        "p99_health_ms": evidence.seen.get("health", Seen()).p99_ms,
        "growth_mib": round(evidence.after.memory_mib - evidence.before.memory_mib, 1),
        "peak_mib": round(evidence.peak_mib - evidence.before.memory_mib, 1),
    }


def _show(entry: Entry) -> None:
    word = "passed" if entry.has_passed else "FAILED"
    figures = ""
    if entry.worst_health_ms is not None:
        figures = (
            f", health {entry.worst_health_ms:.0f} ms at worst (null {entry.worst_null_ms or 0:.0f}), "
            f"memory {entry.peak_mib or 0:+.0f} MiB at worst, {entry.growth_mib or 0:+.0f} after"
        )
    say(f"   {word}: {entry.cases} cases, {entry.failures} failed, {entry.seconds:.0f} s{figures}")
    for text in (*entry.notes, *entry.broken):
        say(f"   - {text}")
    for name, text in list(entry.failed.items())[:10]:
        say(f"   - {name}: {text}")


_ECHO = b'{"inputs":[{"name":"data","shape":[1,1],"datatype":"UINT8","data":[7]}]}'
