"""The pages cannot drift from the code: links, commands, options, settings, generated pages."""

from __future__ import annotations

import argparse
import pathlib
import re
import subprocess
import sys
from collections.abc import Iterator

import pytest

from serving.app.command import parser as serving_parser
from serving.settings import SETTINGS
from serving.settings.sources import ENVIRONMENT_PREFIX
from tuner.cli import main

ROOT = pathlib.Path(__file__).parent.parent
FOLDERS = ("docs", "runs", "docker", "benchmarks", "examples", "search_spaces", "zoo")


def tracked() -> list[pathlib.Path]:
    """Files that are part of the repository: known to git, or else all beside the ignored ones."""
    command = ["git", "ls-files", "--cached", "--others", "--exclude-standard", "-z"]
    listed = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, check=True).stdout
    return [ROOT / name for name in listed.split("\0") if name and (ROOT / name).is_file()]


FILES = tracked()
PAGES = [path for path in FILES if path.suffix == ".md"]
TEXTS = [
    path
    for path in FILES
    if path.suffix in {".md", ".py", ".yaml", ".toml", ".sh", ".lua", ""}
    and path.stat().st_size < 1_000_000
]


def name(path: pathlib.Path) -> str:
    """A path as it is read in a test's id."""
    return path.relative_to(ROOT).as_posix()


def anchors(text: str) -> set[str]:
    """The anchors that GitHub gives a page's headings."""
    headings = re.findall(r"^#+ +(.+?)\s*$", text, flags=re.MULTILINE)
    return {re.sub(r"[^\w\- ]", "", heading.lower()).replace(" ", "-") for heading in headings}


def links(text: str) -> Iterator[str]:
    """Targets of links and pictures, in Markdown and in HTML."""
    plain = re.sub(r"```.*?```", "", text, flags=re.DOTALL)
    yield from re.findall(r"\]\(([^)\s]+)\)", plain)
    yield from re.findall(r"(?:src|href|srcset)=\"([^\"\s]+)\"", plain)


def commands(text: str) -> Iterator[str]:
    """Command lines in fenced blocks and in code spans, one per line."""
    fences = re.findall(r"```[^\n]*\n(.*?)```", text, flags=re.DOTALL)
    for block in fences:
        yield from (line.strip().removeprefix("$ ") for line in block.splitlines())
    outside = re.sub(r"```.*?```", "", text, flags=re.DOTALL)
    yield from re.findall(r"`([^`\n]+)`", outside)


def options_of(parser: argparse.ArgumentParser) -> set[str]:
    """Every option string of a parser."""
    return {text for action in parser._actions for text in action.option_strings}


def mentioned(command: str, program: str) -> tuple[str, set[str]] | None:
    """(first word after the program, long options), when the line calls the program."""
    match = re.match(rf"(?:\.venv/bin/)?{re.escape(program)}(?:\s+(.*))?$", command)
    if match is None:
        return None
    words = (match[1] or "").split()
    first = words[0] if words and not words[0].startswith("-") else ""
    return first, set(re.findall(r"(?<!\S)\[?(--[a-z][a-z-]*)", match[1] or ""))


@pytest.mark.parametrize("page", PAGES, ids=name)
def test_every_relative_link_leads_somewhere(page: pathlib.Path) -> None:
    """A link inside the repository names a file that exists, and a heading that exists."""
    text = page.read_text(encoding="utf-8")
    broken = []
    for link in links(text):
        if re.match(r"[a-z]+:", link):
            continue
        target, _, anchor = link.partition("#")
        path = (page.parent / target).resolve() if target else page
        is_there = path.exists() and path.is_relative_to(ROOT)
        if is_there and anchor and path.suffix == ".md":
            is_there = anchor in anchors(path.read_text(encoding="utf-8"))
        if not is_there:
            broken.append(link)
    assert broken == []


@pytest.mark.parametrize("page", PAGES, ids=name)
def test_every_option_of_tune_in_the_pages_exists(page: pathlib.Path) -> None:
    """A `tune` line shows sub-commands and options that its parser knows."""
    known = {name: options_of(main.parser_of(name)) for name in main.COMMANDS}
    known[""] = options_of(main.parser_of(None))
    for command in commands(page.read_text(encoding="utf-8")):
        if found := mentioned(re.sub(r"^luthier (tune *)?(?!serve)", "tune ", command), "tune"):
            first, options = found
            assert first in known, command
            assert options <= known[first], command


@pytest.mark.parametrize("page", PAGES, ids=name)
def test_every_option_of_the_server_in_the_pages_exists(page: pathlib.Path) -> None:
    """A `python -m serving` line shows options that its parser knows."""
    known = options_of(serving_parser())
    for command in commands(page.read_text(encoding="utf-8")):
        named = re.sub(r"^luthier serve\b", "python -m serving", command)
        if found := mentioned(named, "python -m serving"):
            assert found[1] <= known, command


@pytest.mark.parametrize("page", PAGES, ids=name)
def test_every_setting_in_the_pages_exists(page: pathlib.Path) -> None:
    """What is set by `--set` or in the environment is a knob."""
    text = page.read_text(encoding="utf-8")
    knobs = set(re.findall(r"--set (?:models\.[a-z]+\.)?([a-z_.]+)=", text))
    for group, field in re.findall(rf"{ENVIRONMENT_PREFIX}([A-Z]+)__([A-Z_]+)=", text):
        knobs.add(f"{group}.{field}".lower())
    assert knobs <= set(SETTINGS)


@pytest.mark.parametrize("page", PAGES, ids=name)
def test_every_verb_of_make_in_the_pages_exists(page: pathlib.Path) -> None:
    """A `make` line shows a target of the Makefile."""
    makefile = (ROOT / "Makefile").read_text(encoding="utf-8")
    targets = set(re.findall(r"^([a-z]+):", makefile, flags=re.MULTILINE))
    for command in commands(page.read_text(encoding="utf-8")):
        if match := re.match(r"make ([a-z]+)\b", command):
            assert match[1] in targets, command


@pytest.mark.parametrize("script", ["generate_settings", "generate_architecture"])
def test_a_page_made_from_the_code_is_fresh(script: str) -> None:
    """The page or picture is what its generator writes today."""
    done = subprocess.run(
        [sys.executable, f"docs/{script}.py", "--check"],
        cwd=ROOT,
        env={"PYTHONPATH": str(ROOT)},
        capture_output=True,
        text=True,
        check=False,
    )
    assert done.returncode == 0, done.stderr


@pytest.mark.parametrize("folder", FOLDERS)
def test_every_page_is_reached_from_the_readme_or_the_index(folder: str) -> None:
    """No page stands alone: a page links to it, or to its folder's README."""
    linked: set[pathlib.Path] = set()
    for page in PAGES:
        for link in links(page.read_text(encoding="utf-8")):
            target = (page.parent / link.partition("#")[0]).resolve()
            linked |= {target, target.parent} if target.name == "README.md" else {target}
    pages = [page for page in PAGES if name(page).startswith(f"{folder}/")]
    alone = [name(page) for page in pages if page not in linked and page.parent not in linked]
    assert alone == []


@pytest.mark.parametrize("path", TEXTS, ids=name)
def test_every_page_that_a_file_speaks_of_exists(path: pathlib.Path) -> None:
    """A comment, an error text or a page that names docs/...md names a page that is there."""
    pages = re.findall(r"\bdocs/[\w/-]+\.md\b", path.read_text(encoding="utf-8"))
    assert [page for page in pages if not (ROOT / page).exists()] == []


@pytest.mark.parametrize("path", TEXTS, ids=name)
def test_no_file_speaks_of_the_machine_it_was_written_on(path: pathlib.Path) -> None:
    """No absolute path of somebody's machine, no host of a package registry."""
    text = path.read_text(encoding="utf-8")
    wrong = re.compile(
        r"(?<![\w./:}])/(?:work|root|home)/\w"
        r"|\b(?:pypi|pythonhosted|npmjs)\.org\b|\b(?:deb|security)\.debian\.org\b"
    )
    assert wrong.findall(text) == [] or path == pathlib.Path(__file__)
