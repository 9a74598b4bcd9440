"""A small real replica in a thread, and a home of such: the replica wire is spoken for real over a socket pair.

It answers each request with its own input tensors (renamed to the outputs' names), after an
optional delay; a test can make it misbehave.
"""

import asyncio
import contextlib
import socket
import threading
import time

from serving import wire
from serving.errors import LimitsUnavailable
from serving.spawners.base_replica import BaseReplica
from serving.spawners.exit_status import ExitStatus
from serving.values import ModelId, Signature, TensorSpec

SIGNATURE = Signature(
    inputs=(TensorSpec(name="data", datatype="UINT8", shape=(-1, -1)),),
    outputs=(TensorSpec(name="data", datatype="UINT8", shape=(-1, -1)),),
    platform="fake",
)


class FakeReplica(BaseReplica):
    """One replica: a thread behind a socket pair."""

    def __init__(self, worker, home):
        super().__init__(worker)
        self.pid = 100_000 + worker
        self.features = home.features
        self.home = home
        sock, self._peer = socket.socketpair()
        sock.setblocking(False)
        self.set_socket(sock)
        self._loop = asyncio.get_running_loop()
        self.limits = None
        self.model = None
        self.batches = []
        self._parser = wire.MessageParser()
        threading.Thread(target=self._run, daemon=True).start()

    async def set_limits(self, *, cpu, memory_mb):
        if self.worker in self.home.refuse_limits:
            raise LimitsUnavailable("the fake kernel refuses")
        self.limits = (cpu, memory_mb)

    def _request_end(self):
        self._end("killed", "killed by signal 9")

    def die(self, reason="crash"):
        """End from the outside, as a crash would."""
        self._loop.call_soon_threadsafe(self._end, reason, f"ended: {reason}")

    def _end(self, reason, text):
        if not self.ended.done():
            self.ended.set_result(ExitStatus(reason=reason, text=text))
            with contextlib.suppress(OSError):
                self._peer.shutdown(socket.SHUT_RDWR)

    def _run(self):
        with self._peer, contextlib.suppress(OSError):
            while data := self._peer.recv(1 << 20):
                for kind, body in self._parser.feed(data):
                    self._act(kind, body)

    def _act(self, kind, body):
        home = self.home
        if kind is wire.MessageType.LOAD:
            message = wire.parse_load(body)
            home.loads.append(message)
            self.model = ModelId(message.name, message.version)
            if home.load_error:
                detail, status = {"error": home.load_error}, wire.ActionStatus.LOAD_FAILED
            else:
                signature = home.signature_of(self.model)
                detail, status = {"signature": signature.as_json(), **home.load_detail}, 0
            self._peer.sendall(wire.encode_loaded(message.action_id, status, detail))
            return
        message = wire.parse_infer(body)
        self.batches.append(len(message.entries))
        if home.die_on_batch:
            self.die()
            return
        if home.poison and any(bytes(frame).endswith(home.poison) for *_, frame in message.entries):
            self.die()
            return
        if home.hold.is_set():
            home.release.wait(10)
        started_ns = time.monotonic_ns()
        if home.exec_s:
            time.sleep(home.exec_s)
        times = wire.ReplicaTimes(started_ns, 0, int(home.exec_s * 1e9), 0)
        frames = [home.answer(self.model, frame) for *_, frame in message.entries]
        entries = [(len(frame), home.entry_status) for frame in frames]
        head = wire.result_head(message.action_id, 0, times, entries)
        self._peer.sendall(b"".join([head, *frames]))


class FakeHome:
    """A home of threads, with switches for what a test wants to go wrong."""

    def __init__(self):
        self.replicas = []
        self.limits_text = "not enforced: replicas are threads"
        self.image_id = ""
        self.exec_s = 0.0
        self.entry_status = 0
        self.load_error = None
        self.load_detail = {"load_s": 0.0}
        """What LOADED says beside the signature."""
        self.loads = []
        """The LOADs that came."""
        self.features = wire.FEATURES
        self.signature = SIGNATURE
        self.die_on_batch = False
        self.poison = b""
        """A request whose data ends so ends the replica."""
        self.refuse_limits = set()
        self.hold = threading.Event()
        self.release = threading.Event()

    def signature_of(self, model):
        """What a model of this home takes and gives."""
        return self.signature

    def answer(self, model, frame):
        """The frame of a model's answer: the same one."""
        return frame

    async def open(self, kind):
        pass

    async def start(
        self,
        worker,
        *,
        cpu,
        memory_mb,
        ready_timeout_s,
        spec,
        accelerator=None,
        may_wait=False,
    ):
        replica = FakeReplica(worker, self)
        replica.accelerator = accelerator
        replica.limits = (cpu, memory_mb)
        self.replicas.append(replica)
        return replica

    async def stage(self, spec):
        return None

    async def unstage(self, root):
        pass

    async def close(self):
        for replica in self.replicas:
            replica.kill()
