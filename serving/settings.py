"""Settings of the serving core, grouped by stage; every field is one knob with one dotted name.

The dotted name (`batching.max_size`) is the same in settings files, in search spaces, in stored
trials, in reports and in exports. In: a mapping of dotted or nested keys, environment variables,
command-line values. Out: one frozen `ServingSettings`. Precedence: file < environment < command
line (`resolve`).

Each field carries its limits as metadata, so that a check, an error text and a page of
documentation come from the same place. This file knows nothing of processes, sockets or models.
"""

from __future__ import annotations

import dataclasses
import os
import pathlib
import types
import typing
from collections.abc import Callable, Collection, Iterator, Mapping
from typing import Any, Literal, cast

import yaml

from serving import bounded_yaml
from serving.errors import InvalidSettings, nearest
from serving.input_values import values_of
from serving.sizes import pads_of, sizes_of
from serving.yaml_problem import yaml_problem

ENVIRONMENT_PREFIX = "LUTHIER_"
"""`LUTHIER_BATCHING__MAX_SIZE=8` sets `batching.max_size`."""

Value = int | float | str | bool | None
_SERVER_WIDE = ("server.", "accelerator.clock_mhz")
"""What no single model can have of its own: listeners, and the clock of the one GPU."""
_MODELS = "models"
"""The group in which single models are named: `models.NAME.batching.max_size`."""


@dataclasses.dataclass(frozen=True, slots=True)
class Limits:
    """Unit and allowed range of one field (both ends included), and whether it changes in a running engine."""

    unit: str = ""
    low: float | None = None
    high: float | None = None
    live: bool = True
    check: Callable[[str], object] | None = None
    """Raises InvalidSettings where a text is not of the form that the field has."""


def _knob(
    default: Any,
    unit: str = "",
    low: float | None = None,
    high: float | None = None,
    *,
    live: bool = True,
    check: Callable[[str], object] | None = None,
) -> Any:
    limits = Limits(unit, low, high, live, check)
    return dataclasses.field(default=default, metadata={"limits": limits})


@dataclasses.dataclass(frozen=True, slots=True, kw_only=True)
class ReplicaSettings:
    """Where the model runs: how many processes, and what each may use."""

    count: int = _knob(1, "replicas", 1, 64)
    """Processes that serve the model. Default 1: the smallest that answers."""
    cpu: float | None = _knob(None, "cores", 0.05, 256)
    """CPU quota of each replica.

    Default none: the kernel shares the machine. Quotas work in periods of 100 ms.
    """
    memory_mb: int | None = _knob(None, "MiB", 8, 4_194_304)
    """Memory limit of each replica, no swap beside it.

    Default none. Lowering it starts new replicas.
    """
    threads: int = _knob(1, "threads", 1, 256)
    """Threads inside one operator of the runtime.

    Default 1: replicas scale better than threads on small models.
    """
    home: Literal["process", "docker"] = _knob("process", live=False)
    """What a replica is: a `process` of this machine, or a container of this machine's Docker engine (`docker`).

    Default process: it starts in tens of milliseconds and needs nothing beside this server (docs/containers.md).
    """
    image: str | None = _knob(None, live=False)
    """Image of the replicas where `home` is docker.

    Default none: the project's own for the kind of model, as `make images` builds it.
    """
    max_answer_mb: int = _knob(256, "MiB", 1, 2047, live=False)
    """Largest message that the server takes from a replica: the answers to one batch.

    Where those of several requests are more, each is asked for alone; where one alone is, it fails. A replica that
    sends more all the same is ended. Default 256 MiB: four of the largest requests.
    """
    ready_timeout_s: float = _knob(30.0, "s", 0.1, 3600)
    """A replica that is not ready after this long has failed to start.

    Default 30 s: large models load slowly.
    """
    warmup_s: float = _knob(2.0, "s", 0, 3600)
    """Time for which a replica runs its model on sample inputs before it takes requests (docs/models.md).

    A first call is always made; further ones, single items and then a batch of `batching.max_size`, as far as
    they are expected to end within this time. 0: no call is made but those that try a batch (docs/batching.md). All
    of it is part of `ready_timeout_s`.
    Default 2 s: small models need some milliseconds, and a large one is not kept from its requests for long.
    """
    hang_timeout_s: float = _knob(30.0, "s", 0.1, 3600)
    """A replica that holds one batch this long is killed and replaced.

    Default 30 s, as the default deadline.
    """


@dataclasses.dataclass(frozen=True, slots=True, kw_only=True)
class ModelSettings:
    """What is served of a model that has several forms, and what is known of its inputs."""

    variant: str | None = _knob(None)
    """Name of one of the variants in the model's `model.yaml` (docs/models.md); a change loads it in new replicas.

    Default none: the variant that the card's `file` names.
    """
    shapes: str | None = _knob(
        None, check=lambda text: sizes_of(text.split(), source="model.shapes")
    )
    """Sizes of the dimensions that the model leaves free, such as `image=3x640x640 sequence=16..512`.

    With them inputs can be made up for the warm-up (docs/models.md). They limit no request. Default none: those of
    the model's `model.yaml`, and without these a model that has such dimensions is warmed up by its samples alone.
    """
    values: str | None = _knob(
        None, check=lambda text: values_of(text.split(), source="model.values")
    )
    """What stands in inputs that are made up for the warm-up, such as `ids=0..30521 mask=1 rate=16000`.

    Uniform from the first to the last, or one value. Default none: those of the model's `model.yaml`, and without these
    numbers around zero, small whole numbers, empty texts.
    """
    pad: str | None = _knob(None, check=pads_of)
    """Values that fill inputs up where `batching.pad_to` is set, such as `ids=0 mask=0`.

    Every input with a free dimension beside the item axis needs one. Default none: those of the model's `model.yaml`.
    """


@dataclasses.dataclass(frozen=True, slots=True, kw_only=True)
class BatchingSettings:
    """When waiting requests become a batch. The item is the unit; a request may carry several."""

    policy: Literal["fixed", "aimd", "quantile", "delayed"] = _knob("fixed")
    """How size and wait are decided, within `max_size` and `timeout_us` (docs/batching.md).

    `fixed`: as they are set. `aimd`, `quantile`: the size follows `objective_ms`. `delayed`: the wait follows
    the arrivals. Default fixed: what is set is what happens.
    """
    objective_ms: float = _knob(20.0, "ms", 0.1, 3_600_000)
    """Latency that requests shall keep, for `aimd` and `quantile`: a batch gets a third of it.

    Default 20 ms, Clipper's.
    """
    max_size: int = _knob(8, "items", 1, 4096)
    """Most items in one batch; a request above it is split.

    Default 8: most of the gain of a batch, little waiting.
    """
    timeout_us: int = _knob(0, "us", 0, 10_000_000)
    """Longest time that the oldest waiting item waits for company while a worker is free.

    Default 0: not at all.
    """
    pad_to: int | None = _knob(None, "", 1, 65_536)
    """Free dimensions of requests are filled up to the next multiple of it, so that more requests share a batch.

    Needs a value for each input (`model.pad`) and a model whose answers stay the same, which is checked when it is
    loaded (docs/batching.md). Default none: only requests of equal shapes share a call of the model.
    """


@dataclasses.dataclass(frozen=True, slots=True, kw_only=True)
class AcceleratorSettings:
    """The GPU: which models run on it, how they share it, and its clock (docs/accelerator.md)."""

    device: Literal["auto", "cpu", "cuda"] = _knob("auto")
    """Where the kinds `onnx` and `torch` run a model: the first GPU that CUDA shows the server, or the CPU.

    `cuda`: the GPU, or the model is not loaded. `cpu`: GPUs are hidden from the replicas, whatever they run.
    Default auto: the GPU where the installed runtime can use one and there is one, for whoever installs that
    runtime means it; else the CPU. A change starts new replicas.
    """
    share: int | None = _knob(None, "%", 1, 100)
    """Part of the GPU's threads that each replica may use at most, through CUDA MPS.

    Does nothing, and says so once, where no MPS control daemon runs: then replicas take turns on the whole GPU.
    Default none: all of them. A change starts new replicas.
    """
    clock_mhz: int | None = _knob(None, "MHz", 1, 20_000)
    """Graphics clock that the GPU is locked to while the server runs: one of those that it supports.

    Needs the right to set it (root); refused where that cannot be done. For all models, as there is one clock.
    Default none: the driver decides.
    """


@dataclasses.dataclass(frozen=True, slots=True, kw_only=True)
class CacheSettings:
    """Prediction cache, one for each model version: no model pushes out another one's answers."""

    capacity_mb: int = _knob(0, "MiB", 0, 1_048_576)
    """Bytes of keys and answers kept, least recently used out first.

    Default 0, off: a cache changes what a measurement means, and is of use only where inputs repeat.
    """


@dataclasses.dataclass(frozen=True, slots=True, kw_only=True)
class RoutingSettings:
    """Which free worker takes the next batch."""

    policy: Literal["least-loaded", "round-robin"] = _knob("least-loaded")
    """`least-loaded`: the worker with the fewest batches, of equals the one that gets to the next one soonest.

    `round-robin`: in turn.
    """


@dataclasses.dataclass(frozen=True, slots=True, kw_only=True)
class SchedulingSettings:
    """The queue in front of the workers."""

    policy: Literal["adaptive", "clockwork"] = _knob("adaptive", live=False)
    """How requests become batches of replicas (docs/schedulers.md).

    `adaptive`: every model has replicas of its own. `clockwork`: models share replicas, which load and unload them
    as they are asked for, and a request that cannot be in time is refused when it comes.
    Default adaptive: it needs no deadlines.
    """
    queue_capacity: int = _knob(2048, "items", 1, 1_000_000)
    """Items that may wait; beyond, one request is answered 429: of the application with most of them.

    One that has more items itself is answered 413. Default 2048: some 0.1 s of a fast model's work.
    """
    default_deadline_s: float = _knob(30.0, "s", 0.001, 86_400)
    """Deadline of a request that names none. Default 30 s: longer than a patient client waits."""
    longest_deadline_s: float = _knob(300.0, "s", 0.001, 86_400)
    """Longest deadline that a request gets, whatever it names; `default_deadline_s` may be longer.

    Until then it may keep a place in the queue. Default 300 s: ten times the default deadline, for models that take
    minutes.
    """
    default_priority: int = _knob(2, "", 1, 2**31 - 1)
    """Priority of a request that names none, 1 being the most urgent.

    Default 2: a request can be more urgent than the others, or less.
    """


@dataclasses.dataclass(frozen=True, slots=True, kw_only=True)
class ClockworkSettings:
    """How models share replicas, where `scheduling.policy` is clockwork (docs/schedulers.md)."""

    memory_mb: int | None = _knob(None, "MiB", 1, 4_194_304)
    """Memory for models in each replica; beyond it the least recently used is unloaded for the next one.

    Default none: half of `replica.memory_mb`, and without that no limit. A change starts new replicas.
    """
    page_mb: float = _knob(1.0, "MiB", 0.0625, 1024, live=False)
    """Smallest part of that memory that is counted. Default 1 MiB: small models of a CPU are not much larger."""
    ahead_ms: float = _knob(10.0, "ms", 0.1, 1000)
    """A replica is given its next batch when it will be free within this time.

    Default 10 ms, Clockwork's: longer than a message and a plan take. A longer one decides earlier, with fewer
    requests to choose from; it is at most a tenth of the time of those who can wait least of late.
    """
    window_ms: float = _knob(50.0, "ms", 0.1, 1000)
    """A batch or load that has not begun this long after it was expected to is not begun any more.

    It never is when it could not end in time. Default 50 ms: on cores that are shared, a neighbour holds up a replica
    for longer than Clockwork's 10 ms, and what is still of use is better begun late than planned anew; on an
    accelerator of one's own 10 ms will do.
    """
    guard: float = _knob(0.1, "", 0, 10)
    """Share by which a batch may take longer than the longest of the last ten of its size.

    Default 0.1: cores are shared with the gateway; on an accelerator of one's own it may be 0, as Clockwork's.
    """
    buffer: float = _knob(0.05, "", 0, 0.5)
    """Share of a request's time that is planned to be left over.

    Default 0.05: Clockwork's 5 ms of 100 ms; as a share, short deadlines can be met as well.
    """
    max_exec_ms: float = _knob(25.0, "ms", 0.1, 60_000)
    """Batches of more than one item that take longer are not made: they would hold up all other models.

    Default 25 ms, Clockwork's.
    """


@dataclasses.dataclass(frozen=True, slots=True, kw_only=True)
class ServerSettings:
    """Listeners and their limits; fixed while the server runs."""

    host: str = _knob("127.0.0.1", live=False)
    """Address of the query port. Default loopback: opening it to a network is a decision."""
    port: int = _knob(8000, "", 0, 65_535, live=False)
    """Query port (HTTP); 0 takes a free one."""
    grpc_port: int | Literal["auto"] | None = _knob("auto", "", 0, 65_535, live=False)
    """Port of the gRPC form of the query protocol, on the query port's address; 0 takes a free one, none is off.

    Default `auto`: 8001, where clients look for it, beside the query port 8000; a free one beside a free one (0);
    off beside any other. Where another program has 8001, the server goes on without gRPC and says so.
    """
    admin_host: str = _knob("127.0.0.1", live=False)
    """Address of the admin port, which runs code. Default loopback; elsewhere it needs a token and TLS."""
    admin_port: int = _knob(8002, "", 0, 65_535, live=False)
    """Port of health, metrics and live settings; 0 takes a free one.

    Where the query port is 0 and this one is not named, it is 0 as well.
    """
    admin_access: Literal["token", "open"] = _knob("token", live=False)
    """Whether requests on the admin port must bring a token, as `Authorization: Bearer TOKEN`; health need not.

    `token`: they must. Where `admin_token_file` names none, the server makes one at its start, in a file that its user
    alone can read; the line `ready` says where (`admin_token_file`), and metrics are open beside health.
    `open` (`--no-admin-token`): whoever reaches the port may ask.
    Default token: who may change a server runs code as its user, and every user of a machine reaches loopback.
    """
    admin_token_file: str | None = _knob(None, live=False)
    """File with a token for the admin port, of 16 characters or more, in the place of the one that is made.

    The environment variable LUTHIER_ADMIN_TOKEN may hold the token itself instead. Default none: one is made, which
    serves on loopback alone.
    """
    max_body_bytes: int = _knob(64 * 1024 * 1024, "bytes", 1024, 2**31 - 1, live=False)
    """Largest request body; a larger one is answered 413. Default 64 MiB, as Triton's."""
    max_json_bytes: int = _knob(4 * 1024 * 1024, "bytes", 1024, 2**31 - 1, live=False)
    """Most JSON of a request that the server itself reads, after decompression; more is answered 413.

    Large arrays of numbers are read by replicas, up to `max_body_bytes`. What is read here holds up all other requests
    meanwhile, some 10 ms a MiB. Default 4 MiB: a photograph of 3 MB in base64.
    """
    max_connections: int = _knob(8192, "connections", 1, 1_000_000, live=False)
    """Connections of clients at a time, of the query port and the gRPC port together.

    One more is answered 503 with Retry-After (over HTTP/2: GOAWAY) and closed. Default 8192: ten times what
    clients keep open that share a server, at some kilobytes each, and far from where the kernel gives no more
    open files. The limit on these (`ulimit -n`) is raised to that where the system allows it.
    """
    max_connections_of_client: int | None = _knob(None, "connections", 1, 1_000_000, live=False)
    """How many of them one client may have, by its address; clients on loopback are not told apart.

    With TLS it is counted from its first packet on. Networks of IPv6 count as far as the first 64 bits. Default none:
    a quarter of `max_connections`, so that no single client keeps all others out; where all come through one proxy
    on another machine it may have to be as large as that.
    """
    max_held_mb: int = _knob(1024, "MiB", 1, 4_194_304, live=False)
    """Bytes of requests that are held at a time, over all connections of the query port and the gRPC port.

    Counted are bodies that arrive, those that wait behind another, large heads of such, what compressed ones
    become, all of 64 KiB or more until they are answered, and answers that their clients do not take (but for those
    over TLS). Beyond it a body that grows is answered 503 with Retry-After (RESOURCE_EXHAUSTED), and those that
    came before it go on. It is never less than two of `max_body_bytes`. Default 1 GiB: sixteen of the largest
    bodies, and what a gateway can spare beside its models.
    """
    token_file: str | None = _knob(None, live=False)
    """File with a token that requests on the query port and the gRPC port must bring, of 16 characters or more.

    They send it as `Authorization: Bearer TOKEN`; without it they are answered 401. The environment variable
    LUTHIER_TOKEN may hold the token itself instead. Default none: anybody who reaches the port may ask.
    """
    tls_certificate: str | None = _knob(None, live=False)
    """File with the certificate chain (PEM) with which the query port and the gRPC port speak TLS.

    Default none: they speak without. Needs `tls_key`.
    """
    tls_key: str | None = _knob(None, live=False)
    """File with the private key (PEM) of `tls_certificate`."""
    cors: str | None = _knob(None, live=False)
    """Origins of pages whose scripts may ask the query port, as `https://a.example,https://b.example`, or `*`.

    Default none: browsers keep them from reading answers, and the server refuses what would change it.
    """
    hosts: str | None = _knob(None, live=False)
    """Further names under which the query port and the admin port may be asked, as `models.example,10.0.0.7`, or `*`.

    A port that is bound to loopback answers to `localhost`, to loopback addresses and to these alone (the field
    `Host`), else 403: a page in a browser whose site claims to be this machine gives itself away by its name. With
    this setting a port of a network does so, too. `*`: any name. Default none: a port of a network has names that
    the server does not know.
    """
    gzip_min_bytes: int | None = _knob(65_536, "bytes", 0, 2**31 - 1, live=False)
    """Answers from this length on are compressed where the client asks for it (`Accept-Encoding: gzip` or `deflate`).

    Over gRPC it asks by sending its own messages so. Null: never.
    Default 64 KiB: shorter ones are sent sooner than compressed.
    """
    timing: Literal["none", "header"] = _knob("none", live=False)
    """Whether answers of the query port say in a field `Server-Timing` how long their stages took.

    Default none: strangers learn from it what others do to the server.
    """
    metrics: Literal["query", "admin"] = _knob("query", live=False)
    """Where metrics and statistics of models are shown, which tell strangers what others ask.

    `query`: on the query port and the gRPC port too. `admin`: metrics on the admin port alone, statistics nowhere.
    Default query: clients of TensorFlow Serving, Triton and Clipper look for them there.
    """
    model_control: Literal["none", "explicit"] = _knob("none", live=False)
    """Whether clients of the query port and of the gRPC port may load and unload models.

    `none`: they may not. `explicit`: they may, through Triton's repository calls, by name.
    Default none: who may ask a model is not who may take it away.
    """
    state_dir: str | None = _knob(None, live=False)
    """Folder in which the server keeps what was changed while it ran, and what selection policies learn.

    Models, versions, applications, links and live settings are there again at the next start, after a `kill -9`
    too. One server at a time. Default none: all is forgotten when the server ends.
    """
    state_store: str | None = _knob(None, live=False)
    """Redis server that keeps what selection policies learn, for gateways on any machine, one after another.

    Gateways that run at the same time do not learn together: the last save of a state wins.
    As `redis://HOST:6379/0`, `rediss://HOST:6379/0` (TLS) or `unix:///PATH/OF/SOCKET`; needs
    `pip install '.[redis]'` in a clone. Its password is in the environment variable LUTHIER_STATE_STORE_PASSWORD:
    whoever may read settings would read it in the address. Default none: a file (SQLite) in `state_dir`, and
    without that the memory of the server.
    """
    profiles_dir: str | None = _knob(None, live=False)
    """Folder in which profiles of models that share replicas outlive the server (docs/schedulers.md).

    One server at a time. Default none: `state_dir`, and without that all models are measured at each start.
    """
    repository_poll_s: float = _knob(1.0, "s", 0.05, 3600, live=False)
    """Time between two looks into the model repository.

    Default 1 s, as TensorFlow Serving's; a version is taken up when two looks see the same files.
    """
    repository_kept: int = _knob(1, "versions", 1, 100, live=False)
    """Newest versions of a model of the repository that stay loaded, for a roll-back without a load.

    Default 1: memory for one.
    """
    drain_s: float = _knob(20.0, "s", 0, 3600, live=False)
    """Longest time between SIGTERM and the end of the last request in flight. Default 20 s."""


@dataclasses.dataclass(frozen=True, slots=True, kw_only=True)
class ServingSettings:
    """All settings of one server."""

    replica: ReplicaSettings = dataclasses.field(default_factory=ReplicaSettings)
    model: ModelSettings = dataclasses.field(default_factory=ModelSettings)
    batching: BatchingSettings = dataclasses.field(default_factory=BatchingSettings)
    accelerator: AcceleratorSettings = dataclasses.field(default_factory=AcceleratorSettings)
    cache: CacheSettings = dataclasses.field(default_factory=CacheSettings)
    routing: RoutingSettings = dataclasses.field(default_factory=RoutingSettings)
    scheduling: SchedulingSettings = dataclasses.field(default_factory=SchedulingSettings)
    clockwork: ClockworkSettings = dataclasses.field(default_factory=ClockworkSettings)
    server: ServerSettings = dataclasses.field(default_factory=ServerSettings)
    models: Mapping[str, Mapping[str, Value]] = dataclasses.field(default_factory=dict)
    """What differs for single models: name of the model -> knob -> value."""

    def of(self, model: str) -> ServingSettings:
        """The settings of one model: those for all, with what differs for it."""
        own = self.models.get(model, {})
        return dataclasses.replace(self.changed(own) if own else self, models={})

    def notes(self, served: Collection[str]) -> list[str]:
        """A line for every model that has settings of its own and is none of those served: it may be misspelt."""
        known = ", ".join(sorted(served)) or "none"
        return [
            f"models.{model}: no model of that name is served{nearest(model, served)} (served: {known}); "
            "its settings wait until there is one"
            for model in self.models
            if model not in served
        ]

    def flat(self) -> dict[str, Value]:
        """Every knob by its dotted name; `models.NAME.` before those of a single model."""
        flat = {f"{group}.{field.name}": value for group, field, value in _walk(self)}
        for model, own in self.models.items():
            flat |= {f"{_MODELS}.{model}.{name}": value for name, value in own.items()}
        return flat

    def nested(self) -> dict[str, Any]:
        """The form of a settings file: one mapping per group."""
        tree: dict[str, Any] = {}
        for group, field, value in _walk(self):
            tree.setdefault(group, {})[field.name] = value
        for model, own in self.models.items():
            groups: dict[str, dict[str, Value]] = {}
            for name, value in own.items():
                group, _, leaf = name.partition(".")
                groups.setdefault(group, {})[leaf] = value
            tree.setdefault(_MODELS, {})[model] = groups
        return tree

    def taken_back(
        self, model: str, given: ServingSettings, knobs: Collection[str] = ()
    ) -> ServingSettings:
        """A copy in which a model has what other settings say of it alone.

        Args:
            model: its name.
            given: the other settings.
            knobs: those that are taken back; none: all.
        """
        now, then = self.models.get(model, {}), given.models.get(model, {})
        own = {knob: value for knob, value in now.items() if knobs and knob not in knobs}
        own |= {knob: value for knob, value in then.items() if not knobs or knob in knobs}
        others = {name: values for name, values in self.models.items() if name != model}
        return dataclasses.replace(self, models={**others, model: own} if own else others)

    def changed(self, values: Mapping[str, Any], *, source: str = "settings") -> ServingSettings:
        """A copy with some knobs changed.

        Args:
            values: dotted names, or nested groups, or both.
            source: what to name in an error (a file, "environment", "command line").

        Raises:
            InvalidSettings: unknown name (with the nearest valid one), wrong type, or out of range.
        """
        groups: dict[str, dict[str, Value]] = {}
        models = {model: dict(own) for model, own in self.models.items()}
        for name, value in _flattened(values, source).items():
            model, knob = _of_model(name)
            if knob not in KNOBS or (model and knob.startswith(_SERVER_WIDE)):
                raise InvalidSettings(
                    f"{source}: unknown setting {name!r}{nearest(knob, KNOBS)}; "
                    f"the settings are listed in docs/settings.md"
                )
            checked = KNOBS[knob].checked(value, source)
            if model:
                models.setdefault(model, {})[knob] = checked
            else:
                group, field = knob.split(".", 1)
                groups.setdefault(group, {})[field] = checked
        return dataclasses.replace(
            self,
            models=models,
            **{
                group: dataclasses.replace(getattr(self, group), **fields)
                for group, fields in groups.items()
            },
        )


@dataclasses.dataclass(frozen=True, slots=True, kw_only=True)
class Knob:
    """One setting: its dotted name, type, default, unit and range."""

    name: str
    kinds: tuple[type, ...]
    choices: tuple[str, ...]
    optional: bool
    default: Value
    limits: Limits

    def checked(self, value: object, source: str) -> Value:
        """The value in the knob's own type.

        Raises:
            InvalidSettings: with the knob, what was given, and what is allowed.
        """
        if value is None:
            if self.optional:
                return None
            raise self._wrong(value, source)
        if value in self.choices:
            return str(value)
        if not self.kinds:
            raise self._wrong(value, source)
        if str in self.kinds:
            if not isinstance(value, str) or not value:
                raise self._wrong(value, source)
            if self.limits.check is not None:
                self.limits.check(value)
            return value
        if isinstance(value, bool) or not isinstance(value, int | float):
            raise self._wrong(value, source)
        low, high = self.limits.low, self.limits.high
        if (low is not None and not value >= low) or (high is not None and not value <= high):
            raise self._wrong(value, source)
        if int not in self.kinds:
            return float(value)
        if value != int(value):
            raise self._wrong(value, source)
        return int(value)

    def allowed(self) -> str:
        """The allowed values, in words."""
        choices = ", ".join(self.choices)
        if not self.kinds:
            return f"one of {choices}"
        noun = (
            "text" if str in self.kinds else "a whole number" if int in self.kinds else "a number"
        )
        if self.limits.low is not None:
            noun += f" from {self.limits.low:g} to {self.limits.high:g}"
        if self.limits.unit:
            noun += f" ({self.limits.unit})"
        noun += f", {choices}" if choices else ""
        return noun + (" or null" if self.optional else "")

    def _wrong(self, value: object, source: str) -> InvalidSettings:
        return InvalidSettings(f"{source}: {self.name} = {value!r:.200}, expected {self.allowed()}")


def _walk(settings: ServingSettings) -> Iterator[tuple[str, dataclasses.Field[Any], Value]]:
    for group in dataclasses.fields(settings):
        if group.name == _MODELS:
            continue
        part = getattr(settings, group.name)
        for field in dataclasses.fields(part):
            yield group.name, field, getattr(part, field.name)


def _flattened(values: Mapping[str, Any], source: str) -> dict[str, Any]:
    flat: dict[str, Any] = {}
    for key, value in values.items():
        if key == _MODELS and isinstance(value, Mapping):
            for model, own in value.items():
                if not isinstance(own, Mapping):
                    raise InvalidSettings(
                        f"{source}: models.{model} = {own!r:.200}, expected a mapping of settings"
                    )
                inner_flat = _flattened(own, source)
                flat |= {f"{_MODELS}.{model}.{name}": inner for name, inner in inner_flat.items()}
        elif isinstance(value, Mapping):
            flat |= {f"{key}.{inner}": inner_value for inner, inner_value in value.items()}
        elif "." in str(key):
            flat[str(key)] = value
        elif key in _GROUPS:
            if value is not None:  # a group with nothing in it, as all its lines are comments
                raise InvalidSettings(
                    f"{source}: {key} = {value!r:.200}, expected a mapping of its settings, "
                    f"as {{batching: {{max_size: 8}}}}"
                )
        else:
            raise InvalidSettings(
                f"{source}: {key!r} is not a group of settings{nearest(str(key), _GROUPS)} "
                f"(groups: {', '.join(_GROUPS)})"
            )
    return flat


def _of_model(name: str) -> tuple[str, str]:
    """The model that a dotted name is for, empty for all, and the knob."""
    if not name.startswith(f"{_MODELS}."):
        return "", name
    _, model, knob = ([*name.split(".", 2), "", ""])[:3]
    return model, knob


def _table() -> dict[str, Knob]:
    table: dict[str, Knob] = {}
    for group in dataclasses.fields(ServingSettings):
        if group.name == _MODELS:
            continue
        part: Any = group.default_factory
        hints = typing.get_type_hints(part)
        for field in dataclasses.fields(part):
            hint = hints[field.name]
            is_union = typing.get_origin(hint) in {typing.Union, types.UnionType}
            members = typing.get_args(hint) if is_union else (hint,)
            choices = tuple(
                c for m in members if typing.get_origin(m) is Literal for c in typing.get_args(m)
            )
            name = f"{group.name}.{field.name}"
            table[name] = Knob(
                name=name,
                kinds=tuple(m for m in members if isinstance(m, type) and m is not types.NoneType),
                choices=choices,
                optional=types.NoneType in members,
                default=cast("Value", field.default),
                limits=field.metadata["limits"],
            )
    return table


_GROUPS = tuple(field.name for field in dataclasses.fields(ServingSettings))
KNOBS: Mapping[str, Knob] = types.MappingProxyType(_table())
"""Dotted name -> knob, in the order of the groups."""


_EXAMPLE = "a YAML file with settings in their groups, as {batching: {max_size: 8}}"


def read_file(path: pathlib.Path) -> dict[str, Any]:
    """The mapping in a YAML settings file.

    Raises:
        InvalidSettings: the file is missing, is not YAML, or does not hold a mapping.
    """
    try:
        data = bounded_yaml.read(path)
    except OSError as error:
        raise InvalidSettings(
            f"settings file {path} cannot be read: {error.strerror or error}; expected {_EXAMPLE}"
        ) from error
    except (yaml.YAMLError, ValueError) as error:
        raise InvalidSettings(
            f"settings file {path} is not YAML: {yaml_problem(error)}; expected {_EXAMPLE}"
        ) from error
    if data is None:
        return {}
    if not isinstance(data, dict):
        raise InvalidSettings(f"settings file {path} holds {data!r:.40}, expected {_EXAMPLE}")
    return data


def resolve(
    *,
    file: pathlib.Path | None = None,
    environment: Mapping[str, str] | None = None,
    command_line: Mapping[str, Any] | None = None,
) -> ServingSettings:
    """Settings from all sources: defaults < file < environment < command line.

    Whoever takes a free query port and names no admin port gets a free one of these, too, so that several
    servers can run beside one another.

    Raises:
        InvalidSettings: any of the sources is wrong; the text names it.
    """
    sources: list[tuple[str, Mapping[str, Any]]] = []
    if file is not None:
        sources.append((f"settings file {file}", read_file(file)))
    sources += [
        ("environment", _from_environment(os.environ if environment is None else environment)),
        ("command line", command_line or {}),
    ]
    settings = ServingSettings()
    named: set[str] = set()
    for source, values in sources:
        settings = settings.changed(values, source=source)
        named |= _flattened(values, source).keys()
    if settings.server.port == 0 and "server.admin_port" not in named:
        return settings.changed({"server.admin_port": 0})
    return settings


def _from_environment(environment: Mapping[str, str]) -> dict[str, Any]:
    values: dict[str, Any] = {}
    for key, text in environment.items():
        if key.startswith(ENVIRONMENT_PREFIX) and "__" in key:
            name = key.removeprefix(ENVIRONMENT_PREFIX).lower().replace("__", ".", 1)
            try:
                values[name] = bounded_yaml.parsed(text)
            except (yaml.YAMLError, ValueError) as error:
                raise InvalidSettings(
                    f"environment: {key} = {text!r:.200} is not a YAML value: {yaml_problem(error)}"
                ) from error
    return values
