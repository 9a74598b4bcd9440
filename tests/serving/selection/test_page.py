"""The program in docs/selection.md runs and prints what the page shows."""

from __future__ import annotations

import pathlib
import re
import subprocess
import sys

ROOT = pathlib.Path(__file__).parents[3]


def test_the_program_of_the_page_prints_what_the_page_shows() -> None:
    """The block of code above `prints`, run as a program, and the block below it."""
    page = (ROOT / "docs" / "selection.md").read_text(encoding="utf-8")
    found = re.search(
        r"```python\n((?:(?!```).)*)```\n\nprints\n\n```\n(.*?)```", page, flags=re.DOTALL
    )
    assert found
    done = subprocess.run(
        [sys.executable, "-c", found[1]],
        cwd=ROOT,
        env={"PYTHONPATH": str(ROOT)},
        capture_output=True,
        text=True,
        check=False,
    )
    assert done.returncode == 0, done.stderr
    assert done.stdout == found[2]
