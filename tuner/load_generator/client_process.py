"""The tuner's side of the load generator: one client process for many phases.

The client gets payloads once, and returns a `PhaseResult` for each plan. If it dies or stalls, it
is replaced.
"""

from __future__ import annotations

import contextlib
import subprocess
import tempfile
from collections.abc import Iterator, Mapping
from typing import Any, Self

from serving.system.control_channel import Closed, ControlledProcess
from tuner.errors import LoadGeneratorFailed, LoadGeneratorLost
from tuner.load_generator import phase_result
from tuner.load_generator.payloads import MultiModelPayloads, Payloads
from tuner.load_generator.phase_result import PhaseResult
from tuner.load_generator.plan import PhasePlan

START_TIMEOUT_S = 30.0
SILENCE_TIMEOUT_S = 30.0
"""How long a client may be silent; allows for short swapping or sleep."""
END_TIMEOUT_S = 2.0
MAX_RETAINED = 2


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

    def __exit__(self, *_exception: object) -> None:
        self.close()

    @property
    def pid(self) -> int | None:
        """Process id of the client."""
        return None if self._process is None else self._process.process.pid

    @property
    def pids(self) -> list[int]:
        """Process id of the client, if it runs."""
        return [] if self.pid is None else [self.pid]

    def set_payloads(self, payloads: Payloads | MultiModelPayloads) -> None:
        """Set the payloads for the following phases.

        The client retains the last `MAX_RETAINED` sets, so that two servers can alternate.
        """
        self._payloads = payloads

    def run(self, plan: PhasePlan) -> PhaseResult:
        """Run one phase.

        Raises:
            LoadGeneratorFailed: the server is gone or unreachable, or no payloads were set.
            LoadGeneratorLost: the client process died or stalled.
        """
        self.begin(plan)
        return self.end()

    def begin(self, plan: PhasePlan) -> None:
        """Begin a phase; raises as `run` does."""
        if self._payloads is None:
            raise LoadGeneratorFailed("nothing to send: call set_payloads before run")
        with self._in_phase():
            if self._process is None:
                self._start()
            before = len(self._kept)
            self._kept = [kept for kept in self._kept if kept is not self._payloads]
            if len(self._kept) == before:
                self._hand_over(self._payloads)
            self._kept.append(self._payloads)
            self._send({"do": "run", "plan": plan.as_json(), "key": id(self._payloads)})

    def await_moment(self, event: str) -> None:
        """Wait until one of several clients says that it is that far; raises as `run` does."""
        with self._in_phase():
            report, _ = self._await(event, "failed")
        _require_no_failure(report)

    def order(self, order: dict[str, Any]) -> None:
        """Send an order to one of several clients; raises as `run` does."""
        with self._in_phase():
            self._send(order)

    def end(self) -> PhaseResult:
        """Wait for the end of the phase and return its result; raises as `run` does."""
        assert self._payloads is not None
        with self._in_phase():
            report, blob = self._await("done", "failed")
        _require_no_failure(report)
        return phase_result.parse(report, blob, self._payloads.indexes)

    @contextlib.contextmanager
    def _in_phase(self) -> Iterator[None]:
        try:
            yield
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
            heads = [("POST", head.path, head.headers) for head in payloads.heads]
            bodies, order = payloads.bodies, payloads.order_bytes()
        else:
            heads = [(payloads.method, payloads.path, payloads.headers)]
            bodies, order = payloads.requests, b""
        header = {
            "do": "payloads",
            "key": id(payloads),
            "heads": [
                {"line": f"{method} {path} HTTP/1.1", "headers": list(headers.items())}
                for method, path, headers in heads
            ],
            "sizes": [len(body) for body in bodies],
        }
        self._send(header, b"".join(bodies) + order)
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


def _require_no_failure(report: Mapping[str, Any]) -> None:
    if report["event"] == "failed":
        raise LoadGeneratorFailed(report["reason"])
