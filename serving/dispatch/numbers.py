"""What models are called on the wire: numbers that mean nothing, and are never given twice. Pure."""

from __future__ import annotations

from serving.values import ModelId


class Numbers:
    """The numbers of a pool's models."""

    __slots__ = ("_last", "_of")

    def __init__(self) -> None:
        self._of: dict[ModelId, int] = {}
        self._last = 0

    def __contains__(self, model: object) -> bool:
        """Whether replicas were told to load a model, and may still hold it, or be told to unload it."""
        return model in self._of

    def of(self, model: ModelId) -> int:
        """What a model is called."""
        number = self._of.get(model)
        if number is None:
            number = self._of[model] = self._last = self._last + 1
        return number

    def reserve(self, number: int, model: ModelId | None = None) -> bool:
        """A replica calls a model by this number since before this server was there, and no other may have it.

        Args:
            number: on the wire.
            model: what it is here; None: nothing.

        Returns:
            Whether the model is called so here, too: not where it has another number already.
        """
        self._last = max(self._last, number)
        return model is not None and self._of.setdefault(model, number) == number
