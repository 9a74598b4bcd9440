"""Settings of the target: model, workload and engine."""

from __future__ import annotations

import dataclasses
import pathlib
from collections.abc import Sequence

from serving.settings import SETTINGS
from tuner.errors import UsageError
from tuner.settings.option import check_range, duration_s, option_field, require
from tuner.settings.workload import (
    KNOWN_ARRIVALS,
    MAX_IN_FLIGHT,
    SCENARIO,
    TRACE,
    check_arrivals,
    is_trace,
)
from tuner.values.study_record import OUR_ENGINE

LIMITS = SETTINGS["replica.limits"].choices
"""What is limited; the first one is the default."""
SPAWNERS = SETTINGS["replica.spawner"].choices
"""Kinds of spawner; the first one is the default."""
MAX_CLIENT_BATCH = 4096
OTHER_ENGINES = ("command", "url")
"""Words before the colon in `--engine`; any other word names a bundled engine file."""


@dataclasses.dataclass(frozen=True, slots=True, kw_only=True)
class TargetSettings:
    """Target of a study, and its workload."""

    model: str = option_field(
        dataclasses.MISSING,
        "NAME|FILE",
        "bundled model by name, model file (.onnx, .ort, .skops, .npz, .pt, .pt2, .jit, "
        ".ubj, .cbm, XGBoost's .json, LightGBM's .txt, .py:NAME), or folder (model.yaml, "
        "SavedModel, MLmodel)",
        instead="scenario",
        more="; no default: required without --scenario",
    )
    trust: bool = option_field(
        False,
        "",
        "allow a model that runs code from its files when loaded, such as MLflow "
        "pickles; only for files that you trust; default: refuse",
        is_flag=True,
    )
    scenario: str | None = option_field(
        None,
        "FILE",
        "scenario file: many models on shared replicas, with their requests "
        "(docs/scenarios.md), instead of --model and a load; the objective is goodput, "
        "with the file's deadline as --slo-ms; default: one model",
    )
    concurrency: int | None = option_field(
        None,
        "N",
        "requests in flight (closed loop)",
        parse=int,
        instead="rate",
        more=f"; in an open loop (--rate, --find-rate) the upper limit, default {MAX_IN_FLIGHT}",
    )
    rate: float | None = option_field(
        None,
        "R",
        "requests per second, sent when due, independent of responses (open loop); "
        "default: closed loop",
        parse=float,
    )
    arrivals: str | None = option_field(
        None,
        "NAME",
        "arrival process of an open loop: poisson, constant, burst, or trace:FILE (one "
        "arrival time in seconds per line, scaled to --rate if given); default poisson",
    )
    client_batch: int = option_field(1, "N", "items per request; default 1", parse=int)
    space: str | None = option_field(
        None,
        "FILE",
        "search-space file; default: the model's bundled space, or one derived by a "
        "short probe (see `tune space`)",
    )
    fixed: tuple[str, ...] = option_field(
        (),
        "KNOB=VALUE",
        "fix a knob of the search space at this value; repeatable; default: none",
        is_repeated=True,
        flag="--fix",
    )
    payload: str | None = option_field(
        None,
        "FILE",
        "file of request inputs, .npz or .jsonl; default: inputs from --shape and "
        "--values, the model's sample, or random ones with a note",
    )
    shape: tuple[str, ...] = option_field(
        (),
        "NAME=SIZES",
        "sizes of a synthetic input without its item axis (image=3x640x640), or of a "
        "named dimension (sequence=128); each 640, 16..512, 'lognormal(64,0.8)<=512' or "
        "@FILE with one size per line; repeatable; default: those of model.yaml "
        "(docs/inputs.md)",
        is_repeated=True,
    )
    values: tuple[str, ...] = option_field(
        (),
        "INPUT=VALUES",
        "values of a synthetic input: LOW..HIGH, one value, or @FILE with one value per "
        "line; repeatable; default: standard normal numbers, integers from 0 to 9, "
        "strings of eight letters",
        is_repeated=True,
    )
    engine: str = option_field(
        "luthier",
        "ENGINE",
        "engine to tune: luthier; mosec or triton, or mosec:PYTHON for another "
        "interpreter; command:FILE, a server described by an engine file and restarted "
        "for each configuration; or url:URL, a running server configured by --hook; "
        "default luthier",
    )
    hook: str | None = option_field(
        None,
        "COMMAND",
        "program that configures a running server (--engine url:URL); gets the "
        "configuration as JSON on standard input and as variables KNOB_...; default: none",
    )
    hook_timeout_s: float = option_field(
        60.0, "DURATION", "longest run of --hook; default 60s", parse=duration_s
    )
    spawner: str = option_field(
        "process",
        "SPAWNER",
        "how Luthier's replicas run: process, on this machine; or docker, in containers "
        "(docs/containers.md); default process",
        choices=SPAWNERS,
    )
    limits: str = option_field(
        "each",
        "WHAT",
        "what is limited: each replica (each), or the whole server as a pod of Kubernetes is (pod): "
        "replica.cpu and replica.memory_mb of all replicas and the gateway's own, in sum; default each",
        choices=LIMITS,
    )
    min_accuracy: float | None = option_field(
        None,
        "SHARE",
        "also search the model's variants (`model.variant`) whose measured accuracy is "
        "at least this, from 0 to 1; default: only the default variant",
        parse=float,
    )

    @property
    def is_of_other_engine(self) -> bool:
        """Whether the engine is not Luthier."""
        return self.engine != OUR_ENGINE

    @property
    def is_open(self) -> bool:
        """Whether the workload is an open loop."""
        return self.rate is not None or is_trace(self.arrivals)

    def _check_scenario(self) -> None:
        require(
            (self.arrivals == SCENARIO) == (self.scenario is not None),
            "--arrivals",
            self.arrivals,
            KNOWN_ARRIVALS,
        )
        if self.scenario is None:
            return
        for flag, given, default in (
            ("--concurrency", self.concurrency, None),
            ("--client-batch", self.client_batch, 1),
            ("--payload", self.payload, None),
            ("--shape", self.shape, ()),
            ("--values", self.values, ()),
            ("--engine", self.engine, OUR_ENGINE),
            ("--min-accuracy", self.min_accuracy, None),
        ):
            if given != default:
                told = " ".join(given) if isinstance(given, tuple) else given
                raise UsageError(
                    f"{flag} {told}: not allowed with --scenario, whose file defines the "
                    "models and the requests"
                )

    @property
    def files(self) -> tuple[pathlib.Path, ...]:
        """Files of requests and arrivals."""
        inputs = [one.partition("=@")[2] for one in (*self.shape, *self.values)]
        named = [self.payload, (self.arrivals or "").partition(TRACE)[2], *inputs]
        return tuple(pathlib.Path(one) for one in named if one)

    @property
    def in_flight(self) -> int:
        """Number of requests in flight: constant in a closed loop, a maximum in an open loop."""
        return MAX_IN_FLIGHT if self.concurrency is None else self.concurrency

    def __post_init__(self) -> None:
        require(bool(self.model), "--model", self.model, "the name of a bundled model or a file")
        check_range("--concurrency", self.concurrency, "a whole number from 1", low=1)
        check_arrivals(self.rate, self.arrivals)
        self._check_scenario()
        _check_fixed(self.fixed)
        if self.payload is not None and self.values:
            raise UsageError(
                f"--values {self.values[0]}: not allowed with --payload, whose file has the values"
            )
        check_range("--min-accuracy", self.min_accuracy, "a share from 0 to 1", low=0, high=1)
        told = f"a whole number from 1 to {MAX_CLIENT_BATCH}"
        check_range("--client-batch", self.client_batch, told, low=1, high=MAX_CLIENT_BATCH)
        kind, colon, rest = self.engine.partition(":")
        is_whole = bool(kind) and bool(rest if kind in OTHER_ENGINES else rest or not colon)
        require(is_whole, "--engine", self.engine, "luthier, a name, command:FILE or url:URL")
        takes_hook = kind == "url"
        if takes_hook != (self.hook is not None):
            raise UsageError(
                f"--engine {self.engine}: needs --hook COMMAND, which configures the server"
                if takes_hook
                else f"--hook {self.hook}: only allowed for a running server (--engine url:URL)"
            )
        if self.is_of_other_engine and self.min_accuracy is not None:
            raise UsageError(
                f"--min-accuracy {self.min_accuracy:g}: only Luthier has model variants "
                "as a knob; define a knob of its own for another engine"
            )
        require(
            self.spawner in SPAWNERS, "--spawner", self.spawner, "one of " + ", ".join(SPAWNERS)
        )
        require(self.limits in LIMITS, "--limits", self.limits, "one of " + ", ".join(LIMITS))
        is_of_processes = self.scenario is None and self.spawner == SPAWNERS[0]
        if self.limits == "pod" and (self.is_of_other_engine or not is_of_processes):
            raise UsageError(
                "--limits pod: only Luthier's server of one model, with replicas as processes, is limited as a whole; "
                "an engine file limits the whole server of another engine (engine.cpu, engine.memory_mb)"
            )
        if self.is_of_other_engine and self.spawner != SPAWNERS[0]:
            raise UsageError(
                f"--spawner {self.spawner}: only Luthier's replicas can be placed; the file of "
                "another engine can start a container itself"
            )
        check_range("--hook-timeout", self.hook_timeout_s, "above 0", above=0)


def _check_fixed(fixed: Sequence[str]) -> None:
    names = [one.partition("=")[0] for one in fixed]
    for one, name in zip(fixed, names, strict=True):
        require(
            bool(name) and len(name) + 1 < len(one), "--fix", one, "KNOB=VALUE, as replica.count=2"
        )
        if names.count(name) > 1:
            raise UsageError(f"--fix {one}: {name} is fixed {names.count(name)} times")
