"""The benchmarks start: what they import is there, and their page names each of them.

Figures are not asserted here: a benchmark runs alone on a machine, by hand.
"""

from __future__ import annotations

import pathlib
import re
import subprocess
import sys

import pytest

ROOT = pathlib.Path(__file__).parent.parent
PAGE = (ROOT / "benchmarks" / "README.md").read_text(encoding="utf-8")
LISTED = re.findall(r"^\| \[(\w+\.py)\]", PAGE, flags=re.MULTILINE)


@pytest.mark.parametrize("script", LISTED)
def test_a_benchmark_says_how_it_is_used(script: str) -> None:
    """`--help` ends with 0 and knows `--json`: all that the script needs imports."""
    done = subprocess.run(
        [sys.executable, f"benchmarks/{script}", "--help"],
        cwd=ROOT,
        env={"PYTHONPATH": str(ROOT)},
        capture_output=True,
        text=True,
        check=False,
    )
    assert done.returncode == 0, done.stderr
    assert "--json" in done.stdout


def test_the_page_lists_every_benchmark() -> None:
    """A script with a target (it concludes with an exit code) has its line in the page."""
    scripts = {
        path.name
        for path in (ROOT / "benchmarks").glob("*.py")
        if "sys.exit(main())" in path.read_text(encoding="utf-8")
    }
    assert scripts <= set(LISTED)
