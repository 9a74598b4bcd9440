"""Writer of a search space as commented YAML, which `tuner.space.files.parse` reads back.

Written by hand instead of through a YAML library, to keep order and comments.
"""

from __future__ import annotations

import json
import re
import textwrap
from collections.abc import Mapping

from tuner.space import equivalence
from tuner.space.knobs import ChoiceKnob, DeviceKnob, FloatKnob, IntKnob, Knob
from tuner.space.space import SearchSpace
from tuner.values.configuration import Value

_WIDTH = 100
_PLAIN = re.compile(r"[A-Za-z(][\w .+*/<>=!(),-]*[\w)]")
_NOT_TEXT = re.compile(r"(?i)y|n|yes|no|on|off|true|false|null")


def text(space: SearchSpace, comments: Mapping[str, str]) -> str:
    """Return the file, with comments by knob, `head`, `constraints` or `equivalence`."""
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
