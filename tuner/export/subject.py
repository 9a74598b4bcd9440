"""What is exported: one configuration of a study, its model, and what a target made of its knobs.

In: the study's record, the advice, the model's card. Out: values that the targets read. Pure.
"""

from __future__ import annotations

import dataclasses
import pathlib
from collections.abc import Collection, Iterator, Mapping

from serving.models import EXTRAS
from serving.settings import KNOBS
from serving.values import ModelCard
from tuner.advice import Advice
from tuner.errors import WrongUse
from tuner.values import StudyRecord, Value

ACCELERATOR = "accelerator."
"""Group of the knobs of a GPU."""
DEVICE = "accelerator.device"
VARIANT = "model.variant"
Files = dict[str, str | pathlib.PurePath]
"""File name, with folders where there are any -> its text, or the file that it is a copy of."""


@dataclasses.dataclass(frozen=True, slots=True, kw_only=True)
class Subject:
    """One configuration to be written in the words of a target."""

    record: StudyRecord
    advice: Advice
    place: pathlib.PurePath
    """Folder that the files are for, and their name without a suffix: `best` or `trial-N`."""
    card: ModelCard | None = None
    """Of the study's model; None where it was not looked for."""

    @property
    def model(self) -> ModelCard:
        """The card, for a target that cannot do without."""
        if self.card is None:
            raise WrongUse(f"the model {self.record.target} is needed for this export")
        return self.card

    @property
    def variant(self) -> str | None:
        """The form of the model that the configuration chooses; None: the default one."""
        chosen = self.advice.configuration.get(VARIANT)
        return None if chosen is None else str(chosen)

    @property
    def weights(self) -> pathlib.Path | None:
        """The file of that form, for a target that copies or names it."""
        return self.model.weights(self.variant)

    @property
    def is_for_gpu(self) -> bool:
        """Whether the configuration asks for a GPU, or sets something of one for a model that is not kept off it."""
        device = self.advice.configuration.get(DEVICE, "auto")
        others = [n for n in self.advice.configuration if n.startswith(ACCELERATOR) and n != DEVICE]
        return device == "cuda" or (device == "auto" and bool(others))

    @property
    def package(self) -> str:
        """The package, with the extra that its kind of model needs, as pip names it."""
        extra = EXTRAS.get(self.model.kind)
        return f"luthier[{extra}]" if extra else "luthier"

    @property
    def model_elsewhere(self) -> str:
        """The model as any Python on this machine finds it: a bundled name, a path or a module."""
        is_code = self.model.kind == "python" and ":" in self.record.target
        return str(self.model.path) if is_code else self.record.target


class Knobs:
    """The knobs of one configuration, and which of them a target has taken over.

    What was not taken is told to the reader (`left`), so that no knob is lost in silence.
    """

    def __init__(self, configuration: Mapping[str, Value]) -> None:
        self._given = configuration
        self._left = dict(configuration)

    def whole(self, name: str) -> int:
        """Take a knob that is a whole number and has a default."""
        value = self.maybe(name)
        assert isinstance(value, int)
        return value

    def maybe(self, name: str) -> float | int | None:
        """Take a knob that is a number; the server's default where the configuration leaves it out."""
        self._left.pop(name, None)
        value = self._given.get(name, KNOBS[name].default)
        assert value is None or isinstance(value, int | float)
        return value

    def take_variant(self, variant: str | None) -> None:
        """Take the form of the model, which the target names by its file or by itself."""
        if variant is not None:
            self.take_as(VARIANT, variant)

    def take_as(self, name: str, value: Value) -> None:
        """Take a knob if it has the one value that the target has without being asked."""
        if self._left.get(name) == value:
            del self._left[name]

    def take_settings(self, *, without: Collection[str] = ()) -> dict[str, Value]:
        """Take all settings of our own server but some."""
        taken = {
            name: self._given[name] for name in KNOBS if name in self._left and name not in without
        }
        for name in taken:
            del self._left[name]
        return taken

    def left(self) -> Iterator[tuple[str, Value]]:
        """Names and values of what was not taken."""
        yield from self._left.items()
