"""Scenario files in YAML (docs/scenarios.md has the keys).

Errors name the file, the key and the line.
"""

from __future__ import annotations

import functools
import math
import pathlib
from collections.abc import Mapping, Sequence
from typing import Any, cast

from serving.system import user_files
from serving.zoo import bundled
from tuner import document
from tuner.errors import InvalidScenario
from tuner.evaluation.scenarios.file_values import Section
from tuner.evaluation.scenarios.values import (
    ARRIVALS,
    MAX_ARRIVALS,
    PROFILES,
    Arrivals,
    Deadline,
    EmulatedProfile,
    EmulationSettings,
    ModelGroup,
    Scenario,
    Stream,
)

KEYS = (
    "seconds",
    "seed",
    "workers",
    "memory_pages",
    "concurrent_loads",
    "models",
    "traffic",
    "settings",
    "emulated",
)
GROUP_KEYS = ("copies", "profile", "model")
PROFILE_KEYS = ("pages", "load_ms", "batch_ms")
STREAM_KEYS = (
    "models",
    "rate",
    "arrivals",
    "zipf",
    "active_every_s",
    "clients",
    "items",
    "from_s",
    "deadline_ms",
    "file",
)
DEADLINE_KEYS = ("first", "factor", "every_s")
EMULATED_KEYS = ("jitter", "message_latency_us")
SAID = {
    "scheduling.policy": "models on shared workers always use the clockwork scheduler",
    "replica.count": "set by `workers`",
    "clockwork.memory_mb": "set by `memory_pages`, in pages of clockwork.page_mb",
}
"""Settings that a scenario defines in another way, with an explanation for each."""
MAX_MODELS = 100_000
MAX_WORKERS = 10_000
MAX_CLIENTS = 100_000
MAX_S = 1e6
MIN_S = 1e-6
"""Minimum time; anything shorter is practically zero and therefore rejected."""
SPREAD = ("poisson", "constant", "burst")
"""Arrival processes whose rate is spread over the group's models."""


def read(path: pathlib.Path) -> Scenario:
    """Read a scenario file, or raise InvalidScenario if a key or value is invalid."""
    return parse(read_text(path), path)


def read_text(path: pathlib.Path) -> str:
    """Return the text of a file, or raise InvalidScenario if it cannot be read."""
    try:
        return user_files.text(path)
    except (OSError, UnicodeDecodeError) as error:
        reason = getattr(error, "strerror", None) or "it is not UTF-8 text"
        raise InvalidScenario(str(path), "", f"cannot be read: {reason}") from error


@functools.lru_cache(maxsize=4)
def parse(text: str, path: pathlib.Path) -> Scenario:
    """Parse a scenario, and the files it names relative to its `path`.

    Raise InvalidScenario if any of them is invalid. Results are cached, since a trace may have
    millions of rows.
    """
    found = document.read(text, str(path), fault=InvalidScenario)
    root = Section.root(found, path.parent).of_keys(KEYS)
    pages = None
    if root.values.get("memory_pages") is not None:
        pages = root.whole("memory_pages", 0, 1, 2**31)
    groups = _groups(root.section("models"), pages)
    seconds = root.positive("seconds")
    if seconds > MAX_S:
        raise root.error(f"{seconds:g}, expected at most {MAX_S:g}", "seconds")
    return Scenario(
        name=path.stem,
        seconds=seconds,
        seed=root.whole("seed", 0, 0, 2**32 - 1),
        workers=root.whole("workers", 1, 1, MAX_WORKERS),
        pages=pages,
        concurrent_loads=found.truth(
            root.values.get("concurrent_loads", False), ("concurrent_loads",)
        ),
        groups=groups,
        streams=_streams(root.section("traffic"), groups, seconds),
        settings=_settings(root.section("settings", {})),
        emulated=_emulation(root.section("emulated", {}).of_keys(EMULATED_KEYS)),
    )


def _groups(given: Section, pages: int | None) -> tuple[ModelGroup, ...]:
    if not given.values:
        raise given.error("empty, expected models by the name of their group")
    found = []
    for name in given.values:
        at = given.section(name).of_keys(GROUP_KEYS)
        if "profile" not in at.values and "model" not in at.values:
            raise at.error(
                "neither profile (to emulate it) nor model (to serve it); expected at least one"
            )
        profile = _profile(at) if "profile" in at.values else None
        if pages is not None and profile is not None and profile.pages > pages:
            text = f"{profile.pages} pages, more than a worker's memory_pages ({pages})"
            raise at.error(text, "profile")
        copies = at.whole("copies", 1, 1, MAX_MODELS)
        model = _model(at) if "model" in at.values else None
        found.append(ModelGroup(name=name, copies=copies, profile=profile, model=model))
    models = sum(group.copies for group in found)
    if models > MAX_MODELS:
        raise given.error(f"{models:,} in all, expected at most {MAX_MODELS:,}")
    return tuple(found)


def _model(at: Section) -> str:
    name = at.text("model")
    if name in bundled.names():
        return name
    given_file, colon, inside = name.partition(".py:")
    file = at.folder / (f"{given_file}.py" if colon else name)
    if not file.exists():
        text = f"{name!r}, expected a bundled model ({', '.join(bundled.names())}) or a file"
        raise at.error(text, "model")
    return f"{file.resolve()}:{inside}" if colon else str(file.resolve())


def _profile(at: Section) -> EmulatedProfile:
    if isinstance(at.values["profile"], str):
        return PROFILES[at.name("profile", None, PROFILES, "profile")]
    keys = at.section("profile").of_keys(PROFILE_KEYS)
    sizes = keys.section("batch_ms")
    batch_s = {}
    for size in sizes.values:
        if not size.isdecimal() or int(size) < 1:
            raise sizes.error(f"{size!r}, expected a number of items", size)
        batch_s[int(size)] = 1e-3 * sizes.positive(size)
    if 1 not in batch_s:
        raise sizes.error("no batch size 1, expected its milliseconds")
    return EmulatedProfile(
        pages=keys.whole("pages", 1, 1, 2**31),
        load_s=1e-3 * keys.positive("load_ms"),
        batch_s=dict(sorted(batch_s.items())),
    )


def _streams(given: Section, groups: Sequence[ModelGroup], seconds: float) -> tuple[Stream, ...]:
    if not given.values:
        raise given.error("empty, expected streams of requests by their names")
    copies = {group.name: group.copies for group in groups}
    found = tuple(
        _stream(given.section(name).of_keys(STREAM_KEYS), name, copies, seconds)
        for name in given.values
    )
    expected = sum(stream.rate_per_s * (seconds - stream.from_s) for stream in found)
    if expected > MAX_ARRIVALS:
        raise given.error(
            f"{expected:,.0f} requests, expected at most {MAX_ARRIVALS:,}; reduce the "
            "time or the rates"
        )
    clients = sum(stream.clients * copies[stream.group] for stream in found)
    if clients > MAX_CLIENTS:
        raise given.error(f"{clients:,} clients in all, expected at most {MAX_CLIENTS:,}")
    return found


def _stream(at: Section, name: str, copies: Mapping[str, int], seconds: float) -> Stream:
    group = at.name("models", name, copies, "group of models")
    clients = at.whole("clients", 0, 0, 10_000)
    arrivals = at.name("arrivals", "poisson", ARRIVALS, "kind of arrivals")
    is_timed = bool(clients) or arrivals == "trace"
    if is_timed and "rate" in at.values:
        raise at.error(
            "not allowed with clients or a trace, which decide when requests come", "rate"
        )
    _check_combination(at, arrivals, clients)
    every_s = at.from_zero("active_every_s")
    if 0 < every_s < MIN_S:
        text = f"{every_s:g}, expected 0, or at least {MIN_S:g} s"
        raise at.error(text, "active_every_s")
    from_s = at.from_zero("from_s")
    if from_s >= seconds:
        raise at.error(f"{from_s:g}, expected less than seconds ({seconds:g})", "from_s")
    return Stream(
        name=name,
        group=group,
        deadline=_deadline(at, seconds),
        rate_per_s=0.0 if is_timed else at.positive("rate"),
        arrivals=cast("Arrivals", arrivals),
        exponent=at.from_zero("zipf"),
        active_every_s=every_s,
        clients=clients,
        items=at.whole("items", 1, 1, 10_000),
        from_s=from_s,
        trace=at.trace("file", copies[group]) if arrivals == "trace" and not clients else (),
        file=at.folder / at.text("file") if "file" in at.values else None,
    )


def _check_combination(at: Section, arrivals: str, clients: int) -> None:
    is_spread = not clients and arrivals in SPREAD
    for key in ("zipf", "active_every_s"):
        if key in at.values and not is_spread:
            raise at.error(f"only allowed with a rate of {', '.join(SPREAD)} arrivals", key)
    if "zipf" in at.values and "active_every_s" in at.values:
        raise at.error("not allowed with active_every_s; choose one", "zipf")
    if "arrivals" in at.values and clients:
        raise at.error("not allowed with clients, which decide when requests come", "arrivals")
    if "file" in at.values and (clients or arrivals != "trace"):
        raise at.error("only allowed with arrivals: trace", "file")


def _deadline(at: Section, seconds: float) -> Deadline:
    if not isinstance(at.values.get("deadline_ms"), dict):
        return Deadline(first_s=1e-3 * at.positive("deadline_ms"))
    keys = at.section("deadline_ms").of_keys(DEADLINE_KEYS)
    first_s, factor = 1e-3 * keys.positive("first"), keys.positive("factor", 1.0)
    every_s = keys.positive("every_s", 1.0)
    if every_s < MIN_S:
        raise keys.error(f"{every_s:g}, expected at least {MIN_S:g}", "every_s")
    log_last = math.log(first_s) + seconds / every_s * math.log(factor)
    if abs(log_last) > math.log(MAX_S) + abs(math.log(first_s)):
        raise keys.error(
            f"grows to more than {MAX_S:g} s or to nothing within {seconds:g} s; use a "
            "factor nearer to 1"
        )
    return Deadline(first_s=first_s, factor=factor, every_s=every_s)


def _settings(given: Section) -> dict[str, Any]:
    for name, said in SAID.items():
        if name in given.values:
            raise given.error(f"given, but {said}", name)
    return dict(given.values)


def _emulation(keys: Section) -> EmulationSettings:
    latency_us = keys.from_zero("message_latency_us", 1e6 * EmulationSettings().message_latency_s)
    return EmulationSettings(jitter=keys.jitter("jitter"), message_latency_s=1e-6 * latency_us)
