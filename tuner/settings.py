"""Study settings by group; every field is an option of `tune` and a key of `settings.yaml`.

Durations are in seconds, latencies in milliseconds. `tuner.cli.main` builds its parser from here, and
the help documents each field.
"""

from __future__ import annotations

import dataclasses
import math
import pathlib
import re
import shlex
import typing
from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import Any

from serving.errors import nearest
from serving.settings import SETTINGS
from tuner.errors import UsageError
from tuner.metrics import metric_constraints
from tuner.metrics import objective as objectives
from tuner.metrics.metric_constraints import MetricConstraint
from tuner.values.study_record import OUR_ENGINE

_DURATION = re.compile(r"(?:(\d+(?:\.\d+)?)h)?(?:(\d+(?:\.\d+)?)m)?(?:(\d+(?:\.\d+)?)s?)?")
INITIAL = 25
"""Initial trials, if the budget is at least twice as large."""
INITIALS = {
    "structured": 4,
    "gp": 8,
    "ridge": 8,
    **dict.fromkeys(("skopt", "tpe", "optuna-gp", "smac", "botorch"), 10),
}
"""Samplers needing fewer: ours by recorded tables, libraries' by their defaults."""
SPAWNERS = SETTINGS["replica.home"].choices
"""Spawners; the first is the default."""
MAX_CLIENT_BATCH = 4096
"""The largest batch of a server."""
KINDS = {str: "a text", int: "a whole number", float: "a number", bool: "true or false"}
"""Names of setting types in messages."""
NO_ARRIVALS = "belongs to an open loop (--rate R or --find-rate)"
NO_LOAD = (
    "how much load? give --concurrency N (closed loop) or --rate R (open loop), or have the highest rate "
    "found (tune --find-rate --slo-ms MS)"
)
SCENARIO = "scenario"
"""Arrivals of a scenario's open loop."""
SCENARIO_S = 5.0
"""Measured seconds under a scenario, whose models are requested rarely, loaded and evicted."""
OTHER_ENGINES = ("command", "url")
"""Kinds of `--engine` before the colon; other words are bundled engine files."""
MAX_IN_FLIGHT = 500
"""Limit of an open loop: what 1,000 requests/s at 0.5 s need."""
MAX_RATE_PER_S = 1e6
TRACE = "trace:"
"""Prefix of a trace in `--arrivals`."""
SPREADS = ("poisson", "constant", "burst")
"""Arrival processes besides a trace; the first is the default."""
KNOWN_ARRIVALS = f"{', '.join(SPREADS)} or trace:FILE"
RATE = "rate"
"""Objective whose evaluations search the highest rate."""
RATE_LOADS, USUAL_RATES = 20, 15
"""Most and usual number of rates per such evaluation."""
OF_THE_LOAD = ("throughput", "time-per-item")
"""Objectives that an open loop fixes."""
OF_MEANS = frozenset({"mean", "throughput", "time-per-item"})
"""Objectives decided by mean latency at fixed concurrency (Little's law)."""
RATE_S = 1.0
"""Measured seconds per rate in a rate search."""
RATE_WARMUP_S = 0.3
"""Least warm-up per rate; drains the backlog of a too high one."""
SHORT_S, USUAL_S = 0.6, 2.0
"""Measured seconds if the mean decides, and otherwise."""
WARMUP_S = 0.1
"""Least warm-up; replicas forked from a warm process settle in 0.05 s."""
SETTLING_S = 2.0
"""Longest further wait for a new server to settle."""
MAX_BLOCKS = 100
"""Per phase; longer ones have longer blocks."""
QUOTA_PERIOD_S = 0.1
"""CPU quota period; a block is a multiple."""


def duration_s(text: str) -> float:
    """Parse `90`, `90s`, `10m` or `1h30m` into seconds.

    Raises:
        ValueError: anything else.
    """
    match = _DURATION.fullmatch(text.strip())
    if match is None or not any(match.groups()):
        raise ValueError(f"{text!r} is not a duration, expected for example 90s, 10m or 1h30m")
    hours, minutes, seconds = (float(part) if part else 0.0 for part in match.groups())
    return 3600 * hours + 60 * minutes + seconds


@dataclasses.dataclass(frozen=True, slots=True, kw_only=True)
class Option:
    """Command-line option of a field."""

    flag: str
    parse: Callable[[str], Any]
    metavar: str
    help: str
    choices: tuple[str, ...] | None = None
    is_repeated: bool = False
    """Whether it is repeatable, filling a tuple."""
    is_flag: bool = False
    """Whether it takes no value and sets true."""
    instead: str | None = None
    """Alternative field; a command with both requires neither alone."""
    more: str = ""
    """Help text added by a command with both."""


def _option(
    default: Any,
    flag: str,
    metavar: str,
    help_text: str,
    *,
    parse: Callable[[str], Any] = str,
    choices: tuple[str, ...] | None = None,
    is_repeated: bool = False,
    is_flag: bool = False,
    instead: str | None = None,
    more: str = "",
) -> Any:
    option = Option(
        flag=flag,
        parse=parse,
        metavar=metavar,
        help=help_text,
        choices=choices,
        is_repeated=is_repeated,
        is_flag=is_flag,
        instead=instead,
        more=more,
    )
    if default is dataclasses.MISSING:
        return dataclasses.field(metadata={"option": option})
    return dataclasses.field(default=default, metadata={"option": option})


@dataclasses.dataclass(frozen=True, slots=True, kw_only=True)
class TargetSettings:
    """Target and workload."""

    model: str = _option(
        dataclasses.MISSING,
        "--model",
        "NAME|FILE",
        "bundled model by name, a model file (.onnx, .ort, .skops, .npz, .pt, .pt2, .jit, .ubj, .cbm, XGBoost's .json, "
        "LightGBM's .txt, .py:NAME), or a folder (model.yaml, SavedModel, MLmodel)",
        instead="scenario",
        more="; no default: needed without --scenario",
    )
    trust: bool = _option(
        False,
        "--trust",
        "",
        "tune a model that runs code from its files when it is loaded, such as MLflow's pickles: say it only of "
        "files whose makers you trust; default: such a model is refused",
        is_flag=True,
    )
    scenario: str | None = _option(
        None,
        "--scenario",
        "FILE",
        "many models on a few replicas, under the requests of this file (docs/scenarios.md), instead of --model "
        "and a load; the objective is then goodput, and --slo-ms the deadline of the file; default: one model",
    )
    concurrency: int | None = _option(
        None,
        "--concurrency",
        "N",
        "requests in flight at any time (closed loop)",
        parse=int,
        instead="rate",
        more=f"; in an open loop (--rate, --find-rate) the most that may be, default {MAX_IN_FLIGHT}",
    )
    rate: float | None = _option(
        None,
        "--rate",
        "R",
        "requests a second, sent when they are due and not when answers come (open loop); default: "
        "closed loop",
        parse=float,
    )
    arrivals: str | None = _option(
        None,
        "--arrivals",
        "NAME",
        "how an open loop spreads its requests over time: poisson, constant, burst, or trace:FILE, seconds "
        "of arrivals, one a line, scaled to --rate where that is given; default poisson",
    )
    client_batch: int = _option(
        1,
        "--client-batch",
        "N",
        "items in each request; default 1",
        parse=int,
    )
    space: str | None = _option(
        None,
        "--space",
        "FILE",
        "search space; default: the model's bundled one, or one derived by a short probe "
        "(see `tune space`)",
    )
    fixed: tuple[str, ...] = _option(
        (),
        "--fix",
        "KNOB=VALUE",
        "a knob of the search space that is not searched: every launch has it at this value; may be given more "
        "than once; default: none",
        is_repeated=True,
    )
    payload: str | None = _option(
        None,
        "--payload",
        "FILE",
        "request inputs, .npz or .jsonl; default: what --shape and --values say, the model's own sample, or "
        "random inputs, which is then noted",
    )
    shape: tuple[str, ...] = _option(
        (),
        "--shape",
        "NAME=SIZES",
        "sizes of an input without its item axis (image=3x640x640), or of all dimensions of a name (sequence=128), "
        "for inputs that are made up: each 640, 16..512, 'lognormal(64,0.8)<=512' or @FILE with a size in each "
        "line; may be given more than once; default: those of model.yaml (docs/inputs.md)",
        is_repeated=True,
    )
    values: tuple[str, ...] = _option(
        (),
        "--values",
        "INPUT=VALUES",
        "values of an input that is made up: LOW..HIGH, one value, or @FILE with a value in each line; may be "
        "given more than once; default: standard normal numbers, whole numbers from 0 to 9, eight letters",
        is_repeated=True,
    )
    engine: str = _option(
        "luthier",
        "--engine",
        "ENGINE",
        "what serves: luthier; mosec or triton, or mosec:PYTHON where another interpreter has it; command:FILE, "
        "any server that an engine file describes, started anew for each configuration; or url:URL, a running "
        "server that --hook configures; default luthier",
    )
    hook: str | None = _option(
        None,
        "--hook",
        "COMMAND",
        "program that gives a running server (--engine url:URL) a configuration, which it gets as "
        "JSON on standard input and as variables KNOB_...; default: none",
    )
    hook_timeout_s: float = _option(
        60.0,
        "--hook-timeout",
        "DURATION",
        "longest time of one run of --hook; default 60s",
        parse=duration_s,
    )
    home: str = _option(
        "process",
        "--home",
        "HOME",
        "where the replicas of luthier's server live: process, processes of this machine; or docker, "
        "containers of its Docker engine (docs/containers.md); default process",
        choices=SPAWNERS,
    )
    min_accuracy: float | None = _option(
        None,
        "--min-accuracy",
        "SHARE",
        "search the model's variants as well (`model.variant`), those whose measured accuracy is at least "
        "this, from 0 to 1; default: the model's default variant alone",
        parse=float,
    )

    @property
    def is_of_other_engine(self) -> bool:
        """Whether another engine is tuned."""
        return self.engine != OUR_ENGINE

    @property
    def is_open(self) -> bool:
        """Whether the load is an open loop."""
        return self.rate is not None or is_trace(self.arrivals)

    def _check_scenario(self) -> None:
        """Reject options set by the scenario."""
        _require(
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
                    f"{flag} {told}: not with --scenario, which says what is served, and what is asked of it"
                )

    @property
    def in_flight(self) -> int:
        """Requests in flight: constant in a closed loop, at most in an open one."""
        return MAX_IN_FLIGHT if self.concurrency is None else self.concurrency

    def __post_init__(self) -> None:
        _require(bool(self.model), "--model", self.model, "the name of a bundled model or a file")
        _require(
            self.concurrency is None or self.concurrency >= 1,
            "--concurrency",
            self.concurrency,
            "a whole number from 1",
        )
        check_arrivals(self.rate, self.arrivals)
        self._check_scenario()
        _check_fixed(self.fixed)
        if self.payload is not None and self.values:
            raise UsageError(
                f"--values {self.values[0]}: not with --payload, whose file has the values"
            )
        share = self.min_accuracy
        _require(share is None or 0 <= share <= 1, "--min-accuracy", share, "a share from 0 to 1")
        _require(
            1 <= self.client_batch <= MAX_CLIENT_BATCH,
            "--client-batch",
            self.client_batch,
            f"a whole number from 1 to {MAX_CLIENT_BATCH}",
        )
        kind, colon, rest = self.engine.partition(":")
        is_whole = bool(kind) and bool(rest if kind in OTHER_ENGINES else rest or not colon)
        _require(is_whole, "--engine", self.engine, "luthier, a name, command:FILE or url:URL")
        takes_hook = kind == "url"
        if takes_hook != (self.hook is not None):
            raise UsageError(
                f"--engine {self.engine}: needs --hook COMMAND, which gives it a configuration"
                if takes_hook
                else f"--hook {self.hook}: only a running server (--engine url:URL) has a hook"
            )
        if self.is_of_other_engine and self.min_accuracy is not None:
            raise UsageError(
                f"--min-accuracy {self.min_accuracy:g}: the variants of a model are a knob of luthier's "
                "alone; give another engine a knob of its own for them"
            )
        _require(self.home in SPAWNERS, "--home", self.home, "one of " + ", ".join(SPAWNERS))
        if self.is_of_other_engine and self.home != SPAWNERS[0]:
            raise UsageError(
                f"--home {self.home}: where replicas live is luthier's alone to say; "
                f"the file of another engine can start a container itself"
            )
        _require(self.hook_timeout_s > 0, "--hook-timeout", self.hook_timeout_s, "above 0")


@dataclasses.dataclass(frozen=True, slots=True, kw_only=True)
class SearchSettings:
    """Choice and number of configurations."""

    sampler: str = _option(
        "structured",
        "--sampler",
        "NAME",
        "what proposes configurations: structured, which predicts them from a short profile of the model, "
        "gp, random, epsilon-greedy, skopt, gpy, tpe, guess, ridge, hill-climb, optuna-gp, smac or botorch "
        "(docs/samplers.md); default structured",
    )
    trials: int = _option(
        50,
        "--trials",
        "COUNT",
        "configurations launched in all, the default and the initial ones included; default 50",
        parse=int,
    )
    initial: int | None = _option(
        None,
        "--initial",
        "COUNT",
        "launches before results guide the sampler; the default configuration is the first; "
        "default 4 for structured (8 where nothing is predicted), 8 for gp and ridge, 10 for skopt, tpe, "
        "optuna-gp, smac and botorch, 25 for gpy, random and epsilon-greedy, none for guess and hill-climb; "
        "at most half of --trials",
        parse=int,
    )
    max_time_s: float = _option(
        600.0,
        "--max-time",
        "DURATION",
        "longest time of the study, its verification included (90s, 10m, 1h); default 10m",
        parse=duration_s,
    )
    stop_ei: float = _option(
        0.01,
        "--stop-ei",
        "SHARE",
        "end early when in three proposals running no configuration's expected improvement "
        "reaches this share of the best; 0 never ends early; default 0.01",
        parse=float,
    )
    epsilon: float | None = _option(
        None,
        "--epsilon",
        "SHARE",
        "share of guided proposals that epsilon-greedy makes at random; default: the sampler's own",
        parse=float,
    )
    learn_from: str = _option(
        "auto",
        "--learn-from",
        "NAMES",
        "finished studies of the same model, under this or other loads, whose launches the search starts "
        "from: names with commas between them; auto, those of --runs-dir that fit, the nearest loads "
        "first; or none; default auto",
    )
    seed: int = _option(
        0, "--seed", "S", "seed of the proposals and of random inputs; default 0", parse=int
    )

    def __post_init__(self) -> None:
        _require(self.trials >= 1, "--trials", self.trials, "a whole number from 1")
        _require(
            1 <= self.first_trials <= self.trials,
            "--initial",
            self.initial,
            f"from 1 to the trials ({self.trials}); the default is one of the initial ones",
        )
        _require(self.max_time_s > 0, "--max-time", self.max_time_s, "a duration above 0")
        _require(0 <= self.stop_ei < 1, "--stop-ei", self.stop_ei, "a share from 0 to below 1")
        _require(
            self.epsilon is None or 0 <= self.epsilon <= 1,
            "--epsilon",
            self.epsilon,
            "a share from 0 to 1",
        )
        _require(self.seed >= 0, "--seed", self.seed, "a whole number from 0")

    @property
    def first_trials(self) -> int:
        """Trials before results guide the sampler."""
        if self.initial is not None:
            return self.initial
        wanted = INITIALS.get(self.sampler, INITIAL)
        return min(wanted, max(1, self.trials // 2))


@dataclasses.dataclass(frozen=True, slots=True, kw_only=True)
class MeasurementSettings:
    """Metrics and duration of evaluations."""

    objective: str = _option(
        "mean",
        "--objective",
        "NAME[,NAME]",
        "what is made best: mean, p50, p95 or p99 of the round trip (ms), throughput (requests/s), "
        "goodput (requests/s within --slo-ms), time-per-item (ms), consistency (p95 - p5 of the round trip, "
        "ms), cost (of 1,000 requests, by --prices), cpu (core-s of 1,000 requests), memory (MiB-s of 1,000 "
        "requests), energy (J/request, where it can be counted), or rate, the highest of an "
        "open loop that keeps --slo-ms (requests/s); two with a comma between them, as mean,cost, "
        "for the front of both; default mean",
        parse=objectives.parse_names,
    )
    point: str = _option(
        "knee",
        "--point",
        "NAME",
        "of the front of two objectives the point that is verified and exported: knee, or the objective in "
        "which it is to be the best; default knee",
    )
    slo_ms: float | None = _option(
        None,
        "--slo-ms",
        "MS",
        "a configuration whose p99 is above this many milliseconds is no solution; where goodput is "
        "counted, the deadline of each request instead; default: no limit",
        parse=float,
    )
    constraints: tuple[str, ...] = _option(
        (),
        "--constraint",
        "TEXT",
        "what a solution must keep to, METRIC <= NUMBER or METRIC >= NUMBER, as 'p99_ms <= 50'; may be given "
        "more than once; default: none",
        parse=metric_constraints.canonical,
        is_repeated=True,
    )
    prices: str | None = _option(
        None,
        "--prices",
        "FILE",
        "YAML file with the price of an hour of a core (core_hour), of a GiB (gib_hour) and, where one is "
        "used, of a GPU (gpu_hour), for the objective cost; default: core-seconds, a GiB-second as an "
        "eighth of one",
    )
    requests: int | None = _option(
        None,
        "--requests",
        "COUNT",
        "measure this many requests in each launch instead of a time; default: by time",
        parse=int,
    )
    seconds: float | None = _option(
        None,
        "--seconds",
        "S",
        "seconds measured in each launch; default 0.6 where the mean alone decides (objectives mean, "
        "throughput and time-per-item, without --slo-ms and --constraint), or four round trips where these "
        "take longer, 5 under a --scenario, else 2",
        parse=float,
    )
    warmup_s: float = _option(
        WARMUP_S,
        "--warmup",
        "S",
        "least seconds of load before measuring, and never under three round trips; behind them, answers of a "
        "server that was started just now are waited for until they have settled, for 2 s at most; default 0.1",
        parse=float,
    )
    timeout_s: float = _option(
        10.0,
        "--timeout",
        "S",
        "a request without an answer after this long is an error; default 10",
        parse=float,
    )
    racing: str = _option(
        "on",
        "--racing",
        "on|off",
        "on: a trial ends after a quarter of its time, or two or three, where its configuration is by then "
        "decided to be no rival of the best so far (objectives mean, throughput and time-per-item, in a "
        "closed loop, without --slo-ms, --constraint and --requests); default on",
        choices=("on", "off"),
    )
    pairs: int = _option(
        30,
        "--pairs",
        "COUNT",
        "most launches each of the default and the best configuration, side by side or alternating, for the "
        "verdict; fewer where their difference shows before; default 30",
        parse=int,
    )

    def __post_init__(self) -> None:
        for limit in self.limits:
            if limit.metric == "goodput_per_s" and self.slo_ms is None:
                raise UsageError(
                    f"--constraint {limit.text!r}: goodput counts answers within a deadline: give "
                    "--slo-ms MS, too"
                )
        try:
            objectives.parse_names(self.objective)
        except ValueError as error:
            raise UsageError(f"--objective {error}") from None
        points = ("knee", *((self.first, self.second) if self.second else ()))
        _require(
            self.point in points,
            "--point",
            self.point,
            " or ".join(str(one) for one in points)
            if self.second
            else "knee, unless there are two objectives",
        )
        _require(
            self.slo_ms is None or self.slo_ms > 0, "--slo-ms", self.slo_ms, "milliseconds above 0"
        )
        if RATE in self.names and self.second is not None:
            raise UsageError(f"--objective {self.objective}: {RATE} is an objective of its own")
        if self.objective == RATE and self.slo_ms is None:
            raise UsageError(
                "--find-rate: the highest rate at which p99 is under what? give --slo-ms MS"
            )
        if "goodput" in self.names and self.slo_ms is None:
            raise UsageError(
                f"--objective {self.objective}: counts answers within a deadline: give --slo-ms MS, too"
            )
        _require(
            self.requests is None or self.requests >= 20,
            "--requests",
            self.requests,
            "a whole number from 20",
        )
        _require(
            self.seconds is None or 0.4 <= self.seconds <= 3600,
            "--seconds",
            self.seconds,
            "from 0.4 (four quota periods) to 3600",
        )
        _require(0 <= self.warmup_s <= 3600, "--warmup", self.warmup_s, "from 0 to 3600")
        _require(self.timeout_s > 0, "--timeout", self.timeout_s, "seconds above 0")
        _require(self.pairs >= 2, "--pairs", self.pairs, "a whole number from 2")

    @property
    def names(self) -> tuple[str, ...]:
        """Objectives by name."""
        return tuple(self.objective.split(","))

    @property
    def first(self) -> str:
        """First objective."""
        return self.names[0]

    @property
    def second(self) -> str | None:
        """Second objective, or None."""
        return self.names[1] if len(self.names) > 1 else None

    @property
    def counts_goodput(self) -> bool:
        """Whether `--slo-ms` defines goodput, not a p99 constraint."""
        found = metric_constraints.parse_all(self.constraints)
        return "goodput" in self.names or any(one.metric == "goodput_per_s" for one in found)

    @property
    def limits(self) -> tuple[MetricConstraint, ...]:
        """Metric constraints.

        `--slo-ms` constrains p99, except for goodput and rate searches.
        """
        found = metric_constraints.parse_all(self.constraints)
        if self.slo_ms is None or self.counts_goodput or self.objective == RATE:
            return found
        return (metric_constraints.of_slo(self.slo_ms), *found)

    @property
    def is_of_means(self) -> bool:
        """Whether mean latency, or its inverse throughput, alone decides."""
        return self.objective in OF_MEANS and not self.limits

    @property
    def measured_s(self) -> float:
        """Measured seconds per evaluation, unless latencies need longer.

        Where the mean decides, drift over seconds dominates, so longer trials gain little
        (docs/measurement.md). A tail needs its requests.
        """
        if self.seconds is not None:
            return self.seconds
        if self.objective == RATE:
            return RATE_S
        return SHORT_S if self.is_of_means else USUAL_S

    @property
    def compared_s(self) -> float:
        """Least measured seconds when interleaved; 0 if the mean decides."""
        return 0.0 if self.is_of_means and self.seconds is None else self.measured_s

    @property
    def load_s(self) -> float:
        """Warm-up and measured seconds, estimated for a rate search."""
        if self.objective == RATE:
            return USUAL_RATES * (max(RATE_WARMUP_S, self.warmup_s) + self.measured_s)
        return self.warmup_s + self.measured_s

    @property
    def block_s(self) -> float:
        """Seconds per block: the fewest quota periods within `MAX_BLOCKS`."""
        periods = math.ceil(self.measured_s / MAX_BLOCKS / QUOTA_PERIOD_S - 1e-9)
        return max(1, periods) * QUOTA_PERIOD_S


@dataclasses.dataclass(frozen=True, slots=True, kw_only=True)
class StoreSettings:
    """Storage of the results."""

    study: str | None = _option(
        None,
        "--study",
        "NAME",
        "name of the study and of its folder; default: model, concurrency and the time",
    )
    runs_dir: str = _option(
        "runs", "--runs-dir", "DIR", "folder that holds the study folders; default runs"
    )
    storage: str | None = _option(
        None,
        "--storage",
        "URL",
        "Optuna storage (an SQLAlchemy URL) of the trials; default: study.db in the folder",
    )

    def __post_init__(self) -> None:
        is_plain = (
            self.study is None
            or re.fullmatch(r"[A-Za-z0-9][A-Za-z0-9._+-]*", self.study) is not None
        )
        _require(
            is_plain,
            "--study",
            self.study,
            "letters, digits, '.', '_', '+' and '-', as it names a folder",
        )
        is_url = self.storage is None or "://" in self.storage
        _require(
            is_url, "--storage", self.storage, "an Optuna storage URL such as sqlite:///all.db"
        )


@dataclasses.dataclass(frozen=True, slots=True, kw_only=True)
class StudySettings:
    """All settings of a study."""

    target: TargetSettings
    search: SearchSettings = dataclasses.field(default_factory=SearchSettings)
    measurement: MeasurementSettings = dataclasses.field(default_factory=MeasurementSettings)
    store: StoreSettings = dataclasses.field(default_factory=StoreSettings)

    def __post_init__(self) -> None:
        if self.target.scenario is not None:
            self._check_scenario()
        if self.measurement.objective == RATE and self.target.rate is not None:
            raise UsageError(f"--rate {self.target.rate:g}: --find-rate looks for the rate itself")
        if self.target.concurrency is None and not self.is_open:
            raise UsageError(NO_LOAD)
        if self.target.arrivals is not None and not self.is_open:
            raise UsageError(f"--arrivals {self.target.arrivals}: {NO_ARRIVALS}")
        if self.target.is_open and not set(self.measurement.names).isdisjoint(OF_THE_LOAD):
            raise UsageError(
                f"--objective {self.measurement.objective}: an open loop sets it itself; choose a latency"
            )

    def _check_scenario(self) -> None:
        """Reject unsupported settings, or objectives blind to rejected requests."""
        measurement = self.measurement
        if RATE in measurement.names:
            raise UsageError(f"--objective {RATE}: a scenario has its own rates; take goodput")
        if measurement.requests is not None:
            raise UsageError(
                f"--requests {measurement.requests}: a scenario is measured for a time, --seconds S"
            )
        if not measurement.counts_goodput:
            raise UsageError(
                f"--objective {measurement.objective}: tells of answers alone, so that what refuses most may look "
                "best; take goodput, or goodput and another, or add --constraint 'goodput_per_s >= NUMBER'"
            )

    @property
    def is_open(self) -> bool:
        """Whether the load is an open loop."""
        return self.target.is_open or self.measurement.objective == RATE

    def nested(self) -> dict[str, dict[str, Any]]:
        """Return `settings.yaml`'s mappings by group."""
        return dataclasses.asdict(self)

    @classmethod
    def from_nested(cls, tree: Mapping[str, Any], *, source: str) -> StudySettings:
        """Inverse of `nested`.

        Raises:
            WrongUse: unknown key (with the nearest) or invalid value.
        """
        _check_keys(tree, GROUPS, source)
        groups: dict[str, Any] = {}
        for name, kind in GROUPS.items():
            values = tree.get(name, {})
            if not isinstance(values, Mapping):
                raise UsageError(
                    f"{source}: {name} holds {type(values).__name__}, expected a mapping"
                )
            _check_keys(
                values, [field.name for field in dataclasses.fields(kind)], f"{source}, {name}"
            )
            values = _lists_to_tuples(values, kind, f"{source}, {name}")
            _plain(values, kind, f"{source}, {name}")
            try:
                groups[name] = kind(**values)
            except TypeError as error:
                raise UsageError(f"{source}, {name}: {error}") from error
        return cls(**groups)


def runs_dir_option(runs_dir: object) -> str:
    """Return the `--runs-dir` option; empty for the default."""
    return "" if str(runs_dir) == "runs" else f" --runs-dir {shlex.quote(str(runs_dir))}"


def workload_in_words(
    concurrency: int,
    client_batch: int,
    *,
    rate_per_s: float | None = None,
    arrivals: str | None = None,
    objective: str | None = None,
    offered_per_s: float | None = None,
) -> str:
    """Describe a workload, ending a sentence.

    Args:
        rate_per_s: None: closed loop.
        arrivals: as in `--arrivals`.
        objective: `RATE` searches the rate.
        offered_per_s: sent in a scenario, if known.
    """
    batched = f", {client_batch} items in each request" if client_batch > 1 else ""
    kind = (arrivals or SPREADS[0]).partition(":")[0]
    if objective == RATE:
        return f"its highest rate ({kind} arrivals){batched}"
    if rate_per_s is None:
        return f"concurrency {concurrency}{batched}"
    if arrivals == SCENARIO:
        if offered_per_s is None:
            return f"{rate_in_words(rate_per_s)} of the scenario"
        asked = rate_in_words(rate_per_s).partition(" ")[0]
        return f"{rate_in_words(offered_per_s)} (the scenario's file says {asked})"
    return f"{rate_in_words(rate_per_s)} ({kind} arrivals){batched}"


def rate_in_words(rate_per_s: float) -> str:
    """Format a rate with at least three digits."""
    number = f"{rate_per_s:,.0f}" if rate_per_s >= 100 else f"{rate_per_s:.3g}"
    return f"{number} requests/s"


def is_trace(arrivals: str | None) -> bool:
    """Whether arrivals come from a file."""
    return arrivals is not None and arrivals.startswith(TRACE)


def check_arrivals(rate: float | None, arrivals: str | None) -> None:
    """Check an open loop.

    Raises:
        WrongUse: rate out of range, or unknown arrivals.
    """
    _require(
        rate is None or 0 < rate <= MAX_RATE_PER_S,
        "--rate",
        rate if rate is None else f"{rate:g}",
        f"requests a second, above 0 and at most {MAX_RATE_PER_S:,.0f}",
    )
    is_known = arrivals is None or arrivals in (*SPREADS, SCENARIO)
    _require(
        is_known or (is_trace(arrivals) and arrivals != TRACE),
        "--arrivals",
        arrivals,
        KNOWN_ARRIVALS,
    )


def storage_option(kept_url: object) -> str:
    """Return the `--storage` option; empty if the saved URL suffices.

    A saved URL has `***` for a password.
    """
    has_password = isinstance(kept_url, str) and ":***@" in kept_url
    return f" --storage {shlex.quote(str(kept_url))}" if has_password else ""


def serve_command(model: object | None, file: pathlib.PurePath, *, is_trusted: bool = False) -> str:
    """Return the command that serves with a settings file; None: models follow later."""
    what = "--allow-empty" if model is None else f"--model {shlex.quote(str(model))}"
    what += " --trust" if is_trusted else ""
    return f"python -m serving {what} --settings {shlex.quote(str(file))}"


GROUPS: dict[str, type] = {
    "target": TargetSettings,
    "search": SearchSettings,
    "measurement": MeasurementSettings,
    "store": StoreSettings,
}
"""Settings classes in the order of the help."""


def options(group: type) -> Iterator[tuple[dataclasses.Field[Any], Option]]:
    """Yield a group's fields with options."""
    for field in dataclasses.fields(group):
        yield field, field.metadata["option"]


def _check_keys(given: Mapping[str, Any], valid: Any, source: str) -> None:
    for key in given:
        if key not in valid:
            raise UsageError(
                f"{source}: unknown key {key!r}{nearest(str(key), valid)} "
                f"(known: {', '.join(valid)})"
            )


def _lists_to_tuples(given: Mapping[str, Any], group: type, source: str) -> dict[str, Any]:
    """Convert lists of repeatable fields to tuples."""
    found = dict(given)
    for field, option in options(group):
        value = found.get(field.name)
        if not option.is_repeated or value is None:
            continue
        if not isinstance(value, list | tuple) or not all(isinstance(one, str) for one in value):
            raise UsageError(f"{source}: {field.name} holds {value!r}, expected a list of texts")
        found[field.name] = tuple(value)
    return found


def _plain(given: Mapping[str, Any], group: type, source: str) -> None:
    """Reject values of another type than their field's."""
    kinds = typing.get_type_hints(group)
    for key, value in given.items():
        if isinstance(value, tuple):
            continue
        allowed = typing.get_args(kinds[key]) or (kinds[key],)
        fits = isinstance(value, allowed) or (float in allowed and isinstance(value, int))
        if not fits or isinstance(value, bool) != (bool in allowed):  # bool is an int
            expected = " or ".join(KINDS[kind] for kind in allowed if kind in KINDS)
            raise UsageError(f"{source}: {key} holds {value!r}, expected {expected}")


def _check_fixed(fixed: Sequence[str]) -> None:
    """Check fixed knobs' form; the space is unknown here."""
    names = [one.partition("=")[0] for one in fixed]
    for one, name in zip(fixed, names, strict=True):
        _require(
            bool(name) and len(name) + 1 < len(one), "--fix", one, "KNOB=VALUE, as replica.count=2"
        )
        if names.count(name) > 1:
            raise UsageError(f"--fix {one}: {name} is fixed {names.count(name)} times")


def _require(is_met: bool, flag: str, given: object, expected: str) -> None:
    if not is_met:
        raise UsageError(f"{flag} {given}: expected {expected}")
