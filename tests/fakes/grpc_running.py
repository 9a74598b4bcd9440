"""A gateway with a gRPC port beside its others, and a hub of models that remembers what it was asked."""

import contextlib

from serving.api.grpc.listener import GrpcListener
from serving.api.grpc.routes import GrpcRoutes
from serving.api.triton.extensions import ModelConfig, RepositoryIndexEntry
from serving.errors import ModelLoadFailed, UnknownModel
from serving.metrics.statistics import StatisticsCollector
from serving.settings import ServingSettings
from serving.values import ModelId, StageTimes
from tests.fakes.replicas import SIGNATURE
from tests.fakes.running import gateway


class GrpcPort:
    """The port of a running gateway."""

    def __init__(self, running, listener, routes, port):
        self.running = running
        self.listener = listener
        self.routes = routes
        self.port = port
        self.address = f"127.0.0.1:{port}"

    @property
    def responses(self):
        """Inferences by status."""
        engine = self.running.engine
        total = dict(engine.unknown_model_responses)
        for served in engine.deployments():
            for status, count in dict(served.counters.responses).items():
                total[status] = total.get(status, 0) + count
        return total

    @property
    def unfinished(self):
        """Requests that the engine has not answered."""
        return self.running.do(lambda: self.running.engine.inflight_count)


@contextlib.contextmanager
def grpc_gateway(
    values=None,
    home=None,
    hub=None,
    *,
    idle_s=60.0,
    request_s=60.0,
    door=None,
    buffered=None,
    gzip_min_bytes=None,
):
    """A gateway with these settings and a gRPC port, stopped at the end."""
    with gateway(values, home) as running:
        engine = running.engine

        async def start():
            routes = GrpcRoutes(engine, hub or FakeHub())
            listener = GrpcListener(
                routes,
                max_body_bytes=engine.settings.server.max_body_bytes,
                idle_s=idle_s,
                request_s=request_s,
                door=door,
                buffered=buffered,
                gzip_min_bytes=gzip_min_bytes,
            )
            server = await running.loop.create_server(listener.protocol, "127.0.0.1", 0)
            return listener, routes, server

        listener, routes, server = running.call(start())
        try:
            yield GrpcPort(running, listener, routes, server.sockets[0].getsockname()[1])
        finally:
            running.do(server.close)
            running.do(listener.close)
            running.call(routes.close())


class FakeHub:
    """Models `echo` (ready) and `other` (not loaded), with loads and unloads written down."""

    def __init__(self):
        self.asked = []
        self.ready = {"echo"}
        collected = StatisticsCollector(ModelId("echo", "1"))
        collected.batch(
            StageTimes(0.001, 0.002, 0.003, 0.004),
            items=5,
            parts=2,
            waited_s=0.5,
            wall_s=1_700_000_000.25,
        )
        collected.record_failure(0.25)
        self.collected = collected

    def statistics(self, name, version):
        if name not in {None, "echo"} or version not in {None, "1"}:
            raise UnknownModel(name, ("echo",), version)
        return [self.collected.snapshot(successes=2, answered_s=0.85)]

    def model_config(self, name, version):
        if name != "echo":
            raise UnknownModel(name, ("echo",), version)
        settings = ServingSettings().with_changes(
            {"batching.max_size": 16, "batching.timeout_us": 300}
        )
        return ModelConfig(ModelId("echo", "1"), SIGNATURE, settings)

    def index(self):
        for name in ("echo", "other"):
            ready = name in self.ready
            yield RepositoryIndexEntry(
                name, "1", "READY" if ready else "UNAVAILABLE", "" if ready else "unloaded"
            )

    async def load(self, name, config):
        self.asked.append(("load", name, config))
        if name == "broken":
            raise ModelLoadFailed(name, "no file")
        if name == "faulty":
            raise RuntimeError("a fault of the hub")
        self.ready.add(name)

    async def unload(self, name):
        self.asked.append(("unload", name))
        if name not in self.ready:
            raise UnknownModel(name, tuple(self.ready))
        self.ready.discard(name)
