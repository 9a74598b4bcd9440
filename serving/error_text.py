"""Parts of error messages: hints, shortened values from clients, single lines."""

from __future__ import annotations

import difflib
import itertools
import reprlib
import types
from collections.abc import Iterable

RENAMED = types.MappingProxyType(
    {
        "replica.home": "replica.spawner",
        "replica.max_answer_mb": "replica.max_response_mb",
        "batching.objective_ms": "batching.slo_ms",
        "scheduling.longest_deadline_s": "scheduling.max_deadline_s",
        "clockwork.ahead_ms": "clockwork.schedule_ahead_ms",
        "clockwork.guard": "clockwork.duration_margin",
        "clockwork.buffer": "clockwork.deadline_margin",
        "server.max_connections_of_client": "server.max_connections_per_client",
        "server.max_held_mb": "server.max_buffered_mb",
        "server.repository_kept": "server.repository_loaded_versions",
        "query": "inference",
        "fresh_replicas": "restart_replicas",
        "keep_learnt": "keep_learned",
        "loads_apart": "concurrent_loads",
        "lag_us": "message_latency_us",
        "home": "spawner",
        "guess": "prediction",
        "--home": "--spawner",
        "--fresh": "--overwrite",
        "--surface": "--table",
        "--guess": "--prediction",
        "--after": "--warm-start",
        "--oom": "--inject-oom",
        "--most": "--max-evaluations",
        "--launches": "--evaluations",
    }
)
"""Old names of settings, values, keys and options -> the new names, which errors mention."""
_MAX_NAME = 100
"""Longer names get no hint, as matching megabytes takes seconds."""
_MAX_SHOWN = 300
_MAX_LISTED = 20


def _short() -> reprlib.Repr:
    short = reprlib.Repr()
    short.maxstring = short.maxother = 200
    short.maxlong = 80
    short.maxlist = short.maxtuple = 40
    short.maxlevel = 4
    return short


_SHORT = _short()


def nearest(given: str, valid: Iterable[str]) -> str:
    """Return a hint such as ", did you mean 'x'?", or an empty string."""
    names = list(valid)
    if len(given) > _MAX_NAME:
        return ""
    new = rename_hint(given, names)
    words = {name.lstrip("-"): name for name in names}  # dashes would make options alike
    word = given.lstrip("-")
    longer = [one for one in words if word and one.startswith(word)]
    close = longer or difflib.get_close_matches(word, words, n=1)
    return new or (f", did you mean {words[close[0]]!r}?" if close else "")


def rename_hint(given: str, valid: Iterable[str]) -> str:
    """Return a hint such as ", which is now 'x'", or an empty string if 'x' is not valid."""
    new = RENAMED.get(given)
    return f", which is now {new!r}" if new is not None and new in valid else ""


def short_repr(value: object) -> str:
    """Return the repr of a client's value, shortened."""
    return _cut(_SHORT.repr(value))


def shown_names(names: Iterable[str]) -> str:
    """Return the first few names that a client sent, each shortened."""
    first = [name[:_MAX_NAME] for name in itertools.islice(names, _MAX_LISTED)]
    return _cut(", ".join(first)) or "none"


def one_line(said: object) -> str:
    """Return the text of an error or of another program as one line."""
    return " ".join(str(said).split())


def printable_line(said: object) -> str:
    """Return one line with `?` for each unprintable character, such as in colour codes."""
    return "".join(c if c.isprintable() else "?" for c in one_line(said))


def _cut(text: str) -> str:
    return text if len(text) <= _MAX_SHOWN else f"{text[:_MAX_SHOWN]}..."
