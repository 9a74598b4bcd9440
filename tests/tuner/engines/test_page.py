"""docs/engines.md tells what the code does."""

from __future__ import annotations

import pathlib
import re

from tuner.engines import file as engine_file
from tuner.engines import template
from tuner.engines.description import PROTOCOLS
from tuner.space import files, knob_schema

ROOT = pathlib.Path(__file__).resolve().parents[3]
PAGE = (ROOT / "docs" / "engines.md").read_text(encoding="utf-8")


def test_the_engine_file_of_the_page_is_right() -> None:
    """It is read as it stands, with its search space."""
    (text,) = re.findall(r"```yaml\n(.*?)```", PAGE, flags=re.DOTALL)
    engine = engine_file.parse(text, ROOT / "engine.yaml")
    known = knob_schema.of_command(engine.knobs, beside=engine_file.OWN_KEYS)
    assert len(files.parse(text, file="page", vocabulary=known).knobs) == 3


def test_the_page_has_every_key_place_protocol_and_limit() -> None:
    """With the meaning that the code gives the places."""
    for key in (*engine_file.OWN_KEYS, *PROTOCOLS, *engine_file.SIGNALS, *knob_schema.LIMITS):
        assert key in PAGE, key
    for keys in engine_file._REQUEST_KEYS.values():
        assert all(f"`{key}`" in PAGE for key in keys)
    for place, meaning in template.BUILT_IN.items():
        told = meaning.replace("`port.NAME`", "`{port.NAME}`")
        assert f"| `{{{place}}}` | {told} |" in PAGE, place
