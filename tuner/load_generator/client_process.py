"""Load generator as the tuner sees it: one client process that survives many phases.

In: payloads (once) and plans (one per phase). Out: a `PhaseResult` per phase. A client that dies or
stalls is replaced.
"""

from __future__ import annotations

import contextlib
import dataclasses
import json
import subprocess
import tempfile
import types
from collections.abc import Sequence
from typing import Any, Self

import numpy as np

from serving.error_text import printable_line
from serving.system.control_channel import Closed, ControlledProcess
from tuner.errors import LoadGeneratorFailed, LoadGeneratorLost
from tuner.load_generator import range_errors
from tuner.load_generator.columns import COLUMNS
from tuner.load_generator.multi_model_payloads import MultiModelPayloads
from tuner.load_generator.payloads import Payloads
from tuner.load_generator.plan import PhasePlan
from tuner.values.request_records import CpuTimeSeries, RequestRecords

START_TIMEOUT_S = 30.0
SILENCE_TIMEOUT_S = 30.0
"""Maximum silence of a client; allows a short swap or sleep."""
END_TIMEOUT_S = 2.0
MAX_RETAINED = 2
MAX_REPORTED = 200


@dataclasses.dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class PhaseResult:
    """Result of one phase, in seconds since its first send."""

    records: RequestRecords
    origin_s: float
    """First send, on the system's monotonic clock."""
    warmup_end_s: float
    measured_end_s: float
    client_cpu_s: float
    """In the measured part."""
    client_cpu: CpuTimeSeries
    """Over the whole phase."""
    wall_s: float
    reconnects: int
    last_loss: str
    fell_behind: float
    first_error: str
    hint: str = ""

    @property
    def measured_s(self) -> float:
        """Length of the measured part."""
        return self.measured_end_s - self.warmup_end_s

    @property
    def why_failed(self) -> str:
        """Message about a failed request."""
        if self.first_error:
            hint = f"; {self.hint}" if self.hint else ""
            return f'the first one said "{self.first_error}"{hint}'
        return f"the last of them: {self.last_loss}" if self.last_loss else ""


class LoadGenerator:
    """Context manager that owns the client process."""

    def __init__(self) -> None:
        self._process: ControlledProcess | None = None
        self._errors: Any = None
        self._payloads: Payloads | MultiModelPayloads | None = None
        self._kept: list[Payloads | MultiModelPayloads] = []

    def __enter__(self) -> Self:
        self._start()
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: types.TracebackType | None,
    ) -> None:
        self.close()

    @property
    def pid(self) -> int | None:
        """Process id of the client."""
        return None if self._process is None else self._process.process.pid

    def set_payloads(self, payloads: Payloads | MultiModelPayloads) -> None:
        """Set the payloads of the following phases.

        The client keeps `MAX_RETAINED` sets, so that two servers can alternate.
        """
        self._payloads = payloads

    def run(self, plan: PhasePlan) -> PhaseResult:
        """Run one phase.

        Raises:
            LoadGeneratorFailed: the server is gone or unreachable.
            LoadGeneratorLost: the client process died or stalled.
        """
        if self._payloads is None:
            raise LoadGeneratorFailed("nothing to send: call set_payloads before run")
        try:
            if self._process is None:
                self._start()
            before = len(self._kept)
            self._kept = [kept for kept in self._kept if kept is not self._payloads]
            if len(self._kept) == before:
                self._hand_over(self._payloads)
            self._kept.append(self._payloads)
            self._send({"do": "run", "plan": plan.as_json(), "key": id(self._payloads)})
            report, blob = self._await("done", "failed")
        except Closed as error:
            raise LoadGeneratorLost(
                f"the load generator's process ended{self._last_words()}"
            ) from error
        except TimeoutError as error:
            self.close()
            raise LoadGeneratorLost(
                f"the load generator's process does not respond: {error}"
            ) from error
        except BaseException:
            self.close()  # it is in mid-phase; the next one gets a new client
            raise
        if report["event"] == "failed":
            raise LoadGeneratorFailed(report["reason"])
        indexes = self._payloads.indexes if isinstance(self._payloads, Payloads) else ()
        return _result(report, blob, indexes)

    def close(self) -> None:
        """Kill the client process."""
        process, self._process = self._process, None
        self._kept = []
        if process is not None:
            process.end(0.0)
            self._errors.close()

    def _start(self) -> None:
        self._errors = tempfile.TemporaryFile()  # noqa: SIM115  open as long as the process
        self._process = ControlledProcess.start("tuner.load_generator.process", output=self._errors)
        try:
            self._await("ready", timeout_s=START_TIMEOUT_S)
        except (Closed, TimeoutError) as error:
            raise LoadGeneratorFailed(
                f"the load generator's process does not start{self._last_words()}"
            ) from error
        except BaseException:
            self.close()
            raise

    def _hand_over(self, payloads: Payloads | MultiModelPayloads) -> None:
        while len(self._kept) >= MAX_RETAINED:
            self._send({"do": "forget", "key": id(self._kept.pop(0))})
        if isinstance(payloads, MultiModelPayloads):
            header = {
                "do": "mixture",
                "key": id(payloads),
                "heads": [
                    {"path": head.path, "headers": list(head.headers.items())}
                    for head in payloads.heads
                ],
                "sizes": [len(body) for body in payloads.bodies],
            }
            self._send(header, b"".join(payloads.bodies) + payloads.order_bytes())
        else:
            header = {
                "do": "payloads",
                "key": id(payloads),
                "method": payloads.method,
                "path": payloads.path,
                "headers": list(payloads.headers.items()),
                "sizes": [len(body) for body in payloads.requests],
            }
            self._send(header, b"".join(payloads.requests))
        self._await("stored")

    def _send(self, header: dict[str, Any], blob: bytes = b"") -> None:
        assert self._process is not None
        self._process.send(header, blob, timeout_s=SILENCE_TIMEOUT_S)

    def _await(
        self, *events: str, timeout_s: float = SILENCE_TIMEOUT_S
    ) -> tuple[dict[str, Any], bytes]:
        assert self._process is not None
        while True:
            header, blob = self._process.receive(timeout_s=timeout_s)
            if header["event"] in events:
                return header, blob

    def _last_words(self) -> str:
        process, errors = self._process, self._errors
        if process is None:
            return ""
        try:
            code: int | None = process.process.wait(END_TIMEOUT_S)
        except subprocess.TimeoutExpired:
            code = None
        errors.seek(0)
        lines = errors.read().decode(errors="replace").split("\n")
        last = next((line.strip() for line in reversed(lines) if line.strip()), "")
        self.close()
        return f" (exit status {code})" + (f": {last}" if last else "")


def _result(report: dict[str, Any], blob: bytes, indexes: Sequence[str]) -> PhaseResult:
    said = message(report["first_error"])
    count = report["requests"]
    columns, start = {}, 0
    for name, code in COLUMNS:
        kind = np.dtype(code)
        columns[name] = np.frombuffer(blob, kind, count, start).copy()  # aligned, and our own
        start += kind.itemsize * count
    readings = np.frombuffer(blob, np.float64, 2 * report["cpu_readings"], start).copy()
    at_s, used_s = readings.reshape(2, -1)
    return PhaseResult(
        records=RequestRecords(**columns),
        origin_s=report["origin_s"],
        warmup_end_s=report["warmup_end_s"],
        measured_end_s=report["measured_end_s"],
        client_cpu_s=report["client_cpu_s"],
        client_cpu=CpuTimeSeries(at_s=at_s, used_s=used_s),
        wall_s=report["wall_s"],
        reconnects=report["reconnects"],
        last_loss=report["last_loss"],
        fell_behind=report["fell_behind"],
        first_error=reported_line(said),
        hint=range_errors.hint(said, indexes),
    )


def message(body: str) -> str:
    """`error` text of a JSON body, perhaps truncated, else the body."""
    for whole in (body, f'{body}"}}'):
        with contextlib.suppress(ValueError, RecursionError):
            found = json.loads(whole)
            if isinstance(found, dict) and isinstance(text := found.get("error"), str) and text:
                return text
    return body


def reported_line(text: str) -> str:
    """Text as one printable line of at most `MAX_REPORTED` characters."""
    line = printable_line(text)
    return line if len(line) <= MAX_REPORTED else f"{line[: MAX_REPORTED - 4]} ..."
