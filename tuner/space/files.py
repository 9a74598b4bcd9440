"""Search-space files: reading, lookup, writing (docs/search-spaces.md).

`InvalidSpace` names file, key, line, what was expected and the nearest valid name.
"""

from __future__ import annotations

import dataclasses
import pathlib
import re
from collections.abc import Mapping

from serving.system import user_files
from tuner import document
from tuner.document import Document, Path
from tuner.errors import InvalidSpace
from tuner.space import equivalence, knob_entry, writing
from tuner.space.expression import Expression, ExpressionError
from tuner.space.knob_schema import SERVING, KnobSchema
from tuner.space.knobs import DeviceKnob, Knob
from tuner.space.space import SearchSpace, symbol_kinds

_FOLDERS = (
    pathlib.Path(__file__).parent / "bundled",  # in the wheel
    pathlib.Path(__file__).parents[2] / "search_spaces",  # in a checkout
)
_KEYS = ("name", "knobs", "constraints", "equivalence")


@dataclasses.dataclass(frozen=True, slots=True, kw_only=True)
class SpaceFile:
    """Search space, and the text of its file with the user's comments."""

    space: SearchSpace
    text: str

    def text_of(self, space: SearchSpace) -> str:
        """Return the text of a space that was made from this one."""
        return self.text if space is self.space else dump(space)


def read(path: str | pathlib.Path, vocabulary: KnobSchema = SERVING) -> SpaceFile:
    """Read a search-space file.

    Raises:
        InvalidSpace: the file cannot be read, or is wrong.
    """
    text = read_text(path)
    return SpaceFile(space=parse(text, file=str(path), vocabulary=vocabulary), text=text)


def load(path: str | pathlib.Path, vocabulary: KnobSchema = SERVING) -> SearchSpace:
    """Return the search space in a file; otherwise like `read`."""
    return read(path, vocabulary).space


def read_text(path: str | pathlib.Path) -> str:
    """Read a file's text.

    Raises:
        InvalidSpace: it cannot be read.
    """
    try:
        return user_files.text(path)
    except OSError as error:
        hint = f"; bundled spaces are {', '.join(bundled_names())}"
        raise InvalidSpace(str(path), "", f"{error.strerror or error}{hint}") from error
    except UnicodeDecodeError as error:
        raise InvalidSpace(str(path), "", f"not text in UTF-8: {error.reason}") from error


def load_bundled(model_name: str) -> SearchSpace | None:
    """Return a bundled model's space, or None."""
    if not re.fullmatch(r"[A-Za-z0-9][A-Za-z0-9_-]*", model_name):
        return None
    path = _folder() / f"{model_name}.yaml"
    return load(path) if path.is_file() else None


def bundled_names() -> tuple[str, ...]:
    """Return the names that `load_bundled` knows."""
    return tuple(sorted(path.stem for path in _folder().glob("*.yaml")))


def dump(space: SearchSpace, comments: Mapping[str, str] | None = None) -> str:
    """Return a space as YAML text that `parse` reads back.

    `comments` are keyed by knob, `constraints`, `equivalence` or `head` (first). Notes stand at the
    top.
    """
    return writing.text(space, comments or {})


def parse(text: str, file: str, vocabulary: KnobSchema = SERVING) -> SearchSpace:
    """Parse a search space; errors call it `file`.

    Raises:
        InvalidSpace: something in it is wrong.
    """
    content = document.read(text, file)
    tree = content.mapping(content.value, ())
    for key in tree:
        content.reject_unknown(key, (*_KEYS, *vocabulary.beside), (key,), "key")
    if "knobs" not in tree:
        raise content.error((), "`knobs` is missing")
    entries = content.mapping(tree["knobs"], ("knobs",))
    knobs = tuple(
        knob_entry.read(content, name, given, vocabulary) for name, given in entries.items()
    )
    constraints = content.texts(tree.get("constraints", []), ("constraints",))
    _check_expressions(content, knobs, constraints)
    rules = content.texts(tree.get("equivalence", list(vocabulary.rules)), ("equivalence",))
    for i, rule in enumerate(rules):
        content.reject_unknown(rule, equivalence.RULES, ("equivalence", i), "rule")
    return SearchSpace(
        name=content.text(tree.get("name", pathlib.PurePath(file).stem), ("name",)),
        knobs=knobs,
        constraints=constraints,
        equivalence=rules,
        source=file,
    )


def _folder() -> pathlib.Path:
    return next((folder for folder in _FOLDERS if folder.is_dir()), _FOLDERS[0])


def _check_expressions(
    content: Document, knobs: tuple[Knob, ...], constraints: tuple[str, ...]
) -> None:
    """Reject wrong expressions here, where their lines are known."""
    placed: list[tuple[Path, str]] = [(("constraints", i), c) for i, c in enumerate(constraints)]
    placed += [
        (("knobs", knob.name, "condition"), knob.condition)
        for knob in knobs
        if not isinstance(knob, DeviceKnob) and knob.condition
    ]
    kinds = symbol_kinds(knobs)
    for path, text in placed:
        try:
            Expression(text, kinds)
        except ExpressionError as error:
            raise content.error(path, f"{text!r} {error}") from None
