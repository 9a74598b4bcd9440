"""J: processes that are killed or stopped at any moment, disks that are full, files that are damaged, clocks that jump.

Each fault has a server of its own, under load where that matters. After a kill, a stop or a damage it must be
ready within 2 s of its restart or of SIGCONT; what was answered 200 on the admin port is still so; nothing is
left behind, and the log has no traceback.
"""

from __future__ import annotations

import contextlib
import http.client
import json
import os
import pathlib
import shutil
import signal
import socket
import subprocess
import threading
import time
from collections.abc import Iterator, Mapping
from typing import Self

from tests.abuse import machine
from tests.abuse.stage import Context, Stage
from tests.abuse.subject import NotReady, Subject, SubjectSpec

READY_S = 2.0
SETTLE_S = 10.0
_BODY = b'{"inputs":[{"name":"data","shape":[1,1],"datatype":"UINT8","data":[%d]}]}'
_EATER = """
class Model:
    inputs = outputs = [{"name": "x", "datatype": "INT32", "shape": [-1, 1]}]
    def predict_batch(self, inputs):
        eaten = []
        while inputs["x"][0, 0] == 99:
            eaten.append(bytearray(1 << 24))
        return {"x": inputs["x"]}
"""


class Load:
    """Clients that ask in turn, each over one connection, and count what they get."""

    def __init__(self, subject: Subject, clients: int = 4) -> None:
        self._subject = subject
        self._stop = threading.Event()
        self.statuses: dict[int, int] = {}
        self.wrong = 0
        """Answers that were another request's."""
        self._lock = threading.Lock()
        self._threads = [
            threading.Thread(target=self._ask, args=(n,), daemon=True) for n in range(clients)
        ]

    def __enter__(self) -> Self:
        for thread in self._threads:
            thread.start()
        return self

    def __exit__(self, *_: object) -> None:
        self._stop.set()
        for thread in self._threads:
            thread.join(15)

    def _ask(self, number: int) -> None:
        connection = http.client.HTTPConnection("127.0.0.1", self._subject.port, timeout=10)
        value = number
        while not self._stop.is_set():
            value = (value + 4) % 250
            status = 0
            try:
                connection.request("POST", "/v2/models/echo/infer", _BODY % value)
                response = connection.getresponse()
                status, body = response.status, response.read()
                if status == 200 and json.loads(body)["outputs"][0]["data"] != [value]:
                    self.wrong += 1
            except (OSError, http.client.HTTPException, ValueError):
                connection.close()
                time.sleep(0.02)
            with self._lock:
                self.statuses[status] = self.statuses.get(status, 0) + 1
        connection.close()


@contextlib.contextmanager
def _server(
    context: Context, name: str, settings: Mapping[str, object] | None = None, **more: object
) -> Iterator[Subject]:
    folder = context.folder / name
    folder.mkdir()
    given = {"replica.count": 2, "server.state_dir": folder / "state", **(settings or {})}
    subject = Subject(folder, SubjectSpec(settings=given, **more))  # type: ignore[arg-type]
    try:
        with subject:
            yield subject
    finally:
        shutil.rmtree(folder, ignore_errors=True)


def run(context: Context) -> None:
    """Every kind of fault, as often as the table says."""
    for kind in (
        _killed_gateways, _killed_replicas, _stopped_gateways, _stopped_replicas, _full_disks, _few_descriptors,
        _hungry_models, _damaged_states, _bad_stores, _jumping_clocks, _busy_machines,
    ):  # fmt: skip
        try:
            kind(context)
        except (NotReady, OSError, AssertionError, KeyError) as error:
            context.case(
                kind.__name__.strip("_").replace("_", " "),
                f"{type(error).__name__}: {str(error)[-300:]}",
            )


def _judged(
    subject: Subject, before: int, ready_s: float | None, load: Load | None = None
) -> str | None:
    """What is not as promised after a fault: late, left behind, in the log, or answered wrongly."""
    if ready_s is None:
        return f"not ready within {READY_S:g} s"
    if load is not None and load.wrong:
        return f"{load.wrong} answers were those of other requests"
    odd = {
        s: n for s, n in (load.statuses if load else {}).items() if s not in {0, 200, 429, 503, 504}
    }
    if odd:
        return f"requests were answered {odd}"
    until_s = time.monotonic() + SETTLE_S
    while (count := len(subject.processes())) > before and time.monotonic() < until_s:
        time.sleep(0.1)
    if count > before:
        return f"{count} processes, {before} before"
    if "Traceback (most recent call last)" in subject.log_text():
        text = subject.log_text()
        at = text.index("Traceback")
        return f"a traceback: {text[at : at + 600][-200:]!r}"
    return None


def _killed_gateways(context: Context) -> None:
    """kill -9 of the gateway under load, and a restart on the same ports."""
    with _server(context, "kills") as subject:
        before = len(subject.processes())
        for number in range(context.size(25, 2)):
            name = f"kept-{number}"
            status, _ = subject.ask("POST", "/admin/add_app", json.dumps(
                {"name": name, "input_type": "integers", "default_output": "-1",
                 "latency_slo_micros": 100_000}), admin=True)  # fmt: skip
            with Load(subject) as load:
                time.sleep(context.rng.uniform(0.05, 0.6))
                subject.kill()
                subject.restart()
                ready_s = subject.ready_within(READY_S)
                wrong = _judged(subject, before, ready_s, load)
            if subject.ready_s > READY_S:
                context.note(f"restart {number} took {subject.ready_s:.1f} s")
            known = subject.ask(
                "POST", "/admin/get_all_applications", '{"verbose": false}', admin=True
            )[1].decode()
            if wrong is None and status == 200 and name not in known:
                wrong = f"{name} was answered 200 and is gone"
            context.case(f"kill -9 of the gateway {number}", wrong)


def _killed_replicas(context: Context) -> None:
    """kill -9 of one of two replicas under load: no request may fail."""
    with _server(context, "replicas") as subject:
        before = len(subject.processes())
        for number in range(context.size(35, 2)):
            pids = [row["pid"] for row in subject.replicas() if row["state"] == "ready"]
            with Load(subject) as load:
                time.sleep(context.rng.uniform(0.05, 0.3))
                if pids:
                    os.kill(context.rng.choice(pids), signal.SIGKILL)
                time.sleep(0.3)
            wrong = _judged(subject, before, subject.ready_within(READY_S), load)
            lost = {status: count for status, count in load.statuses.items() if status != 200}
            context.case(
                f"kill -9 of a replica {number}",
                wrong or (f"requests got {lost}" if lost else None),
            )


def _stopped_gateways(context: Context) -> None:
    """SIGSTOP of the gateway for a while, then SIGCONT."""
    with _server(context, "stops") as subject:
        before = len(subject.processes())
        for number in range(context.size(15, 1)):
            seconds = context.rng.choice([0.1, 0.5, 1.0, 3.0, 8.0 if not context.is_quick else 1.0])
            with Load(subject) as load:
                subject.send(signal.SIGSTOP)
                time.sleep(seconds)
                subject.send(signal.SIGCONT)
                wrong = _judged(subject, before, subject.ready_within(READY_S), load)
            context.case(f"SIGSTOP of the gateway for {seconds:g} s, {number}", wrong)


def _stopped_replicas(context: Context) -> None:
    """SIGSTOP of a replica: the other one serves, and it is replaced when it hangs."""
    with _server(context, "hangs", {"replica.hang_timeout_s": 1}) as subject:
        before = len(subject.processes())
        for number in range(context.size(8, 1)):
            pids = [row["pid"] for row in subject.replicas() if row["state"] == "ready"]
            with Load(subject) as load:
                if pids:
                    os.kill(context.rng.choice(pids), signal.SIGSTOP)
                time.sleep(2.5)
            context.case(
                f"SIGSTOP of a replica {number}",
                _judged(subject, before, subject.ready_within(READY_S), load),
            )


def _full_disks(context: Context) -> None:
    """A state folder on a full disk of 1 MiB: commands fail in order, queries go on."""
    disk = context.folder / "disk"
    disk.mkdir()
    if subprocess.run(
        ["mount", "-t", "tmpfs", "-o", "size=1m", "tmpfs", str(disk)],
        check=False,
        capture_output=True,
    ).returncode:
        context.note("no disk that is full: only root may mount one")
        return
    try:
        with _server(context, "full", {"server.state_dir": disk / "state"}) as subject:
            before = len(subject.processes())
            (disk / "filler").write_bytes(b"")
            with contextlib.suppress(OSError):
                (disk / "filler").write_bytes(bytes(1 << 20))
            for number in range(context.size(10, 2)):
                body = json.dumps(
                    {
                        "name": f"a{number}" * 500,
                        "input_type": "integers",
                        "default_output": "-1",
                        "latency_slo_micros": 1000,
                    }
                )
                status, _ = subject.ask("POST", "/admin/add_app", body, admin=True)
                asked = subject.ask("POST", "/v2/models/echo/infer", _BODY % 1)[0]
                wrong = None if asked == 200 else f"a query was answered {asked}"
                if status >= 500 and status not in {503, 507}:
                    wrong = f"a command was answered {status}"
                context.case(
                    f"full disk {number}",
                    wrong or _judged(subject, before, subject.ready_within(READY_S)),
                )
    finally:
        subprocess.run(["umount", "-l", str(disk)], check=False)


def _few_descriptors(context: Context) -> None:
    """64 descriptors and 100 clients: those inside are served, and room comes back."""
    for number in range(context.size(5, 1)):
        with (
            _server(context, f"few{number}", descriptors=64) as subject,
            contextlib.ExitStack() as owns,
        ):
            before = len(subject.processes())
            for _ in range(100):
                with contextlib.suppress(OSError):
                    owns.enter_context(socket.create_connection(("127.0.0.1", subject.port), 2))
            time.sleep(1)
            owns.close()
            context.case(
                f"EMFILE {number}", _judged(subject, before, subject.ready_within(READY_S))
            )


def _hungry_models(context: Context) -> None:
    """A model that eats the memory of its replica: its request fails, the next one is served."""
    file = context.folder / "eater.py"
    file.write_text(_EATER)
    arguments = ("--model", "echo", "--model", f"{file}:Model")
    with _server(context, "eater", {"replica.memory_mb": 128}, arguments=arguments) as subject:
        names = [
            model["name"]
            for model in json.loads(subject.ask("GET", "/admin/models", admin=True)[1])["models"]
        ]
        name = next(name for name in names if name != "echo")
        body = json.dumps(
            {"inputs": [{"name": "x", "shape": [1, 1], "datatype": "INT32", "data": [99]}]}
        )
        for number in range(context.size(8, 1)):
            status, answer = subject.ask("POST", f"/v2/models/{name}/infer", body, timeout_s=60)
            wrong = None if status in {500, 503, 504} else f"answered {status}: {answer[:80]!r}"
            asked = subject.ask("POST", "/v2/models/echo/infer", _BODY % 1)[0]
            context.case(
                f"memory eaten {number}",
                wrong or (None if asked == 200 else f"echo was answered {asked}"),
            )


def _damaged_states(context: Context) -> None:
    """Files of a state folder with some bits flipped: it starts, or says in a line why not."""
    with _server(context, "damage", {"replica.count": 1}) as subject:
        subject.ask(
            "POST", "/admin/models", json.dumps({"model": "echo", "name": "second"}), admin=True
        )
        subject.stop()
        state = subject.folder / "state"
        good = {path: path.read_bytes() for path in state.rglob("*") if path.is_file()}
        for number in range(context.size(30, 2)):
            for path, data in good.items():
                path.write_bytes(data)
            path = context.rng.choice([path for path, data in good.items() if data] or list(good))
            data = bytearray(good[path])
            if context.rng.random() < 0.3:
                del data[context.rng.randrange(len(data) + 1) :]
            for _ in range(max(1, len(data) // 1000)):
                if data:
                    data[context.rng.randrange(len(data))] ^= 1 << context.rng.randrange(8)
            path.write_bytes(bytes(data))
            start = subject.log_bytes()
            try:
                subject.restart()
                subject.stop()
                wrong = None
            except NotReady:
                text = subject.log_text(start)
                wrong = (
                    None
                    if text.strip() and "Traceback" not in text
                    else f"it ended with {text[-200:]!r}"
                )
            context.case(
                f"damaged {path.name}, {number}",
                wrong,
                bytes(data) if wrong else b"",
                file=path.name,
            )
        for path, data in good.items():
            path.write_bytes(data)
        subject.restart()


def _bad_stores(context: Context) -> None:
    """A Redis that is not there, says nothing, or says nonsense."""
    for name, answer in {
        "nonsense": b"HTTP/1.1 400 Bad Request\r\n\r\n",
        "nothing": b"",
        "endless": b"$999999999\r\n" + bytes(1 << 20),
        "closed": None,
    }.items():
        for number in range(context.size(5, 1)):
            with _store(answer) as port:
                settings = {"server.state_store": f"redis://127.0.0.1:{port}/0"}
                try:
                    with _server(context, f"store-{name}-{number}", settings) as subject:
                        asked = subject.ask("POST", "/v2/models/echo/infer", _BODY % 1)[0]
                        wrong = None if asked == 200 else f"a query was answered {asked}"
                        wrong = wrong or _judged(
                            subject, len(subject.processes()), subject.ready_within(READY_S)
                        )
                except NotReady as error:
                    text = str(error)
                    wrong = (
                        f"it ended with {text[-200:]!r}"
                        if "Traceback" in text or not text.strip()
                        else None
                    )
            context.case(f"store: {name}, {number}", wrong)


def _woken(listener: socket.socket) -> None:
    """Let who waits in accept go."""
    with contextlib.suppress(OSError):
        listener.shutdown(socket.SHUT_RDWR)


@contextlib.contextmanager
def _store(answer: bytes | None) -> Iterator[int]:
    """A port that answers everything in the same way; None: it closes at once."""
    listener = socket.create_server(("127.0.0.1", 0))

    def serve() -> None:
        with contextlib.suppress(OSError):
            while True:
                sock, _ = listener.accept()
                threading.Thread(target=one, args=(sock,), daemon=True).start()

    def one(sock: socket.socket) -> None:
        with sock, contextlib.suppress(OSError):
            while answer is not None and sock.recv(65_536):
                sock.sendall(answer)

    threading.Thread(target=serve, daemon=True).start()
    with listener, contextlib.ExitStack() as owns:
        owns.callback(_woken, listener)
        yield listener.getsockname()[1]


def _lacks(context: Context, program: str) -> bool:
    """Whether a program is missing, which fails a whole run and shortens a quick one."""
    if shutil.which(program) is not None:
        return False
    if context.is_quick:
        context.note(f"without {program}")
    else:
        context.case(program, f"a tool is missing: {program} (apt-get install {program})")
    return True


def _jumping_clocks(context: Context) -> None:
    """The wall clock jumps by a day, forth and back: nothing depends on it."""
    if _lacks(context, "faketime"):
        return
    stamp = context.folder / "now"
    stamp.write_text("+0\n")
    environment = {
        "FAKETIME_TIMESTAMP_FILE": str(stamp),
        "FAKETIME_DONT_FAKE_MONOTONIC": "1",
        "FAKETIME_NO_CACHE": "1",
    }
    library = next(pathlib.Path("/usr/lib").glob("*/faketime/libfaketimeMT.so.1"))
    with _server(
        context, "clock", environment={**environment, "LD_PRELOAD": str(library)}
    ) as subject:
        before = len(subject.processes())
        for jump in ("+1d", "-1d", "+3650d", "+0")[: context.size(4, 1)]:
            with Load(subject) as load:
                stamp.write_text(f"{jump}\n")
                time.sleep(1.5)
            lost = {status: count for status, count in load.statuses.items() if status != 200}
            wrong = _judged(subject, before, subject.ready_within(READY_S), load)
            context.case(
                f"the clock at {jump}", wrong or (f"requests got {lost}" if lost else None)
            )


def _busy_machines(context: Context) -> None:
    """Four workers that compute and some that write on the cores of the server."""
    if _lacks(context, "stress-ng"):
        return
    for name, words in {
        "cpu": ["--cpu", "4"],
        "io": ["--io", "2", "--hdd", "1", "--hdd-bytes", "64m"],
        "vm": ["--vm", "2", "--vm-bytes", "256m"],
    }.items():
        with _server(context, f"busy-{name}") as subject, Load(subject) as load:
            before = len(subject.processes())
            seconds = context.size(20, 3)
            subprocess.run(
                [*machine.on_core(0), "stress-ng", *words, "--timeout", f"{seconds}s",
                 "--temp-path", str(context.folder)],
                check=False, capture_output=True, timeout=seconds + 60,
            )  # fmt: skip
            context.case(
                f"a machine that is busy with {name}",
                _judged(subject, before, subject.ready_within(READY_S), load),
            )


STAGE = Stage(
    name="J",
    title="faults: kills, stops, disks, clocks",
    half=2,
    run=run,
    is_quick=True,
    limit_s=900,
    quick_limit_s=100,
    spec=None,
)
