"""Search-space files: reading, lookup and writing (docs/search-spaces.md)."""

from __future__ import annotations

import dataclasses
import json
import pathlib
import re
import textwrap
from collections.abc import Mapping
from types import MappingProxyType

from serving.system import user_files
from tuner import document
from tuner.document import Document, Path
from tuner.errors import InvalidSpace
from tuner.space import equivalence, knob_entry, roles
from tuner.space.expression import Expression, ExpressionError
from tuner.space.knob_schema import SERVING, KnobSchema
from tuner.space.knobs import ChoiceKnob, DeviceKnob, FloatKnob, IntKnob, Knob
from tuner.space.space import SearchSpace, symbol_kinds
from tuner.values.configuration import Value

_FOLDERS = (
    pathlib.Path(__file__).parent / "bundled",  # in the wheel
    pathlib.Path(__file__).parents[2] / "search_spaces",  # in a checkout
)
_KEYS = ("name", "knobs", "constraints", "equivalence")
_WIDTH = 100
_PLAIN = re.compile(r"[A-Za-z(][\w .+*/<>=!(),-]*[\w)]")
_NOT_TEXT = re.compile(r"(?i)y|n|yes|no|on|off|true|false|null")


@dataclasses.dataclass(frozen=True, slots=True, kw_only=True)
class SpaceFile:
    """Search space, with its file's text including comments."""

    space: SearchSpace
    text: str

    def text_of(self, space: SearchSpace) -> str:
        """Return the file's text for `space`, which must derive from this one."""
        return self.text if space is self.space else dump(space)


def read(path: str | pathlib.Path, vocabulary: KnobSchema = SERVING) -> SpaceFile:
    """Read a search-space file, or raise InvalidSpace."""
    text = read_text(path)
    return SpaceFile(space=parse(text, file=str(path), vocabulary=vocabulary), text=text)


def read_text(path: str | pathlib.Path) -> str:
    """Read a file's text, or raise InvalidSpace."""
    try:
        return user_files.text(path)
    except OSError as error:
        hint = f"; bundled spaces are {', '.join(bundled_names())}"
        raise InvalidSpace(str(path), "", f"{error.strerror or error}{hint}") from error
    except UnicodeDecodeError as error:
        raise InvalidSpace(str(path), "", f"not text in UTF-8: {error.reason}") from error


def load_bundled(model_name: str) -> SearchSpace | None:
    """Return a bundled model's space, or None if there is none."""
    if not re.fullmatch(r"[A-Za-z0-9][A-Za-z0-9_-]*", model_name):
        return None
    path = _folder() / f"{model_name}.yaml"
    return read(path).space if path.is_file() else None


def bundled_names() -> tuple[str, ...]:
    """Return the names that `load_bundled` knows."""
    return tuple(sorted(path.stem for path in _folder().glob("*.yaml")))


def parse(text: str, file: str, vocabulary: KnobSchema = SERVING) -> SearchSpace:
    """Parse a search space; an InvalidSpace names `file`, the line and the nearest valid name."""
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
    _check_roles(content, knobs)
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


def _check_roles(content: Document, knobs: tuple[Knob, ...]) -> None:
    """Raise for a declared role that another knob has too, even if only by its name."""
    for knob in reversed(knobs):
        if not isinstance(knob, IntKnob | FloatKnob) or knob.role is None:
            continue
        for other in knobs:
            if other is not knob and roles.role_of(other) == knob.role:
                text = f"{knob.role!r} is the role of {other.name} too; only one knob can have it"
                raise content.error(("knobs", knob.name, "role"), text)


def _check_expressions(
    content: Document, knobs: tuple[Knob, ...], constraints: tuple[str, ...]
) -> None:
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


def dump(space: SearchSpace, comments: Mapping[str, str] = MappingProxyType({})) -> str:
    """Return a space as YAML for `parse`, with its notes at the top.

    `comments` are keyed by knob, or by `head` (for the top), `constraints` or `equivalence`.
    """
    lines = _comment(comments.get("head", ""), "")
    lines += [line for note in space.notes for line in _comment(note, "")]
    lines += [f"name: {_scalar(space.name)}"]
    lines += ["", "knobs:"]
    for i, knob in enumerate(space.knobs):
        lines += [""] if i and comments else []
        lines += [*_comment(comments.get(knob.name, ""), "  "), f"  {knob.name}:"]
        lines += [f"    {key}: {value}" for key, value in _fields(knob).items()]
    if space.constraints:
        lines += ["", *_comment(comments.get("constraints", ""), ""), "constraints:"]
        lines += [f"  - {_scalar(constraint)}" for constraint in space.constraints]
    if space.equivalence != equivalence.RULES or "equivalence" in comments:
        lines += ["", *_comment(comments.get("equivalence", ""), "")]
        lines += [f"equivalence: {_list(space.equivalence)}"]
    return "\n".join(lines) + "\n"


def _fields(knob: Knob) -> dict[str, str]:
    if isinstance(knob, DeviceKnob):
        return {"type": "int", "choices": "device", "points": str(knob.points)} | _unit(knob.unit)
    if isinstance(knob, ChoiceKnob):
        fields = {"type": "choice", "choices": _list(knob.choices)}
    else:
        fields = _number_fields(knob)
    fields |= {"default": _scalar(knob.default)}
    if knob.condition:
        fields["condition"] = _scalar(knob.condition)
    return fields | _unit(knob.unit)


def _number_fields(knob: IntKnob | FloatKnob) -> dict[str, str]:
    fields = {"type": "int" if isinstance(knob, IntKnob) else "float"}
    if knob.grid:
        fields["choices"] = _list((0, *knob.grid) if knob.zero else knob.grid)
    else:
        fields["range"] = _list((knob.low, knob.high))
    if knob.scale != "linear":
        fields["scale"] = knob.scale
    if knob.step is not None:
        fields["step"] = _scalar(knob.step)
    if knob.points is not None:
        fields["points"] = str(knob.points)
    if knob.zero and not knob.grid:
        fields["zero"] = "true"
    if knob.role is not None:
        fields["role"] = knob.role
    return fields


def _unit(unit: str) -> dict[str, str]:
    return {"unit": _scalar(unit)} if unit else {}


def _list(values: tuple[Value, ...]) -> str:
    return "[" + ", ".join(_scalar(value) for value in values) + "]"


def _scalar(value: Value) -> str:
    if isinstance(value, bool):
        return "true" if value else "false"
    if isinstance(value, float):
        digits = repr(value)
        # YAML 1.1 reads 1e-05 as text: its numbers need a point.
        return digits if "e" not in digits or "." in digits else digits.replace("e", ".0e")
    if isinstance(value, str) and (not _PLAIN.fullmatch(value) or _NOT_TEXT.fullmatch(value)):
        # YAML does not join the surrogate pairs of JSON's \u escapes.
        return json.dumps(value, ensure_ascii=not value.isprintable())
    return str(value)


def _comment(words: str, indent: str) -> list[str]:
    lead = f"{indent}# "
    shown = ["".join(c if c.isprintable() else "?" for c in line) for line in words.splitlines()]
    wrapped = [
        textwrap.wrap(line, _WIDTH, initial_indent=lead, subsequent_indent=lead) for line in shown
    ]
    return [line for lines in wrapped for line in lines]
