"""Configuration: a value for each knob."""

from __future__ import annotations

from collections.abc import Iterator, Mapping

Value = int | float | str | bool


class Configuration(Mapping[str, Value]):
    """Knob values by dotted name; immutable, hashable and sorted."""

    __slots__ = ("_hash", "_items")

    def __init__(self, values: Mapping[str, Value]) -> None:
        self._items: dict[str, Value] = dict(sorted(values.items()))
        self._hash = hash(tuple(self._items.items()))

    def __getitem__(self, name: str) -> Value:
        return self._items[name]

    def __iter__(self) -> Iterator[str]:
        return iter(self._items)

    def __len__(self) -> int:
        return len(self._items)

    def __hash__(self) -> int:
        return self._hash

    def __eq__(self, other: object) -> bool:
        return isinstance(other, Configuration) and self._items == other._items

    def __repr__(self) -> str:
        return (
            "Configuration("
            + ", ".join(f"{name}={value!r}" for name, value in self._items.items())
            + ")"
        )

    def __reduce__(self) -> tuple[type[Configuration], tuple[dict[str, Value]]]:
        return Configuration, (self._items,)
