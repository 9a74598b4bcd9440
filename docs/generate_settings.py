"""Writes docs/settings.md from `serving/settings/`: every knob with meaning, range and default.

In: `serving.settings.SETTINGS` and the docstring under each field, read from the source. Out: one
Markdown page. `--check` writes nothing and ends with 1 when the page differs from the code; a test
runs it.
"""

from __future__ import annotations

import argparse
import ast
import dataclasses
import pathlib
import sys
from typing import Any

from serving import settings
from serving.settings.setting import SettingSpec

PAGE = pathlib.Path(__file__).with_name("settings.md")

HEAD = """\
# Settings

<!-- Written by docs/generate_settings.py (`make docs`); a test holds it equal to the code. -->

Every setting of the serving core has one dotted name, the same in settings files, search spaces,
studies, reports and exports.
Later sources override earlier ones:

1. the defaults below,
2. a YAML file: `python -m serving --model resnet --settings settings.yaml`,
3. the environment: `LUTHIER_BATCHING__MAX_SIZE=16`,
4. the command line: `python -m serving --model resnet --set batching.max_size=16`,
5. live changes saved in `server.state_dir`, unless the start gives that setting another value than
   before ([versions](versions.md)).

`models.NAME.` before a setting is for one model: `--set models.resnet.replica.count=2`, or in a
file:

```yaml
batching: {max_size: 8}       # for all models
models:
  resnet:
    replica: {count: 2}       # for this one
```

Change live settings without a failed request by `PATCH /admin/settings` on the admin port.
The others are fixed when the server starts.
An unknown name or a value out of range is an error of one line with the source, the setting and the
allowed values.
`models.NAME` may name a model that is deployed later; until then the log at the start and `warnings`
in the response to the `PATCH` list it.
"""

TABLE_HEAD = """
| setting | allowed | default | live | meaning |
|---|---|---|---|---|
"""


def field_texts(source: str) -> dict[str, dict[str, str]]:
    """The docstring under each field of each class: class name -> field name -> text."""
    texts: dict[str, dict[str, str]] = {}
    for node in ast.parse(source).body:
        if not isinstance(node, ast.ClassDef):
            continue
        fields = texts.setdefault(node.name, {})
        for field, below in zip(node.body, node.body[1:], strict=False):
            if not isinstance(field, ast.AnnAssign) or not isinstance(field.target, ast.Name):
                continue
            if isinstance(below, ast.Expr) and isinstance(below.value, ast.Constant):
                fields[field.target.id] = " ".join(str(below.value.value).split())
    return texts


def page() -> str:
    """The whole page."""
    parts = [HEAD]
    for group in dataclasses.fields(settings.ServingSettings):
        if group.name == "models":  # the same settings again, for single models
            continue
        kind: Any = group.default_factory
        source = pathlib.Path(sys.modules[kind.__module__].__file__ or "")
        texts = field_texts(source.read_text(encoding="utf-8"))
        parts.append(f"\n## {group.name}\n\n{kind.__doc__.strip().splitlines()[0]}\n{TABLE_HEAD}")
        for field in dataclasses.fields(kind):
            knob = settings.SETTINGS[f"{group.name}.{field.name}"]
            meaning = texts[kind.__name__].get(field.name)
            if meaning is None:
                raise SystemExit(f"{source}: {knob.name} has no docstring below it")
            parts.append(_row(knob, meaning))
    return "".join(parts)


def _row(knob: SettingSpec, meaning: str) -> str:
    default = "none" if knob.default is None else f"`{_plain(knob.default)}`"
    live = "yes" if knob.live else "no"
    cells = (f"`{knob.name}`", _allowed(knob), default, live, meaning)
    return "| " + " | ".join(cell.replace("|", "\\|") for cell in cells) + " |\n"


def _allowed(knob: SettingSpec) -> str:
    choices = ", ".join(f"`{choice}`" for choice in knob.choices)
    if not knob.kinds:
        return choices
    if knob.low is None or knob.high is None:
        return knob.describe_allowed()
    span = f"{_plain(knob.low)} to {_plain(knob.high)} {knob.unit}".strip()
    span += f", {choices}" if choices else ""
    return span + (", or none" if knob.optional else "")


def _plain(value: object) -> str:
    return f"{value:.0f}" if isinstance(value, float) and value.is_integer() else str(value)


def main() -> int:
    """Write the page, or compare it with the code."""
    parser = argparse.ArgumentParser(description="write docs/settings.md from the code")
    parser.add_argument("--check", action="store_true", help="end with 1 when the page is stale")
    arguments = parser.parse_args()
    text = page()
    if not arguments.check:
        PAGE.write_text(text, encoding="utf-8")
        return 0
    if PAGE.exists() and PAGE.read_text(encoding="utf-8") == text:
        return 0
    sys.stderr.write("docs/settings.md differs from serving/settings/: run `make docs`\n")
    return 1


if __name__ == "__main__":
    sys.exit(main())
