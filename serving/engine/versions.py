"""Registry of model versions: current version, labels, traffic shares and shadow.

Each change is a single step in the event loop's thread, so a request sees the state either before
or after it.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, Generic, TypeVar

from serving.engine.traffic_split import check_shares, draw_version
from serving.errors import InvalidRequest, UnknownLabel, UnknownModel

STABLE = "stable"
"""Label of the current version, unless it is set to another version."""

Version = TypeVar("Version")


class ModelEntry(Generic[Version]):
    """The versions of one model."""

    __slots__ = ("current", "labels", "name", "previous", "shadow", "shares", "versions")

    def __init__(self, name: str) -> None:
        self.name = name
        self.versions: dict[str, Version] = {}
        self.current = ""
        """Version that serves requests without a version."""
        self.previous: str | None = None
        self.labels: dict[str, str] = {}
        self.shares: dict[str, float] = {}
        """Version -> share of requests without a version; if empty, the current one gets all."""
        self.shadow: str | None = None
        """Version that gets copies of the current version's requests."""

    def of(self, version: str | None, draw: float) -> Version:
        """Return the version that serves a request; under a split, `draw` in [0, 1) selects it.

        Raises:
            UnknownModel: the version or label is unknown.
        """
        if version is not None:
            return self.versions[self.resolve_version(version)]
        return self.versions[draw_version(self.shares, draw) or self.current]

    def as_json(self) -> dict[str, Any]:
        """Return the entry as JSON."""
        return {
            "current": self.current,
            "previous": self.previous,
            "labels": dict(self.labels),
            "shares": dict(self.shares),
            "shadow": self.shadow,
            "versions": list(self.versions),
        }

    def resolve_version(self, version: str) -> str:
        """Return the version that a version or label names.

        Raises:
            UnknownModel: the version or label is unknown.
        """
        if version in self.versions:
            return version
        if version in self.labels:
            return self.labels[version]
        if version == STABLE and self.current:
            return self.current
        raise UnknownModel(self.name, (*self.versions, *self.labels), version)


class VersionRegistry(Generic[Version]):
    """The versions of all models."""

    def __init__(self) -> None:
        self.entries: dict[str, ModelEntry[Version]] = {}
        self.resolved: dict[tuple[str, str | None], Any] = {}
        """(Requested name, version) -> what they resolve to; emptied by every change."""

    def entry(self, name: str) -> ModelEntry[Version]:
        """Return a model's entry.

        Raises:
            UnknownModel: the name is unknown.
        """
        entry = self.entries.get(name)
        if entry is None:
            raise UnknownModel(name, tuple(self.entries))
        return entry

    def _entry_to_change(self, name: str) -> ModelEntry[Version]:
        self.resolved.clear()
        return self.entry(name)

    def all(self) -> tuple[Version, ...]:
        """Return all registered versions."""
        return tuple(
            version for entry in self.entries.values() for version in entry.versions.values()
        )

    def check_new(self, name: str, version: str) -> None:
        """Check that a version is new.

        Raises:
            InvalidRequest: it is already registered.
        """
        if name in self.entries and version in self.entries[name].versions:
            raise InvalidRequest(f"model {name!r} already has a version {version!r}")

    def add(self, name: str, version: str, what: Version, *, current: bool) -> None:
        """Register a version; the first version of a model becomes current.

        Raises:
            InvalidRequest: the version is already registered.
        """
        self.check_new(name, version)
        self.resolved.clear()
        entry = self.entries.setdefault(name, ModelEntry(name))
        entry.versions[version] = what
        if current or not entry.current:
            self.set_current(name, version)

    def set_current(self, name: str, version: str) -> None:
        """Set the current version, and end any traffic split.

        Raises:
            UnknownModel: the name, version or label is unknown.
        """
        entry = self._entry_to_change(name)
        wanted = entry.resolve_version(version)
        if wanted != entry.current:
            entry.previous = entry.current or None
            entry.current = wanted
        entry.shares = {}
        if entry.shadow == wanted:
            entry.shadow = None

    def roll_back(self, name: str) -> str:
        """Make the previous version current, and return it.

        Raises:
            UnknownModel: the name is unknown.
            InvalidRequest: the previous version, if any, is not loaded.
        """
        entry = self.entry(name)
        if entry.previous is None:
            raise InvalidRequest(f"model {name!r} has no loaded version to go back to")
        self.set_current(name, entry.previous)
        return entry.current

    def restore(self, name: str, past: Mapping[str, Any]) -> None:
        """Restore what `ModelEntry.as_json` returned, as far as the versions exist.

        Unless `past` lists all versions, the current version stays and traffic is not split.

        Raises:
            UnknownModel: the name is unknown.
        """
        entry = self._entry_to_change(name)
        there = entry.versions.keys()
        is_whole = there <= set(past["versions"])
        if is_whole and past["current"] in there:
            entry.current = past["current"]
        elif is_whole and past["previous"] in there:
            entry.current = past["previous"]
        entry.previous = past["previous"]
        if entry.previous not in there or entry.previous == entry.current:
            entry.previous = None
        entry.labels = {label: known for label, known in past["labels"].items() if known in there}
        entry.shares = {}
        if is_whole and there >= past["shares"].keys():
            entry.shares = dict(past["shares"])
        entry.shadow = past["shadow"]
        if entry.shadow not in there or entry.shadow == entry.current:
            entry.shadow = None

    def remove(self, name: str, version: str) -> Version:
        """Remove and return a version; with the last one, the name is removed too.

        Raises:
            UnknownModel: the name or version is unknown.
            InvalidRequest: it is a label, or it has traffic while other versions exist.
        """
        entry = self._entry_to_change(name)
        if version not in entry.versions:
            entry.resolve_version(version)
            raise InvalidRequest(f"{version!r} is a label of model {name!r}; give the version")
        if len(entry.versions) > 1:
            if version == entry.current:
                raise InvalidRequest(
                    f"version {version!r} of model {name!r} is the current one; make "
                    "another one current first"
                )
            if version in entry.shares:
                raise InvalidRequest(
                    f"version {version!r} of model {name!r} has a share of the traffic; end the split first"
                )
        what = entry.versions.pop(version)
        entry.labels = {label: known for label, known in entry.labels.items() if known != version}
        if entry.previous == version:
            entry.previous = None
        if entry.shadow == version:
            entry.shadow = None
        if not entry.versions:
            del self.entries[name]
        return what

    def remove_all(self, name: str) -> tuple[Version, ...]:
        """Remove a model; return its versions.

        Raises:
            UnknownModel: the name is unknown.
        """
        entry = self._entry_to_change(name)
        del self.entries[name]
        return tuple(entry.versions.values())

    def set_label(self, name: str, label: str, version: str | None) -> None:
        """Point a label at a version, or remove the label if `version` is None.

        Raises:
            UnknownModel: the name or version is unknown.
            UnknownLabel: the label to remove does not exist.
            InvalidRequest: the label is empty or the name of a version.
        """
        entry = self._entry_to_change(name)
        if version is None:
            if label not in entry.labels:
                raise UnknownLabel(name, tuple(entry.labels), label)
            del entry.labels[label]
            return
        if not label or label in entry.versions:
            raise InvalidRequest(
                f"{label!r} cannot be a label of model {name!r}; choose another word"
            )
        entry.labels[label] = entry.resolve_version(version)

    def set_shares(self, name: str, shares: Mapping[str, float]) -> None:
        """Split the requests that do not name a version; empty `shares` end the split.

        Raises:
            UnknownModel: the name, version or label is unknown.
            InvalidRequest: a share is outside [0, 1], or the sum exceeds 1.
        """
        entry = self._entry_to_change(name)
        entry.shares = check_shares(name, shares, entry.resolve_version)

    def set_shadow(self, name: str, version: str | None) -> None:
        """Set the current version's shadow; None ends shadowing.

        Raises:
            UnknownModel: the name, version or label is unknown.
            InvalidRequest: the version is the current one.
        """
        entry = self._entry_to_change(name)
        wanted = None if version is None else entry.resolve_version(version)
        if wanted is not None and wanted == entry.current:
            raise InvalidRequest(
                f"version {wanted!r} of model {name!r} is the current one and cannot be a shadow"
            )
        entry.shadow = wanted
