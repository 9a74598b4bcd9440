"""Which version a name means: versions, the current one, labels, shares of the traffic, a shadow.

In: a name, perhaps a version or a label, and a number drawn from [0, 1) where the traffic is
split. Out: the thing that was registered under that version. Every change is one assignment in the
event loop's thread, so that each request sees one state or the next. Pure; it does not know what a
version is.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, Generic, TypeVar

from serving.errors import InvalidRequest, UnknownLabel, UnknownModel

STABLE = "stable"
"""Label that means the current version until it is set to another one."""

Version = TypeVar("Version")


class Entry(Generic[Version]):
    """One model name."""

    __slots__ = ("current", "labels", "name", "previous", "shadow", "shares", "versions")

    def __init__(self, name: str) -> None:
        self.name = name
        self.versions: dict[str, Version] = {}
        self.current = ""
        """The version that a request without one gets."""
        self.previous: str | None = None
        """The one before it, for a roll-back."""
        self.labels: dict[str, str] = {}
        self.shares: dict[str, float] = {}
        """Version -> share of the requests that name none; empty: all go to the current one."""
        self.shadow: str | None = None
        """Gets a copy of what goes to the current version; its answers are dropped."""

    def of(self, version: str | None, draw: float) -> Version:
        """What a request gets.

        Args:
            version: as the request names it, a version or a label; None: it names none.
            draw: from [0, 1), decides where the traffic is split.

        Raises:
            UnknownModel: no such version or label.
        """
        if version is not None:
            return self.versions[self.named(version)]
        if self.shares:
            for name, share in self.shares.items():
                draw -= share
                if draw < 0.0:
                    return self.versions[name]
        return self.versions[self.current]

    def as_json(self) -> dict[str, Any]:
        """What was decided about the versions, and which there were, as plain data."""
        return {
            "current": self.current,
            "previous": self.previous,
            "labels": dict(self.labels),
            "shares": dict(self.shares),
            "shadow": self.shadow,
            "versions": list(self.versions),
        }

    def named(self, version: str) -> str:
        """The version that a version or a label means.

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


class Catalogue(Generic[Version]):
    """All models."""

    def __init__(self) -> None:
        self.entries: dict[str, Entry[Version]] = {}

    def entry(self, name: str) -> Entry[Version]:
        """The entry of a model.

        Raises:
            UnknownModel: no such name.
        """
        entry = self.entries.get(name)
        if entry is None:
            raise UnknownModel(name, tuple(self.entries))
        return entry

    def all(self) -> tuple[Version, ...]:
        """What is registered, over all models."""
        return tuple(
            version for entry in self.entries.values() for version in entry.versions.values()
        )

    def add(self, name: str, version: str, what: Version, *, current: bool) -> None:
        """Register a version; the first one of a name is its current one.

        Raises:
            InvalidRequest: the version is there already.
        """
        entry = self.entries.get(name)
        if entry is not None and version in entry.versions:
            raise InvalidRequest(f"model {name!r} has a version {version!r} already")
        if entry is None:
            entry = self.entries[name] = Entry(name)
        entry.versions[version] = what
        if current or not entry.current:
            self.set_current(name, version)

    def set_current(self, name: str, version: str) -> None:
        """Give requests without a version another one; a split of the traffic ends.

        Raises:
            UnknownModel: no such name, version or label.
        """
        entry = self.entry(name)
        wanted = entry.named(version)
        if wanted != entry.current:
            entry.previous = entry.current or None
            entry.current = wanted
        entry.shares = {}
        if entry.shadow == wanted:
            entry.shadow = None

    def restore(self, name: str, past: Mapping[str, Any]) -> None:
        """Decide about the versions as it was decided before, as far as they are there.

        A version that was not there then is newer than those decisions: what is current stays, and the
        traffic is not split.

        Args:
            name: the model.
            past: as `Entry.as_json` gave it.

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
        """Take a version out; the last one takes the name with it. Returns what was registered.

        Raises:
            UnknownModel: no such name or version.
            InvalidRequest: it is the current one beside others, or has a share of the traffic.
        """
        entry = self.entry(name)
        if version not in entry.versions:
            entry.named(version)
            raise InvalidRequest(f"{version!r} is a label of model {name!r}; give the version")
        if len(entry.versions) > 1:
            if version == entry.current:
                raise InvalidRequest(
                    f"version {version!r} of model {name!r} is the current one; set another one first"
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
        """Take a model out with all its versions. Returns what was registered.

        Raises:
            UnknownModel: no such name.
        """
        entry = self.entry(name)
        del self.entries[name]
        return tuple(entry.versions.values())

    def set_label(self, name: str, label: str, version: str | None) -> None:
        """Let a label mean a version; None takes the label away.

        Raises:
            UnknownModel: no such name or version.
            UnknownLabel: there is no such label to take away.
            InvalidRequest: the label is empty or also a version's name.
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
        entry.labels[label] = entry.named(version)

    def set_shares(self, name: str, shares: Mapping[str, float]) -> None:
        """Split the traffic without a version; empty shares end the split.

        Args:
            name: the model.
            shares: version or label -> share; together 1. What lacks to 1 goes to the current version.

        Raises:
            UnknownModel: no such name, version or label.
            InvalidRequest: a share is negative, or they are more than 1 together.
        """
        entry = self.entry(name)
        wanted: dict[str, float] = {}
        for version, share in shares.items():
            if not 0.0 <= share <= 1.0:  # so nor if it is none, or is too large for a float
                raise InvalidRequest(f"the share of {version!r} is {share!r:.40}, expected 0 to 1")
            known = entry.named(version)
            wanted[known] = wanted.get(known, 0.0) + share
        if sum(wanted.values()) > 1.0 + 1e-9:
            raise InvalidRequest(
                f"the shares of model {name!r} are {sum(wanted.values()):g} together, expected at most 1"
            )
        entry.shares = {version: share for version, share in wanted.items() if share > 0.0}

    def set_shadow(self, name: str, version: str | None) -> None:
        """Send a copy of the current version's requests to another version; None ends it.

        Raises:
            UnknownModel: no such name, version or label.
            InvalidRequest: it is the current version.
        """
        entry = self.entry(name)
        wanted = None if version is None else entry.named(version)
        if wanted is not None and wanted == entry.current:
            raise InvalidRequest(
                f"version {wanted!r} of model {name!r} is the current one, no shadow"
            )
        entry.shadow = wanted
