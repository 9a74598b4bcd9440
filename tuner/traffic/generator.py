"""The load generator as the tuner sees it: one client process that survives many phases.

In: payloads (once) and plans (one per phase). Out: a `LoadResult` per phase. The client lives in a
process of its own, so that nothing the tuner does (fitting a Gaussian process, writing files) is
measured as latency, and it is persistent, so that a phase costs no start. Every wait has a limit; a
client that dies or stands still is replaced in the next phase.

Use it from the thread that made it, and keep that thread alive: the kernel ends the client when
this thread ends.
"""

from __future__ import annotations

import contextlib
import dataclasses
import json
import os
import pathlib
import subprocess
import sys
import tempfile
import types
from collections.abc import Sequence
from typing import Any, Self

import numpy as np

from tuner.errors import ClientLost, LoadFailed
from tuner.traffic import range_errors, wire
from tuner.traffic.columns import COLUMNS
from tuner.traffic.mixture import Mixture
from tuner.traffic.payloads import Payloads
from tuner.traffic.plan import LoadPlan
from tuner.values import CpuCourse, RequestRecords

START_TIMEOUT_S = 30.0
SILENCE_TIMEOUT_S = 30.0
"""Longest silence of a client that reports each second; a machine that swaps or sleeps for a moment
stays under it."""
END_TIMEOUT_S = 2.0
MOST_KEPT = 2
"""Sets of payloads that the client keeps."""
MOST_TOLD = 200
"""Characters of a server's own words that go into a reason."""


@dataclasses.dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class LoadResult:
    """One phase; seconds since its first send."""

    records: RequestRecords
    """Every request of the phase, warm-up and those in flight at the end included."""
    origin_s: float
    """The first send, on the system's monotonic clock."""
    warmup_end_s: float
    measured_end_s: float
    client_cpu_s: float
    """CPU time that the client used in the measured part."""
    client_cpu: CpuCourse
    """The same over the whole phase."""
    wall_s: float
    """Time of the whole phase, from the first connection to the last answer."""
    reconnects: int
    """Connections that had to be replaced, because the server closed them or a request on them was
    lost."""
    last_loss: str
    """Why the last lost request was lost; empty if none was."""
    fell_behind: float
    """Share of what was due in the measured part by which the server fell behind (`phase.fell_behind`); 0 in a
    closed loop."""
    first_error: str
    """What the first answer that is no 2xx said: one line, at most `MOST_TOLD` characters."""
    hint: str = ""
    """What to try where that is known; empty: it is not."""

    @property
    def measured_s(self) -> float:
        """Length of the measured part."""
        return self.measured_end_s - self.warmup_end_s

    @property
    def why_failed(self) -> str:
        """What the server, or the connection, said of a request that failed; empty if nothing."""
        if self.first_error:
            hint = f"; {self.hint}" if self.hint else ""
            return f'the first of them said "{self.first_error}"{hint}'
        return f"the last of them: {self.last_loss}" if self.last_loss else ""


class Generator:
    """Context manager that owns the client process, which ends when the block is left."""

    def __init__(self) -> None:
        self._process: subprocess.Popen[bytes] | None = None
        self._errors: Any = None
        self._payloads: Payloads | Mixture | None = None
        self._kept: list[Payloads | Mixture] = []
        """What the client has, the least recently used first."""

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
        """Process id of the client, None while there is none."""
        return None if self._process is None else self._process.pid

    def set_payloads(self, payloads: Payloads | Mixture) -> None:
        """Keep what is sent from now on; it travels to the client once, with the next phase.

        The client keeps `MOST_KEPT` of them, so that two servers can be sent different ones in turn.
        """
        self._payloads = payloads

    def run(self, plan: LoadPlan) -> LoadResult:
        """Drive one phase and wait for its end.

        Raises:
            LoadFailed: the server cannot be reached or is gone.
            ClientLost: the client process died or stands still; the next phase has another one.
        """
        if self._payloads is None:
            raise LoadFailed("there is nothing to send: call set_payloads before run")
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
        except wire.Closed as error:
            raise ClientLost(f"the load generator's process ended{self._last_words()}") from error
        except TimeoutError as error:
            self.close()
            raise ClientLost(
                f"the load generator's process gives no sign of life: {error}"
            ) from error
        except BaseException:
            self.close()  # in the middle of a phase; the next one starts afresh
            raise
        if report["event"] == "failed":
            raise LoadFailed(report["reason"])
        indexes = self._payloads.indexes if isinstance(self._payloads, Payloads) else ()
        return _result(report, blob, indexes)

    def close(self) -> None:
        """End the client process; at once, whatever it is doing."""
        process, self._process = self._process, None
        self._kept = []
        if process is None:
            return
        process.kill()
        process.wait(END_TIMEOUT_S)
        for pipe in (process.stdin, process.stdout):
            if pipe is not None:
                pipe.close()
        self._errors.close()

    def _start(self) -> None:
        # The package is found wherever the tuner itself was found, and nothing in the current
        # folder can stand before it.
        root = str(pathlib.Path(__file__).resolve().parents[2])
        path = os.pathsep.join(filter(None, (root, os.environ.get("PYTHONPATH"))))
        self._errors = tempfile.TemporaryFile()  # noqa: SIM115  open as long as the process
        self._process = subprocess.Popen(  # noqa: S603  our own module, nothing from outside
            [sys.executable, "-P", "-m", "tuner.traffic.worker", str(os.getpid())],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=self._errors,
            bufsize=0,
            env={**os.environ, "PYTHONPATH": path},
            start_new_session=True,  # a Ctrl-C in the terminal is for the tuner alone
        )
        for pipe in (self._process.stdin, self._process.stdout):
            assert pipe is not None
            os.set_blocking(pipe.fileno(), False)
        try:
            self._await("ready", timeout_s=START_TIMEOUT_S)
        except (wire.Closed, TimeoutError) as error:
            raise LoadFailed(
                f"the load generator's process does not start{self._last_words()}"
            ) from error
        except BaseException:
            self.close()
            raise

    def _hand_over(self, payloads: Payloads | Mixture) -> None:
        while len(self._kept) >= MOST_KEPT:
            self._send({"do": "forget", "key": id(self._kept.pop(0))})
        if isinstance(payloads, Mixture):
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
        assert self._process.stdin is not None
        wire.write_frame(self._process.stdin.fileno(), header, blob, timeout_s=SILENCE_TIMEOUT_S)

    def _await(
        self, *events: str, timeout_s: float = SILENCE_TIMEOUT_S
    ) -> tuple[dict[str, Any], bytes]:
        """The next frame with one of these events; signs of life are read past."""
        assert self._process is not None
        assert self._process.stdout is not None
        while True:
            header, blob = wire.read_frame(self._process.stdout.fileno(), timeout_s=timeout_s)
            if header["event"] in events:
                return header, blob

    def _last_words(self) -> str:
        """How the process ended and its last line, for an error text; cleans up after it."""
        process, errors = self._process, self._errors
        if process is None:
            return ""
        try:
            code: int | None = process.wait(END_TIMEOUT_S)
        except subprocess.TimeoutExpired:
            code = None
        errors.seek(0)
        lines = errors.read().decode(errors="replace").split("\n")
        last = next((line.strip() for line in reversed(lines) if line.strip()), "")
        self.close()
        return f" (exit status {code})" + (f": {last}" if last else "")


def _result(report: dict[str, Any], blob: bytes, indexes: Sequence[str]) -> LoadResult:
    said = message(report["first_error"])
    count = report["requests"]
    columns, start = {}, 0
    for name, code in COLUMNS:
        kind = np.dtype(code)
        columns[name] = np.frombuffer(blob, kind, count, start).copy()  # aligned, and our own
        start += kind.itemsize * count
    readings = np.frombuffer(blob, np.float64, 2 * report["cpu_readings"], start).copy()
    at_s, used_s = readings.reshape(2, -1)
    return LoadResult(
        records=RequestRecords(**columns),
        origin_s=report["origin_s"],
        warmup_end_s=report["warmup_end_s"],
        measured_end_s=report["measured_end_s"],
        client_cpu_s=report["client_cpu_s"],
        client_cpu=CpuCourse(at_s=at_s, used_s=used_s),
        wall_s=report["wall_s"],
        reconnects=report["reconnects"],
        last_loss=report["last_loss"],
        fell_behind=report["fell_behind"],
        first_error=one_line(said),
        hint=range_errors.hint(said, indexes),
    )


def message(body: str) -> str:
    """The text under `error` in an answer of JSON, which may be cut off; the whole body where there is none."""
    for whole in (body, f'{body}"}}'):
        with contextlib.suppress(ValueError, RecursionError):
            found = json.loads(whole)
            if isinstance(found, dict) and isinstance(text := found.get("error"), str) and text:
                return text
    return body


def one_line(text: str) -> str:
    """Printable words of a text from outside on one line, at most `MOST_TOLD` characters."""
    printable = "".join(c if c.isprintable() or c.isspace() else "?" for c in text)
    line = " ".join(printable.split())
    return line if len(line) <= MOST_TOLD else f"{line[: MOST_TOLD - 4]} ..."
