"""Scenario files in YAML (docs/scenarios.md has the keys).

An error names file, key and line.
"""

from __future__ import annotations

import functools
import math
import pathlib
from collections.abc import Collection, Iterator, Mapping
from typing import Any, cast

from serving.system import user_files
from serving.zoo import bundled
from tuner import document
from tuner.document import Document, Path
from tuner.errors import InvalidScenario
from tuner.evaluation.scenarios.file_values import MIN_S, ScenarioValues
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
"""Settings that a scenario expresses otherwise, and how."""
MAX_MODELS = 100_000
MAX_WORKERS = 10_000
MAX_CLIENTS = 100_000
MAX_S = 1e6
SPREAD = ("poisson", "constant", "burst")
"""Arrivals of a rate that is spread over the group's models."""


def read(path: pathlib.Path) -> Scenario:
    """Read a scenario file.

    Raises:
        InvalidScenario: unreadable, an unknown key or a wrong value.
    """
    return parse(read_text(path), path)


def read_text(path: pathlib.Path) -> str:
    """Return the text of a file.

    Raises:
        InvalidScenario: it cannot be read.
    """
    try:
        return user_files.text(path)
    except (OSError, UnicodeDecodeError) as error:
        reason = getattr(error, "strerror", None) or "it is not UTF-8 text"
        raise InvalidScenario(str(path), "", f"cannot be read: {reason}") from error


@functools.lru_cache(maxsize=4)
def parse(text: str, path: pathlib.Path) -> Scenario:
    """Parse a scenario and the files that it names, cached as a trace may have millions of rows.

    Args:
        text: its content, now or when a study began.
        path: of the file; files that it names lie beside it.

    Raises:
        InvalidScenario: an unknown key or a wrong value.
    """
    return _ScenarioReader(document.read(text, str(path), fault=InvalidScenario), path).scenario()


class _ScenarioReader:
    """Validating reader of one file."""

    def __init__(self, found: Document, path: pathlib.Path) -> None:
        self._found = found
        self._path = path
        self._values = ScenarioValues(found, path.parent)

    def scenario(self) -> Scenario:
        root = self._values.mapping(self._found.value, (), KEYS)
        groups = tuple(self._groups(root.get("models"), ("models",)))
        models = sum(group.copies for group in groups)
        if models > MAX_MODELS:
            raise self._values.error(
                ("models",), f"{models:,} in all, expected at most {MAX_MODELS:,}"
            )
        copies = {group.name: group.copies for group in groups}
        seconds = self._values.positive(root.get("seconds"), ("seconds",))
        if seconds > MAX_S:
            raise self._values.error(("seconds",), f"{seconds:g}, expected at most {MAX_S:g}")
        streams = tuple(self._streams(root.get("traffic"), ("traffic",), groups))
        expected = sum(stream.rate_per_s * (seconds - stream.from_s) for stream in streams)
        if expected > MAX_ARRIVALS:
            text = (
                f"{expected:,.0f} requests, expected at most {MAX_ARRIVALS:,}; reduce the "
                "time or the rates"
            )
            raise self._values.error(("traffic",), text)
        for stream in streams:
            self._check_deadline(stream, seconds)
            if stream.from_s >= seconds:
                key = ("traffic", stream.name, "from_s")
                raise self._values.error(
                    key, f"{stream.from_s:g}, expected less than seconds ({seconds:g})"
                )
        clients = sum(stream.clients * copies[stream.group] for stream in streams)
        if clients > MAX_CLIENTS:
            raise self._values.error(
                ("traffic",), f"{clients:,} clients in all, expected at most {MAX_CLIENTS:,}"
            )
        pages = root.get("memory_pages")
        if pages is not None:
            pages = self._values.whole(pages, ("memory_pages",), 1, 2**31)
        for group in groups:
            profile = group.profile
            if pages is not None and profile is not None and profile.pages > pages:
                text = f"{profile.pages} pages, more than a worker's memory_pages ({pages})"
                raise self._values.error(("models", group.name, "profile"), text)
        return Scenario(
            name=self._path.stem,
            seconds=seconds,
            seed=self._values.whole(root.get("seed", 0), ("seed",), 0, 2**32 - 1),
            workers=self._values.whole(root.get("workers", 1), ("workers",), 1, MAX_WORKERS),
            pages=pages,
            concurrent_loads=self._found.truth(
                root.get("concurrent_loads", False), ("concurrent_loads",)
            ),
            groups=groups,
            streams=streams,
            settings=self._settings(root.get("settings", {}), ("settings",)),
            emulated=self._read_emulation(root.get("emulated", {}), ("emulated",)),
        )

    def _groups(self, given: object, path: Path) -> Iterator[ModelGroup]:
        found = self._found.mapping(given, path)
        if not found:
            raise self._values.error(path, "empty, expected models by the name of their group")
        for name, value in found.items():
            at = (*path, name)
            keys = self._values.mapping(value, at, GROUP_KEYS)
            if "profile" not in keys and "model" not in keys:
                text = (
                    "neither profile (to emulate it) nor model (to serve it); expected at least one"
                )
                raise self._values.error(at, text)
            yield ModelGroup(
                name=name,
                copies=self._values.whole(keys.get("copies", 1), (*at, "copies"), 1, MAX_MODELS),
                profile=self._profile(keys["profile"], (*at, "profile"))
                if "profile" in keys
                else None,
                model=self._model(keys["model"], (*at, "model")) if "model" in keys else None,
            )

    def _model(self, given: object, path: Path) -> str:
        """Return a bundled model or a file beside the scenario's, as FILE.py:NAME for Python."""
        name = self._found.text(given, path)
        if name in bundled.names():
            return name
        given_file, colon, inside = name.partition(".py:")
        file = self._path.parent / (f"{given_file}.py" if colon else name)
        if not file.exists():
            text = f"{name!r}, expected a bundled model ({', '.join(bundled.names())}) or a file"
            raise self._values.error(path, text)
        return f"{file.resolve()}:{inside}" if colon else str(file.resolve())

    def _profile(self, given: object, path: Path) -> EmulatedProfile:
        if isinstance(given, str):
            self._found.reject_unknown(given, PROFILES, path, "profile")
            return PROFILES[given]
        keys = self._values.mapping(given, path, PROFILE_KEYS)
        sizes = self._found.mapping(keys.get("batch_ms"), (*path, "batch_ms"))
        batch_s = {}
        for size, value in sizes.items():
            at = (*path, "batch_ms", size)
            if not size.isdecimal() or int(size) < 1:
                raise self._values.error(at, f"{size!r}, expected a number of items")
            batch_s[int(size)] = 1e-3 * self._values.positive(value, at)
        if 1 not in batch_s:
            raise self._values.error(
                (*path, "batch_ms"), "no batch size 1, expected its milliseconds"
            )
        return EmulatedProfile(
            pages=self._values.whole(keys.get("pages", 1), (*path, "pages"), 1, 2**31),
            load_s=1e-3 * self._values.positive(keys.get("load_ms"), (*path, "load_ms")),
            batch_s=dict(sorted(batch_s.items())),
        )

    def _streams(
        self, given: object, path: Path, groups: Collection[ModelGroup]
    ) -> Iterator[Stream]:
        found = self._found.mapping(given, path)
        if not found:
            raise self._values.error(path, "empty, expected streams of requests by their names")
        copies = {group.name: group.copies for group in groups}
        for name, value in found.items():
            at = (*path, name)
            keys = self._values.mapping(value, at, STREAM_KEYS)
            group = self._found.text(keys.get("models", name), (*at, "models"))
            self._found.reject_unknown(group, copies, (*at, "models"), "group of models")
            yield self._stream(name, group, copies[group], keys, at)

    def _stream(
        self, name: str, group: str, copies: int, keys: Mapping[str, Any], at: Path
    ) -> Stream:
        clients = self._values.whole(keys.get("clients", 0), (*at, "clients"), 0, 10_000)
        arrivals = self._found.text(keys.get("arrivals", "poisson"), (*at, "arrivals"))
        self._found.reject_unknown(arrivals, ARRIVALS, (*at, "arrivals"), "kind of arrivals")
        is_timed = bool(clients) or arrivals == "trace"
        if is_timed and "rate" in keys:
            raise self._values.error(
                (*at, "rate"),
                "not allowed with clients or a trace, which decide when requests come",
            )
        self._only_of_rates(keys, arrivals, clients, at)
        trace: tuple[tuple[float, int], ...] = ()
        if arrivals == "trace" and not clients:
            file = self._found.text(keys.get("file"), (*at, "file"))
            trace = self._values.trace(file, copies, (*at, "file"))
        return Stream(
            name=name,
            group=group,
            deadline=self._deadline(keys.get("deadline_ms"), (*at, "deadline_ms")),
            rate_per_s=0.0 if is_timed else self._values.positive(keys.get("rate"), (*at, "rate")),
            arrivals=cast("Arrivals", arrivals),
            exponent=self._values.from_zero(keys.get("zipf", 0), (*at, "zipf")),
            active_every_s=self._values.every(
                keys.get("active_every_s", 0), (*at, "active_every_s")
            ),
            clients=clients,
            items=self._values.whole(keys.get("items", 1), (*at, "items"), 1, 10_000),
            from_s=self._values.from_zero(keys.get("from_s", 0), (*at, "from_s")),
            trace=trace,
        )

    def _check_deadline(self, stream: Stream, seconds: float) -> None:
        """Check that deadlines stay within a sensible range."""
        deadline, at = stream.deadline, ("traffic", stream.name, "deadline_ms")
        if deadline.every_s < MIN_S:
            raise self._values.error(
                (*at, "every_s"), f"{deadline.every_s:g}, expected at least {MIN_S:g}"
            )
        steps = seconds / deadline.every_s
        log_last = math.log(deadline.first_s) + steps * math.log(deadline.factor)
        if abs(log_last) > math.log(MAX_S) + abs(math.log(deadline.first_s)):
            text = (
                f"grows to more than {MAX_S:g} s or to nothing within {seconds:g} s; use a "
                "factor nearer to 1"
            )
            raise self._values.error(at, text)

    def _only_of_rates(
        self, keys: Mapping[str, Any], arrivals: str, clients: int, at: Path
    ) -> None:
        """Reject keys that have no effect."""
        is_spread = not clients and arrivals in SPREAD
        for key in ("zipf", "active_every_s"):
            if key in keys and not is_spread:
                text = f"only allowed with a rate of {', '.join(SPREAD)} arrivals"
                raise self._values.error((*at, key), text)
        if "zipf" in keys and "active_every_s" in keys:
            raise self._values.error((*at, "zipf"), "not allowed with active_every_s; choose one")
        if "arrivals" in keys and clients:
            raise self._values.error(
                (*at, "arrivals"), "not allowed with clients, which decide when requests come"
            )
        if "file" in keys and (clients or arrivals != "trace"):
            raise self._values.error((*at, "file"), "only allowed with arrivals: trace")

    def _deadline(self, given: object, path: Path) -> Deadline:
        if not isinstance(given, dict):
            return Deadline(first_s=1e-3 * self._values.positive(given, path))
        keys = self._values.mapping(given, path, DEADLINE_KEYS)
        return Deadline(
            first_s=1e-3 * self._values.positive(keys.get("first"), (*path, "first")),
            factor=self._values.positive(keys.get("factor", 1.0), (*path, "factor")),
            every_s=self._values.positive(keys.get("every_s", 1.0), (*path, "every_s")),
        )

    def _settings(self, given: object, path: Path) -> dict[str, Any]:
        found = dict(self._found.mapping(given, path))
        for name, said in SAID.items():
            if name in found:
                raise self._values.error((*path, name), f"given, but {said}")
        return found

    def _read_emulation(self, given: object, path: Path) -> EmulationSettings:
        keys = self._values.mapping(given, path, EMULATED_KEYS)
        default = EmulationSettings()
        return EmulationSettings(
            jitter=self._values.jitter(keys.get("jitter", 0), (*path, "jitter")),
            message_latency_s=1e-6
            * self._values.from_zero(
                keys.get("message_latency_us", 1e6 * default.message_latency_s),
                (*path, "message_latency_us"),
            ),
        )
