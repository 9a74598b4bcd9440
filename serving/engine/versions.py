"""Registry of model versions: current version, labels, traffic shares, shadow.

Each change is one assignment in the event loop's thread, so requests see the state before or after
it.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, Generic, TypeVar

from serving.errors import InvalidRequest, UnknownLabel, UnknownModel

STABLE = "stable"
"""Label of the current version, unless it is set to another."""

Version = TypeVar("Version")


class ModelEntry(Generic[Version]):
    """Versions of one model."""

    __slots__ = ("current", "labels", "name", "previous", "shadow", "shares", "versions")

    def __init__(self, name: str) -> None:
        self.name = name
        self.versions: dict[str, Version] = {}
        self.current = ""
        """Version for requests that name none."""
        self.previous: str | None = None
        self.labels: dict[str, str] = {}
        self.shares: dict[str, float] = {}
        """Version -> share of requests that name none; empty: all go to the current one."""
        self.shadow: str | None = None
        """Version that gets copies of the current one's requests."""

    def of(self, version: str | None, draw: float) -> Version:
        """What serves a request; `draw` in [0, 1) selects under a split.

        Raises:
            UnknownModel: no such version or label.
        """
        if version is not None:
            return self.versions[self.resolve_version(version)]
        if self.shares:
            for name, share in self.shares.items():
                draw -= share
                if draw < 0.0:
                    return self.versions[name]
        return self.versions[self.current]

    def as_json(self) -> dict[str, Any]:
        """Versions, labels, shares and shadow."""
        return {
            "current": self.current,
            "previous": self.previous,
            "labels": dict(self.labels),
            "shares": dict(self.shares),
            "shadow": self.shadow,
            "versions": list(self.versions),
        }

    def resolve_version(self, version: str) -> str:
        """Version for a version or label.

        Raises:
            UnknownModel: no such version or label.
        """
        if version in self.versions:
            return version
        if version in self.labels:
            return self.labels[version]
        if version == STABLE and self.current:
            return self.current
        raise UnknownModel(self.name, (*self.versions, *self.labels), version)


class VersionRegistry(Generic[Version]):
    """Versions of all models."""

    def __init__(self) -> None:
        self.entries: dict[str, ModelEntry[Version]] = {}

    def entry(self, name: str) -> ModelEntry[Version]:
        """A model's entry.

        Raises:
            UnknownModel: no such name.
        """
        entry = self.entries.get(name)
        if entry is None:
            raise UnknownModel(name, tuple(self.entries))
        return entry

    def all(self) -> tuple[Version, ...]:
        """What is registered for all models."""
        return tuple(
            version for entry in self.entries.values() for version in entry.versions.values()
        )

    def add(self, name: str, version: str, what: Version, *, current: bool) -> None:
        """Register a version; the first of a name becomes current.

        Raises:
            InvalidRequest: the version exists.
        """
        entry = self.entries.get(name)
        if entry is not None and version in entry.versions:
            raise InvalidRequest(f"model {name!r} already has a version {version!r}")
        if entry is None:
            entry = self.entries[name] = ModelEntry(name)
        entry.versions[version] = what
        if current or not entry.current:
            self.set_current(name, version)

    def set_current(self, name: str, version: str) -> None:
        """Set the current version and end a traffic split.

        Raises:
            UnknownModel: no such name, version or label.
        """
        entry = self.entry(name)
        wanted = entry.resolve_version(version)
        if wanted != entry.current:
            entry.previous = entry.current or None
            entry.current = wanted
        entry.shares = {}
        if entry.shadow == wanted:
            entry.shadow = None

    def restore(self, name: str, past: Mapping[str, Any]) -> None:
        """Restore decisions of `ModelEntry.as_json`, as far as the versions exist.

        If a version is newer than `past`, the current one stays and traffic is not split.

        Raises:
            UnknownModel: no such name.
        """
        entry = self.entry(name)
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
        """Remove and return a version; the last one takes the name with it.

        Raises:
            UnknownModel: no such name or version.
            InvalidRequest: it is a label, has a traffic share, or is current beside others.
        """
        entry = self.entry(name)
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
        """Remove a model; return what was registered.

        Raises:
            UnknownModel: no such name.
        """
        entry = self.entry(name)
        del self.entries[name]
        return tuple(entry.versions.values())

    def set_label(self, name: str, label: str, version: str | None) -> None:
        """Point a label to a version; None removes it.

        Raises:
            UnknownModel: no such name or version.
            UnknownLabel: no such label to remove.
            InvalidRequest: the label is empty or a version's name.
        """
        entry = self.entry(name)
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
        """Split the traffic that names no version; empty `shares` end the split.

        What is missing to 1 goes to the current version.

        Raises:
            UnknownModel: no such name, version or label.
            InvalidRequest: a share is outside [0, 1], or their sum exceeds 1.
        """
        entry = self.entry(name)
        wanted: dict[str, float] = {}
        for version, share in shares.items():
            if not 0.0 <= share <= 1.0:  # also rejects NaN and huge integers
                raise InvalidRequest(f"the share of {version!r} is {share!r:.40}, expected 0 to 1")
            known = entry.resolve_version(version)
            wanted[known] = wanted.get(known, 0.0) + share
        if sum(wanted.values()) > 1.0 + 1e-9:
            raise InvalidRequest(
                f"the shares of model {name!r} are {sum(wanted.values()):g} together, expected at most 1"
            )
        entry.shares = {version: share for version, share in wanted.items() if share > 0.0}

    def set_shadow(self, name: str, version: str | None) -> None:
        """Set the current version's shadow; None ends it.

        Raises:
            UnknownModel: no such name, version or label.
            InvalidRequest: it is the current version.
        """
        entry = self.entry(name)
        wanted = None if version is None else entry.resolve_version(version)
        if wanted is not None and wanted == entry.current:
            raise InvalidRequest(
                f"version {wanted!r} of model {name!r} is the current one and cannot be a shadow"
            )
        entry.shadow = wanted
