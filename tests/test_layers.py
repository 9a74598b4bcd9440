"""The direction of imports: the contracts in pyproject.toml, and what import-linter cannot see."""

from __future__ import annotations

import ast
import pathlib
import re
import subprocess
import sys
import tomllib
from collections.abc import Iterator

import pytest

ROOT = pathlib.Path(__file__).parent.parent
FILES = sorted(path for name in ("serving", "tuner") for path in (ROOT / name).rglob("*.py"))

BY_NAME = {"pynvml": "serving/accelerator"}
"""Vendors that are imported by a name in a string, and the room that may do it."""


def contracts() -> list[dict[str, object]]:
    """The import-linter contracts of this repository."""
    text = (ROOT / "pyproject.toml").read_text(encoding="utf-8")
    found: list[dict[str, object]] = tomllib.loads(text)["tool"]["importlinter"]["contracts"]
    return found


def rooms(container: str) -> list[str]:
    """The modules that the layers of a package name."""
    for contract in contracts():
        if contract.get("containers") == [container]:
            layers = contract["layers"]
            assert isinstance(layers, list)
            return re.findall(r"\w+", " ".join(layers))
    raise AssertionError(f"no layers contract for {container}")


def inner_imports(tree: ast.AST) -> Iterator[tuple[int, str]]:
    """(line, module) of each import that stands inside a function."""
    for function in ast.walk(tree):
        if not isinstance(function, ast.FunctionDef | ast.AsyncFunctionDef):
            continue
        for node in ast.walk(function):
            if isinstance(node, ast.Import):
                yield from ((node.lineno, alias.name) for alias in node.names)
            elif isinstance(node, ast.ImportFrom):
                yield node.lineno, node.module or ""


def imports_by_name(tree: ast.AST) -> Iterator[str]:
    """Modules that `importlib.import_module` is given as a literal."""
    for node in ast.walk(tree):
        if isinstance(node, ast.Call) and ast.unparse(node.func).endswith("import_module"):
            for argument in node.args:
                if isinstance(argument, ast.Constant) and isinstance(argument.value, str):
                    yield argument.value


def test_every_contract_of_imports_is_kept() -> None:
    """import-linter finds no import against the direction."""
    script = "import sys; from importlinter.cli import lint_imports; sys.exit(lint_imports())"
    done = subprocess.run(
        [sys.executable, "-c", script], cwd=ROOT, capture_output=True, text=True, check=False
    )
    assert done.returncode == 0, done.stdout[-4000:] + done.stderr[-4000:]


@pytest.mark.parametrize("path", FILES, ids=lambda path: str(path.relative_to(ROOT)))
def test_no_import_of_our_own_is_hidden_in_a_function(path: pathlib.Path) -> None:
    """Imports of our own modules stand at the top, where the direction can be read."""
    hidden = [
        f"line {line}: {module}"
        for line, module in inner_imports(ast.parse(path.read_text(encoding="utf-8")))
        if module.split(".")[0] in {"serving", "tuner"}
    ]
    assert hidden == []


@pytest.mark.parametrize("vendor", BY_NAME)
def test_a_vendor_imported_by_name_stays_in_its_room(vendor: str) -> None:
    """A module named in a string is invisible to import-linter: only the listed room names it."""
    users = {
        path.relative_to(ROOT).parent.as_posix()
        for path in FILES
        if vendor in imports_by_name(ast.parse(path.read_text(encoding="utf-8")))
    }
    assert users <= {BY_NAME[vendor]}


@pytest.mark.parametrize("container", ["serving", "tuner"])
def test_the_page_of_the_architecture_names_every_room(container: str) -> None:
    """The contracts and docs/architecture.md tell of the same rooms."""
    page = (ROOT / "docs" / "architecture.md").read_text(encoding="utf-8")
    section = re.split(r"^## ", page, flags=re.MULTILINE)
    text = next(part for part in section if part.startswith(f"Packages of `{container}/`"))
    there = {path.stem for path in (ROOT / container).iterdir()}
    missing = [room for room in rooms(container) if room in there and f"`{room}" not in text]
    assert missing == []
