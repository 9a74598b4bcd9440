"""Settings of the serving core: one field per setting, grouped by stage.

A setting's dotted name (`batching.max_size`) is the same in files, search spaces, trials, reports
and exports. Precedence: file < environment < command line (`resolve`). Field metadata holds the
range, for checks, error texts and documentation.
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

from serving.errors import InvalidSettings, nearest
from serving.system import bounded_yaml
from serving.system.yaml_problem import yaml_problem
from serving.tensors.input_values import values_of
from serving.tensors.sizes import pads_of, sizes_of

ENVIRONMENT_PREFIX = "LUTHIER_"
"""`LUTHIER_BATCHING__MAX_SIZE=8` sets `batching.max_size`."""

Value = int | float | str | bool | None
_SERVER_WIDE = ("server.", "accelerator.clock_mhz")
"""Settings that single models cannot have."""
_MODELS = "models"
"""Group of overrides: `models.NAME.batching.max_size`."""


@dataclasses.dataclass(frozen=True, slots=True)
class SettingRange:
    """Unit, inclusive range, and whether a setting can change live."""

    unit: str = ""
    low: float | None = None
    high: float | None = None
    live: bool = True
    check: Callable[[str], object] | None = None
    """Raises InvalidSettings for a malformed text."""


def _setting(
    default: Any,
    unit: str = "",
    low: float | None = None,
    high: float | None = None,
    *,
    live: bool = True,
    check: Callable[[str], object] | None = None,
) -> Any:
    limits = SettingRange(unit, low, high, live, check)
    return dataclasses.field(default=default, metadata={"limits": limits})


@dataclasses.dataclass(frozen=True, slots=True, kw_only=True)
class ReplicaSettings:
    """Replicas of a model: their number and resource limits."""

    count: int = _setting(1, "replicas", 1, 64)
    """Number of replicas. Default 1: the minimum."""
    cpu: float | None = _setting(None, "cores", 0.05, 256)
    """CPU quota of each replica, in periods of 100 ms. Default none: no quota."""
    memory_mb: int | None = _setting(None, "MiB", 8, 4_194_304)
    """Memory limit of each replica, without swap. Default none. Lowering it starts new replicas."""
    threads: int = _setting(1, "threads", 1, 256)
    """Threads inside one operator of the runtime.

    Default 1: small models scale better with replicas.
    """
    home: Literal["process", "docker"] = _setting("process", live=False)
    """Spawner of replicas: local processes (`process`), or containers of local Docker (`docker`).

    Default process: a replica starts in tens of milliseconds, without other software
    (docs/containers.md).
    """
    image: str | None = _setting(None, live=False)
    """Image of replicas where `home` is docker.

    Default none: the project's for the model kind, as `make images` builds it.
    """
    max_answer_mb: int = _setting(256, "MiB", 1, 2047, live=False)
    """Maximum message from a replica: the responses of one batch.

    If a batch's responses are larger, its requests are repeated one by one; a single larger
    response fails. A replica that sends more is ended. Default 256 MiB: four of the largest
    requests.
    """
    ready_timeout_s: float = _setting(30.0, "s", 0.1, 3600)
    """A replica that is not ready after this time has failed to start.

    Default 30 s: large models load slowly.
    """
    warmup_s: float = _setting(2.0, "s", 0, 3600)
    """Time to run the model on sample inputs before a replica takes requests (docs/models.md).

    The first call is always made; others, of single items and then of `batching.max_size`, if they
    should end in time. 0: only batching checks (docs/batching.md). Part of `ready_timeout_s`.
    Default 2 s: small models need milliseconds, and large ones are not delayed for long.
    """
    hang_timeout_s: float = _setting(30.0, "s", 0.1, 3600)
    """A replica that holds one batch this long is replaced.

    Default 30 s, as the default deadline.
    """


@dataclasses.dataclass(frozen=True, slots=True, kw_only=True)
class ModelSettings:
    """Variant of a model, and declarations about its inputs."""

    variant: str | None = _setting(None)
    """Variant of `model.yaml` to serve (docs/models.md); a change starts new replicas.

    Default none: that of `file`.
    """
    shapes: str | None = _setting(
        None, check=lambda text: sizes_of(text.split(), source="model.shapes")
    )
    """Sizes of free dimensions, such as `image=3x640x640 sequence=16..512`.

    Only for synthetic warm-up inputs (docs/models.md). Default none: those of `model.yaml`; without
    them, a model with free dimensions is warmed up on samples only.
    """
    values: str | None = _setting(
        None, check=lambda text: values_of(text.split(), source="model.values")
    )
    """Values of synthetic warm-up inputs, such as `ids=0..30521 mask=1 rate=16000`.

    A range is uniform. Default none: those of `model.yaml`, else numbers around zero, small
    integers, empty texts.
    """
    pad: str | None = _setting(None, check=pads_of)
    """Padding values for `batching.pad_to`, such as `ids=0 mask=0`.

    Needed for each input with a free dimension beside the item axis. Default none: those of
    `model.yaml`.
    """


@dataclasses.dataclass(frozen=True, slots=True, kw_only=True)
class BatchingSettings:
    """When queued requests become a batch; a batch counts items, a request may have several."""

    policy: Literal["fixed", "aimd", "quantile", "delayed"] = _setting("fixed")
    """How size and wait are decided, within `max_size` and `timeout_us` (docs/batching.md).

    `fixed`: as set. `aimd`, `quantile`: the size follows `objective_ms`. `delayed`: the wait
    follows the arrivals. Default fixed: predictable.
    """
    objective_ms: float = _setting(20.0, "ms", 0.1, 3_600_000)
    """Latency SLO of `aimd` and `quantile`; a batch gets a third. Default 20 ms, Clipper's."""
    max_size: int = _setting(8, "items", 1, 4096)
    """Maximum items in a batch; a larger request is split.

    Default 8: most of the gain, little waiting.
    """
    timeout_us: int = _setting(0, "us", 0, 10_000_000)
    """Maximum wait of the oldest item for more requests while a worker is free.

    Default 0: no wait.
    """
    pad_to: int | None = _setting(None, "", 1, 65_536)
    """Pad free dimensions to the next multiple, so that more requests share a batch.

    Needs `model.pad`, and a model whose responses stay the same, which is checked at the load
    (docs/batching.md). Default none: only requests of equal shapes share a call.
    """


@dataclasses.dataclass(frozen=True, slots=True, kw_only=True)
class AcceleratorSettings:
    """The GPU: which models use it, how they share it, its clock (docs/accelerator.md)."""

    device: Literal["auto", "cpu", "cuda"] = _setting("auto")
    """Where kinds `onnx` and `torch` run: the first CUDA GPU of the server, or the CPU.

    `cuda`: the GPU, or the load fails. `cpu`: GPUs are hidden from replicas. Default auto: the GPU
    if there is one and the installed runtime supports it. A change starts new replicas.
    """
    share: int | None = _setting(None, "%", 1, 100)
    """Maximum share of the GPU's threads per replica, through CUDA MPS.

    Without an MPS control daemon it has no effect (logged once): replicas take turns. Default none:
    all threads. A change starts new replicas.
    """
    clock_mhz: int | None = _setting(None, "MHz", 1, 20_000)
    """Supported graphics clock to lock the GPU to while the server runs.

    Needs root; rejected if it cannot be set. Not per model. Default none: the driver decides.
    """


@dataclasses.dataclass(frozen=True, slots=True, kw_only=True)
class CacheSettings:
    """Response cache per model version, so that models do not evict each other's responses."""

    capacity_mb: int = _setting(0, "MiB", 0, 1_048_576)
    """Size of keys and responses; the least recently used are evicted.

    Default 0, off: a cache distorts measurements, and helps only if inputs repeat.
    """


@dataclasses.dataclass(frozen=True, slots=True, kw_only=True)
class RoutingSettings:
    """Which free worker takes the next batch."""

    policy: Literal["least-loaded", "round-robin"] = _setting("least-loaded")
    """`least-loaded`: the worker with the fewest batches, of equals the one free soonest.

    `round-robin`: in turn.
    """


@dataclasses.dataclass(frozen=True, slots=True, kw_only=True)
class SchedulingSettings:
    """The queue in front of the workers."""

    policy: Literal["adaptive", "clockwork"] = _setting("adaptive", live=False)
    """How requests become batches (docs/schedulers.md).

    `adaptive`: each model has its own replicas. `clockwork`: models share replicas and are loaded
    on demand; requests that cannot meet their deadline are rejected on arrival. Default adaptive:
    it needs no deadlines.
    """
    queue_capacity: int = _setting(2048, "items", 1, 1_000_000)
    """Maximum queued items; beyond it, a request of the flow with the most items gets 429.

    A flow is one client application's requests. A request with more items gets 413. Default 2048:
    some 0.1 s of a fast model's work.
    """
    default_deadline_s: float = _setting(30.0, "s", 0.001, 86_400)
    """Deadline of a request that names none. Default 30 s: longer than a patient client waits."""
    longest_deadline_s: float = _setting(300.0, "s", 0.001, 86_400)
    """Maximum deadline that a request can name; `default_deadline_s` may be longer.

    Bounds its time in the queue. Default 300 s: ten default deadlines, for models that take
    minutes.
    """
    default_priority: int = _setting(2, "", 1, 2**31 - 1)
    """Priority of a request that names none; 1 is the most urgent.

    Default 2: leaves room above and below.
    """


@dataclasses.dataclass(frozen=True, slots=True, kw_only=True)
class ClockworkSettings:
    """How models share replicas if `scheduling.policy` is clockwork (docs/schedulers.md)."""

    memory_mb: int | None = _setting(None, "MiB", 1, 4_194_304)
    """Memory for models in each replica; beyond it the least recently used is evicted.

    Default none: half of `replica.memory_mb`, else no limit. A change starts new replicas.
    """
    page_mb: float = _setting(1.0, "MiB", 0.0625, 1024, live=False)
    """Unit in which that memory is counted. Default 1 MiB: small CPU models are not much larger."""
    ahead_ms: float = _setting(10.0, "ms", 0.1, 1000)
    """A replica gets its next batch when it will be free within this time.

    At most a tenth of the shortest recent relative deadlines is used. Default 10 ms, Clockwork's:
    longer than a message and a plan take. More decides earlier, among fewer requests.
    """
    window_ms: float = _setting(50.0, "ms", 0.1, 1000)
    """Maximum start delay of a batch or load; later, or if it cannot end in time, it is dropped.

    Default 50 ms: on shared cores neighbours delay replicas beyond Clockwork's 10 ms, and a late
    start beats a new plan. 10 ms suits a dedicated accelerator.
    """
    guard: float = _setting(0.1, "", 0, 10)
    """Share by which a batch may exceed the longest of the last ten of its size.

    Default 0.1: cores are shared with the gateway; 0, as Clockwork's, suits a dedicated
    accelerator.
    """
    buffer: float = _setting(0.05, "", 0, 0.5)
    """Share of a request's time that plans leave unused.

    Default 0.05: Clockwork's 5 ms of 100 ms, as a share so that short deadlines can be met.
    """
    max_exec_ms: float = _setting(25.0, "ms", 0.1, 60_000)
    """Maximum duration of a batch of several items, as it blocks other models.

    Default 25 ms, Clockwork's.
    """


@dataclasses.dataclass(frozen=True, slots=True, kw_only=True)
class ServerSettings:
    """Listeners and their limits; fixed while the server runs."""

    host: str = _setting("127.0.0.1", live=False)
    """Address of the inference port. Default loopback: opening it to a network is a decision."""
    port: int = _setting(8000, "", 0, 65_535, live=False)
    """Inference port (HTTP); 0 takes a free one."""
    grpc_port: int | Literal["auto"] | None = _setting("auto", "", 0, 65_535, live=False)
    """gRPC inference port, on the same address; 0 takes a free one, none is off.

    Default `auto`: 8001, where clients look, beside port 8000; a free one beside 0; else off. If
    8001 is in use, the server logs that and runs without gRPC.
    """
    admin_host: str = _setting("127.0.0.1", live=False)
    """Address of the admin port, which runs code. Default loopback; others need a token and TLS."""
    admin_port: int = _setting(8002, "", 0, 65_535, live=False)
    """Port of health, metrics and live settings; 0 takes a free one.

    If unset while `port` is 0, it is 0 too.
    """
    admin_access: Literal["token", "open"] = _setting("token", live=False)
    """Whether admin requests need `Authorization: Bearer TOKEN`; health never does.

    `token`: yes. Unless one is given, the server generates it in a file readable by its user only,
    named by the `ready` line (`admin_token_file`), and metrics are open. `open`
    (`--no-admin-token`): no. Default token: the admin port runs code as the server's user, and all
    local users reach loopback.
    """
    admin_token_file: str | None = _setting(None, live=False)
    """File with the admin port's token, of at least 16 characters; or set LUTHIER_ADMIN_TOKEN.

    Default none: a token is generated, on loopback only.
    """
    max_body_bytes: int = _setting(64 * 1024 * 1024, "bytes", 1024, 2**31 - 1, live=False)
    """Maximum request body; a larger one gets 413. Default 64 MiB, as Triton's."""
    max_json_bytes: int = _setting(4 * 1024 * 1024, "bytes", 1024, 2**31 - 1, live=False)
    """Maximum JSON per request that the server itself parses, decompressed; more gets 413.

    Replicas parse large numeric arrays, up to `max_body_bytes`. Parsing here blocks other requests,
    some 10 ms per MiB. Default 4 MiB: a photograph of 3 MB in base64.
    """
    max_connections: int = _setting(8192, "connections", 1, 1_000_000, live=False)
    """Maximum client connections of the inference ports together.

    Further ones get 503 with Retry-After (HTTP/2: GOAWAY) and are closed. The limit on open files
    (`ulimit -n`) is raised to fit where possible. Default 8192: ten times what clients of one
    server keep open, at some kilobytes each.
    """
    max_connections_of_client: int | None = _setting(None, "connections", 1, 1_000_000, live=False)
    """Maximum connections per client address (IPv6: per 64-bit prefix), loopback exempt.

    With TLS, counted from the first packet. Default none: a quarter of `max_connections`, so that
    no client shuts out the others; raise it if all come through one remote proxy.
    """
    max_held_mb: int = _setting(1024, "MiB", 1, 4_194_304, live=False)
    """Maximum bytes of buffered requests on the inference ports.

    Counted: arriving, queued (with large headers) and decompressed bodies; all of 64 KiB or more
    until answered; unread responses (not over TLS). Beyond it growing bodies get 503 with
    Retry-After (RESOURCE_EXHAUSTED). At least twice `max_body_bytes`. Default 1 GiB: sixteen of the
    largest bodies.
    """
    token_file: str | None = _setting(None, live=False)
    """File with the token for inference requests, of at least 16 characters; or set LUTHIER_TOKEN.

    Requests without `Authorization: Bearer TOKEN` get 401. Default none: the port is open.
    """
    tls_certificate: str | None = _setting(None, live=False)
    """File with the certificate chain (PEM) of the inference ports. Needs `tls_key`.

    Default none: no TLS.
    """
    tls_key: str | None = _setting(None, live=False)
    """File with the private key (PEM) of `tls_certificate`."""
    cors: str | None = _setting(None, live=False)
    """Origins whose scripts may call the inference port, or `*`.

    For example `https://a.example,https://b.example`. Default none: browsers hide responses from
    scripts, and the server rejects their state-changing requests.
    """
    hosts: str | None = _setting(None, live=False)
    """Further host names of inference and admin port, as `models.example,10.0.0.7`, or `*` for any.

    Loopback ports accept these, `localhost` and loopback addresses in `Host`, else 403: that stops
    web pages whose site resolves to this machine (DNS rebinding). If set, network ports check too.
    Default none: the server does not know a network port's names.
    """
    gzip_min_bytes: int | None = _setting(65_536, "bytes", 0, 2**31 - 1, live=False)
    """Minimum length of compressed responses, on request (`Accept-Encoding: gzip` or `deflate`).

    Over gRPC clients request it by compressing their messages. Null: never. Default 64 KiB: shorter
    ones are faster uncompressed.
    """
    timing: Literal["none", "header"] = _setting("none", live=False)
    """Whether inference responses report stage durations in `Server-Timing`.

    Default none: they reveal other clients' load.
    """
    metrics: Literal["query", "admin"] = _setting("query", live=False)
    """Where metrics and model statistics are shown; they reveal what others request.

    `query`: also on the inference ports. `admin`: metrics on the admin port only, statistics
    nowhere. Default query: clients of TensorFlow Serving, Triton and Clipper expect it.
    """
    model_control: Literal["none", "explicit"] = _setting("none", live=False)
    """Whether inference clients may load and unload models.

    `none`: no. `explicit`: by name, through Triton's repository calls. Default none: a client need
    not be an operator.
    """
    state_dir: str | None = _setting(None, live=False)
    """Folder that saves live changes and what selection policies learn.

    Models, versions, applications, links and live settings survive restarts, even `kill -9`. One
    server at a time. Default none: nothing is saved.
    """
    state_store: str | None = _setting(None, live=False)
    """Redis server for what selection policies learn, for successive gateways on any machine.

    Of simultaneous gateways the last save wins. `redis://HOST:6379/0`, `rediss://HOST:6379/0` (TLS)
    or `unix:///PATH/OF/SOCKET`; needs `pip install '.[redis]'` in a clone. The password is in
    LUTHIER_STATE_STORE_PASSWORD, as settings can be read. Default none: SQLite in `state_dir`, else
    memory.
    """
    profiles_dir: str | None = _setting(None, live=False)
    """Folder that saves profiles of models that share replicas (docs/schedulers.md).

    One server at a time. Default none: `state_dir`; without it models are profiled at each start.
    """
    repository_poll_s: float = _setting(1.0, "s", 0.05, 3600, live=False)
    """Time between scans of the model repository. Default 1 s, as TensorFlow Serving's.

    A version is taken up once two scans see the same files.
    """
    repository_kept: int = _setting(1, "versions", 1, 100, live=False)
    """Newest versions of a repository model kept loaded for roll-backs.

    Default 1: memory for one.
    """
    drain_s: float = _setting(20.0, "s", 0, 3600, live=False)
    """Maximum time from SIGTERM to the end of the last in-flight request. Default 20 s."""


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
    """Overrides for single models: model -> setting -> value."""

    def of(self, model: str) -> ServingSettings:
        """Return the settings of one model, its overrides applied."""
        own = self.models.get(model, {})
        return dataclasses.replace(self.changed(own) if own else self, models={})

    def notes(self, served: Collection[str]) -> list[str]:
        """Return a warning for every override of a model that is not served, perhaps misspelt."""
        known = ", ".join(sorted(served)) or "none"
        return [
            f"models.{model}: no model of that name is served{nearest(model, served)} (served: {known}); "
            "its settings wait until there is one"
            for model in self.models
            if model not in served
        ]

    def flat(self) -> dict[str, Value]:
        """Return all settings by dotted name; overrides begin with `models.NAME.`."""
        flat = {f"{group}.{field.name}": value for group, field, value in _walk(self)}
        for model, own in self.models.items():
            flat |= {f"{_MODELS}.{model}.{name}": value for name, value in own.items()}
        return flat

    def nested(self) -> dict[str, Any]:
        """Return the form of a settings file: a mapping per group."""
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
        """Return a copy with the model's overrides of `given`, for `knobs` or, if empty, all."""
        now, then = self.models.get(model, {}), given.models.get(model, {})
        own = {knob: value for knob, value in now.items() if knobs and knob not in knobs}
        own |= {knob: value for knob, value in then.items() if not knobs or knob in knobs}
        others = {name: values for name, values in self.models.items() if name != model}
        return dataclasses.replace(self, models={**others, model: own} if own else others)

    def changed(self, values: Mapping[str, Any], *, source: str = "settings") -> ServingSettings:
        """Return a copy with changes by dotted name or nested group; `source` is named in errors.

        Raises:
            InvalidSettings: unknown name, wrong type, or out of range.
        """
        groups: dict[str, dict[str, Value]] = {}
        models = {model: dict(own) for model, own in self.models.items()}
        for name, value in _flatten(values, source).items():
            model, knob = _of_model(name)
            if knob not in SETTINGS or (model and knob.startswith(_SERVER_WIDE)):
                raise InvalidSettings(
                    f"{source}: unknown setting {name!r}{nearest(knob, SETTINGS)}; "
                    f"the settings are listed in docs/settings.md"
                )
            checked = SETTINGS[knob].checked(value, source)
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
class SettingSpec:
    """One setting: name, type, default, unit and range."""

    name: str
    kinds: tuple[type, ...]
    choices: tuple[str, ...]
    optional: bool
    default: Value
    limits: SettingRange

    def checked(self, value: object, source: str) -> Value:
        """Return the value in the setting's type.

        Raises:
            InvalidSettings: the value is not allowed.
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
        """Describe the allowed values."""
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


def _flatten(values: Mapping[str, Any], source: str) -> dict[str, Any]:
    flat: dict[str, Any] = {}
    for key, value in values.items():
        if key == _MODELS and isinstance(value, Mapping):
            for model, own in value.items():
                if not isinstance(own, Mapping):
                    raise InvalidSettings(
                        f"{source}: models.{model} = {own!r:.200}, expected a mapping of settings"
                    )
                inner_flat = _flatten(own, source)
                flat |= {f"{_MODELS}.{model}.{name}": inner for name, inner in inner_flat.items()}
        elif isinstance(value, Mapping):
            flat |= {f"{key}.{inner}": inner_value for inner, inner_value in value.items()}
        elif "." in str(key):
            flat[str(key)] = value
        elif key in _GROUPS:
            if value is not None:  # an empty group, such as one with only comments
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
    """Split a dotted name into its model, empty for all, and setting."""
    if not name.startswith(f"{_MODELS}."):
        return "", name
    _, model, knob = ([*name.split(".", 2), "", ""])[:3]
    return model, knob


def _table() -> dict[str, SettingSpec]:
    table: dict[str, SettingSpec] = {}
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
            table[name] = SettingSpec(
                name=name,
                kinds=tuple(m for m in members if isinstance(m, type) and m is not types.NoneType),
                choices=choices,
                optional=types.NoneType in members,
                default=cast("Value", field.default),
                limits=field.metadata["limits"],
            )
    return table


_GROUPS = tuple(field.name for field in dataclasses.fields(ServingSettings))
SETTINGS: Mapping[str, SettingSpec] = types.MappingProxyType(_table())
"""Dotted name -> setting, in the order of the groups."""


_EXAMPLE = "a YAML file with settings in their groups, as {batching: {max_size: 8}}"


def read_file(path: pathlib.Path) -> dict[str, Any]:
    """Return the mapping in a YAML settings file.

    Raises:
        InvalidSettings: missing file, invalid YAML, or no mapping.
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
    """Merge all sources: defaults < file < environment < command line.

    A free inference port implies a free admin port unless one is named.

    Raises:
        InvalidSettings: a source is invalid; the text names it.
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
        named |= _flatten(values, source).keys()
    if settings.server.port == 0 and "server.admin_port" not in named:
        return settings.changed({"server.admin_port": 0})
    return settings


def _from_environment(environment: Mapping[str, str]) -> dict[str, Any]:
    values: dict[str, Any] = {}
    for key, text in environment.items():
        if key.startswith(ENVIRONMENT_PREFIX) and "__" in key:
            name = key.removeprefix(ENVIRONMENT_PREFIX).lower().replace("__", ".", 1)
            try:
                values[name] = bounded_yaml.parse(text)
            except (yaml.YAMLError, ValueError) as error:
                raise InvalidSettings(
                    f"environment: {key} = {text!r:.200} is not a YAML value: {yaml_problem(error)}"
                ) from error
    return values
