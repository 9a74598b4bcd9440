"""Sizes of the product and of its parts, against those from which the present rooms were planned.

    python benchmarks/house.py [--json]

Counts lines, modules, layers, names and words of `serving/` and `tuner/`; nothing is imported. A second
table says where the lines went, by git. Ends with 1 where a figure is over its limit.
"""

from __future__ import annotations

import argparse
import ast
import collections
import json
import pathlib
import re
import subprocess
import sys
import tomllib
from collections.abc import Iterator, Sequence
from typing import NamedTuple

import result

ROOT = pathlib.Path(__file__).resolve().parents[1]
PRODUCT = ("serving", "tuner")
LONG_MODULE, LONG_FUNCTION = 350, 60
FIRST = "d7b396db"
"""The commit before the product's modules were moved (decision 0023)."""
LINES_AT_FIRST = 97_112
"""Lines of the product then; three quarters are the limit."""
PARTICIPLE = re.compile(
    r"_*([a-z]+ed|[a-z]+ought|sent|built|made|done|drawn|driven|known|taken|given|found|held|kept|left|met|"
    r"put|read|run|said|seen|set|shown|sold|split|spent|told|written|begun|chosen|cut|fallen|grown|hidden|"
    r"learnt|lent|lost|meant|paid|shut|sunk|sworn|thrown|woken|worn|won)"
)
AMBIGUOUS = {
    "need",
    "feed",
    "seed",
    "speed",
    "embed",
    "shed",
    "read",
    "run",
    "put",
    "set",
    "cut",
    "split",
    "shut",
}
"""Verbs and nouns that have the form of a participle."""


class Figure(NamedTuple):
    """A count, what it was when the rooms were planned, and the most that it may be."""

    name: str
    before: int
    found: int
    most: int


class Module(NamedTuple):
    """A file of the product."""

    path: pathlib.Path
    lines: int
    tree: ast.Module


def modules() -> list[Module]:
    """All of the product."""
    found = []
    for package in PRODUCT:
        for path in sorted((ROOT / package).rglob("*.py")):
            text = path.read_text(encoding="utf-8")
            found.append(Module(path.relative_to(ROOT), text.count("\n"), ast.parse(text)))
    return found


def loose(package: str) -> int:
    """Modules directly in a package, but for the two that each package may have."""
    return len([one for one in (ROOT / package).glob("*.py") if not one.name.startswith("__")])


def layers(package: str) -> int:
    """Layers of the import contract of a package."""
    settings = tomllib.loads((ROOT / "pyproject.toml").read_text(encoding="utf-8"))
    return sum(
        len(contract["layers"])
        for contract in settings["tool"]["importlinter"]["contracts"]
        if contract["type"] == "layers" and contract.get("containers") == [package]
    )


def functions(of: Sequence[Module]) -> Iterator[ast.FunctionDef | ast.AsyncFunctionDef]:
    """Functions and methods."""
    for module in of:
        for node in ast.walk(module.tree):
            if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef):
                yield node


def is_participle(name: str) -> bool:
    """Whether a function is named by a participle alone."""
    return PARTICIPLE.fullmatch(name) is not None and name.strip("_") not in AMBIGUOUS


def classes_defined_more_than_once(of: Sequence[Module]) -> dict[str, int]:
    """Public classes by name, with their number."""
    names = collections.Counter(
        node.name
        for module in of
        for node in ast.walk(module.tree)
        if isinstance(node, ast.ClassDef) and not node.name.startswith("_")
    )
    return {name: count for name, count in names.most_common() if count > 1}


def docstring_words(of: Sequence[Module]) -> int:
    """Words of docstrings, those of attributes included."""
    return sum(
        len(node.value.value.split())
        for module in of
        for node in ast.walk(module.tree)
        if isinstance(node, ast.Expr)
        and isinstance(node.value, ast.Constant)
        and isinstance(node.value.value, str)
    )


def figures() -> list[Figure]:
    """All counts."""
    of = modules()
    spans = [(node.end_lineno or 0) - node.lineno + 1 for node in functions(of)]
    return [
        Figure("lines", 83_700, sum(one.lines for one in of), LINES_AT_FIRST * 3 // 4),
        Figure("loose modules in serving/", 34, loose("serving"), 8),
        Figure("loose modules in tuner/", 43, loose("tuner"), 8),
        Figure("bands of serving", 22, layers("serving"), 6),
        Figure("bands of tuner", 26, layers("tuner"), 6),
        Figure(
            "functions named by a participle",
            645,
            sum(is_participle(node.name) for node in functions(of)),
            60,
        ),
        Figure(
            "class names defined more than once", 62, len(classes_defined_more_than_once(of)), 8
        ),
        Figure("words of docstrings", 128_000, docstring_words(of), 80_000),
        Figure(
            f"modules over {LONG_MODULE} lines", 44, sum(one.lines > LONG_MODULE for one in of), 10
        ),
        Figure(
            f"functions over {LONG_FUNCTION} lines",
            18,
            sum(one > LONG_FUNCTION for one in spans),
            5,
        ),
    ]


def changed_files() -> Iterator[tuple[int, int, str, str]]:
    """Lines added and removed since the first commit, and the old and the new path, of each Python file.

    Raises:
        CalledProcessError: the clone does not reach back to that commit.
    """
    fields = iter(
        _git("diff", "--numstat", "-z", "-M40%", "-l9000", FIRST, "--", "*.py").split("\0")
    )
    for field in fields:
        if field:
            added, removed, path = field.split("\t")
            yield int(added), int(removed), path or next(fields), path or next(fields)


def lines_since_first() -> list[tuple[str, ...]]:
    """Rows of the second table: a file whose lines changed is followed where git sees that it was moved.

    Lines that others replace in the same file are rewritten; more removed than added are deleted, and
    more added than removed are new.
    """
    counts: dict[str, collections.Counter[str]] = {
        package: collections.Counter() for package in (*PRODUCT, "both")
    }
    for added, removed, old, new in changed_files():
        before, after = old.split("/")[0], new.split("/")[0]
        if before in PRODUCT and after not in PRODUCT:
            lines = _git("show", f"{FIRST}:{old}").count("\n")
            found = {"moved out": lines}
        elif after in PRODUCT and before not in PRODUCT:
            found = {"new": (ROOT / new).read_text(encoding="utf-8").count("\n")}
        else:
            both = min(added, removed)
            found = {"rewritten": both, "deleted": removed - both, "new": added - both}
        if {before, after} & set(PRODUCT):
            for package in (before if before in PRODUCT else after, "both"):
                counts[package].update(found)
    names = ("deleted", "moved out", "rewritten", "new")
    return [(package, *(f"{of[name]:,}" for name in names)) for package, of in counts.items()]


def _git(*arguments: str) -> str:
    command = ["git", "-C", str(ROOT), *arguments]
    return subprocess.run(command, capture_output=True, check=True, text=True).stdout


def main(argv: Sequence[str] | None = None) -> int:
    """Run the command."""
    options = argparse.ArgumentParser(description=__doc__.split("\n", 1)[0])
    options.add_argument("--json", action="store_true", help="figures alone")
    given = options.parse_args(argv)
    found = figures()
    if given.json:
        print(json.dumps({one.name: one.found for one in found}))
    else:
        rows = [(one.name, f"{one.before:,}", f"{one.found:,}", f"{one.most:,}") for one in found]
        head = ("figure", "planned from", "now", "most")
        print(result.Table(title="serving/ and tuner/", head=head, rows=rows).text())
        try:
            rows = lines_since_first()
        except (OSError, subprocess.CalledProcessError):
            print(f"\nlines since {FIRST}: not known, git does not reach that commit")
        else:
            head = ("of", "deleted", "moved out", "rewritten", "new")
            title = f"\nlines since {FIRST}, of {LINES_AT_FIRST:,}"
            print(result.Table(title=title, head=head, rows=rows).text())
    return 0 if all(one.found <= one.most for one in found) else 1


if __name__ == "__main__":
    sys.exit(main())
