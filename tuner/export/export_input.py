"""Input of an export: a configuration, its model, and the knobs that a format takes."""

from __future__ import annotations

import dataclasses
import importlib.resources
import pathlib
import shlex
from collections.abc import Collection, Mapping

from serving.model_spec import ModelSpec
from serving.models import EXTRAS
from serving.settings import SETTINGS
from serving.tensors.item_axes import why_no_rows
from tuner.advice import Advice
from tuner.errors import UsageError
from tuner.values.configuration import Value
from tuner.values.study_record import StudyRecord

ACCELERATOR = "accelerator."
DEVICE = "accelerator.device"
VARIANT = "model.variant"
Files = dict[str, str | pathlib.PurePath]
"""Relative path -> content, or the file to copy."""


@dataclasses.dataclass(frozen=True, slots=True, kw_only=True)
class ExportInput:
    """A configuration to export."""

    record: StudyRecord
    advice: Advice
    place: pathlib.PurePath
    """Folder and stem of the settings file: `best` or `trial-N`."""
    card: ModelSpec | None = None

    @property
    def model(self) -> ModelSpec:
        """The model spec; raises UsageError if it is missing."""
        if self.card is None:
            raise UsageError(f"the model {self.record.target} is needed for this export")
        return self.card

    @property
    def variant(self) -> str | None:
        """Chosen variant of the model; None for the default."""
        chosen = self.advice.configuration.get(VARIANT)
        return None if chosen is None else str(chosen)

    @property
    def is_for_gpu(self) -> bool:
        """Whether the configuration uses a GPU."""
        device = self.advice.configuration.get(DEVICE, "auto")
        others = [n for n in self.advice.configuration if n.startswith(ACCELERATOR) and n != DEVICE]
        return device == "cuda" or (device == "auto" and bool(others))

    @property
    def is_batched(self) -> bool:
        """Whether requests may be stacked along axis 0 of every tensor, as far as is known."""
        signature = self.record.signature
        return signature is None or (signature.is_batched and not why_no_rows(signature))

    @property
    def package(self) -> str:
        """Package for pip, with the extra of the model kind."""
        kind = self.model.kind
        return f"luthier[{kind}]" if kind in EXTRAS else "luthier"

    @property
    def model_elsewhere(self) -> str:
        """Name, path or module of the model for any Python on this machine."""
        is_code = self.model.kind == "python" and ":" in self.record.target
        return str(self.model.path) if is_code else self.record.target

    def refuse_program(self, why: str) -> None:
        """Raise UsageError, with the reason `why`, if the model is a program."""
        if self.model.kind == "command":
            raise UsageError(
                f"model {self.model.name} is a program that speaks Luthier's wire, which "
                f"{why}; export it with --to compose, kubernetes or kserve"
            )

    def quoted(self, file: str = "") -> str:
        """Return the path of a file, or of the folder, quoted for the shell."""
        return shlex.quote(str(self.place.parent / file))


class Knobs:
    """Knobs of a configuration; a format takes those that it supports."""

    def __init__(self, configuration: Mapping[str, Value]) -> None:
        self._given = configuration
        self.left = dict(configuration)
        """Knobs that were not taken."""

    def whole(self, name: str) -> int:
        """Take a knob whose value is a whole number."""
        value = self.maybe(name)
        assert isinstance(value, int)
        return value

    def maybe(self, name: str) -> float | int | None:
        """Take a numeric knob, or the server's default if it is not given."""
        self.take(name)
        value = self._given.get(name, SETTINGS[name].default)
        assert value is None or isinstance(value, int | float)
        return value

    def take(self, *names: str) -> None:
        """Take knobs regardless of their values."""
        for name in names:
            self.left.pop(name, None)

    def take_as(self, name: str, value: Value) -> None:
        """Take a knob if it has the only value that the format supports."""
        if self.left.get(name) == value:
            self.take(name)

    def take_settings(self, *, without: Collection[str] = ()) -> dict[str, Value]:
        """Take and return all settings of Luthier's server except those in `without`."""
        names = [name for name in SETTINGS if name in self.left and name not in without]
        return {name: self.left.pop(name) for name in names}


def program(name: str) -> str:
    """Return a program from `files/`, the same for every study, so no name becomes code."""
    folder = importlib.resources.files("tuner.export") / "files"
    return (folder / name).read_text(encoding="utf-8")
