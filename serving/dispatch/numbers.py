"""Wire ids of models: numbers that are never reused. Pure."""

from __future__ import annotations

from serving.values import ModelId


class Numbers:
    """Wire ids of a pool's models."""

    __slots__ = ("_last", "_of")

    def __init__(self) -> None:
        self._of: dict[ModelId, int] = {}
        self._last = 0

    def __contains__(self, model: object) -> bool:
        """Whether replicas were asked to load the model, and may still hold it."""
        return model in self._of

    def of(self, model: ModelId) -> int:
        """Return a model's id."""
        number = self._of.get(model)
        if number is None:
            number = self._of[model] = self._last = self._last + 1
        return number

    def reserve(self, number: int, model: ModelId | None = None) -> bool:
        """Reserve the id that an orphan replica uses; return whether `model` has it here.

        Returns False if `model` is None or already has another id.
        """
        self._last = max(self._last, number)
        return model is not None and self._of.setdefault(model, number) == number
