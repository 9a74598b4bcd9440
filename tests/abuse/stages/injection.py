"""N: names and notes that try to leave the place where a report or an export writes them.

Every hostile text stands in a study's name, notes, choices, reasons and verdict, in a comparison and in a
contest, and in every export. A page must have the tags that it has with a harmless text, an export the
values that it has but for that text, and a script must be one that `sh -n` reads.
"""

from __future__ import annotations

import dataclasses
import html.parser
import random
import re
import subprocess
from collections.abc import Callable
from typing import Any

import yaml

from tests.abuse.cases import Case
from tests.abuse.stage import Context, Stage
from tests.abuse.subject import Subject
from tests.fakes import contests, studies

HARMLESS = "harmless"
_CODE = re.compile(r"(?s)<script>\n/\*\*\n\* plotly.*?\n</script>")
FIXED = (
    '</script><script>alert(1)</script>', '<img src=x onerror="a\'">', "<!--", "-->",
    "]]>", "<![CDATA[", "</style><svg onload=a()>",
    "&lt;b&gt;", "&#x3c;b&#x3e;", "javascript:alert(1)", "a\nreplica: {count: 64}", "a\r\nb: c",
    "a\u2028b", "a\u2029b", "a\x85b",
    "$(id)", "`id`", "${HOME}", "$$HOME", "'; id; '", '"; id; "', "\\", "\\'", "# no comment", "*/ evil /*",
    "%(x)s", "{{7*7}}", "{% x %}",
    "!!python/object/apply:os.system [id]", "&a [*a, *a]", "- a\n- b", "? a\n: b",
    "---\na: b", "...\n", "\x1b[31m", "\x00", "\x7f", "\ufeff",
    "\ud800", "\u202eabc", "a" * 5000, "模型", "EOF\nid\n", "<<EOF", ">out",
    "|id", "&& id", "; id", "\t", " ", "", "null", "true", "0x10",
    "1e3", "~", "@", "%", "2026-01-01", "=cmd()", "<a href=//x>", "<base href=//x>",
    "<meta http-equiv=refresh>", "onload=a",
)  # fmt: skip
_PIECES = (
    "<",
    ">",
    "&",
    '"',
    "'",
    "\n",
    "\r",
    "$",
    "`",
    "\\",
    "{",
    "}",
    "#",
    ":",
    "- ",
    "script",
    "img",
    "\x00",
    "\u2028",
    "\ud800",
    "a",
    " ",
    ";",
    "|",
    "*",
    "!",
    "%",
    "]]",
    "--",
    "/",
)


class _Tags(html.parser.HTMLParser):
    """The tags of a page with the names of their attributes, in order."""

    def __init__(self, text: str) -> None:
        super().__init__()
        self.found: list[tuple[str, tuple[str, ...]]] = []
        self.feed(_CODE.sub("<script></script>", text))
        self.close()

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        self.found.append((tag, tuple(name for name, _ in attrs)))


def texts(rng: random.Random, count: int) -> list[str]:
    """The fixed ones, then random ones."""
    made = ["".join(rng.choices(_PIECES, k=rng.randrange(1, 24))) for _ in range(count)]
    return [*FIXED, *made][:count]


def pages() -> dict[str, Callable[[str], str]]:
    """What makes each page with a text in it."""
    from tuner.report import page  # noqa: PLC0415
    from tuner.report.benchmark import page as benchmark_page  # noqa: PLC0415
    from tuner.report.comparison import page as comparison_page  # noqa: PLC0415

    study = studies.study(trials=12)
    record = studies.comparison()
    contest = contests.record(tables=2)

    def of_study(text: str) -> str:
        knob = dataclasses.replace(
            study.knobs[-1], unit=text, values=(text or "b", "c"), default=text or "b"
        )
        trials = tuple(
            dataclasses.replace(trial, outcome=dataclasses.replace(trial.outcome, reason=text))
            if trial.measurement is None
            else trial
            for trial in study.trials
        )
        verdict = dataclasses.replace(study.verdict, text=text)
        changed = dataclasses.replace(
            study, name=text, model=text, sampler=text, knobs=(*study.knobs[:-1], knob), trials=trials,
            notes=(text,), verdict=verdict, environment={"machine": {"name": text}}, settings={"notes": [text]},
        )  # fmt: skip
        return page.render(changed)

    def of_contest(text: str) -> str:
        table = dataclasses.replace(contest.tables[0], name=text, notes=(text,))
        return benchmark_page.render(
            dataclasses.replace(contest, tables=(table,), over_tables=(), name=text)
        )

    return {
        "report": of_study,
        "comparison": lambda text: comparison_page.render(dataclasses.replace(record, name=text)),
        "contest": of_contest,
    }


def exports() -> dict[str, Callable[[str], dict[str, str]]]:
    """What makes the files of each target with a text in them."""
    from serving import zoo  # noqa: PLC0415
    from tuner import export  # noqa: PLC0415

    study, card = studies.study(trials=12), zoo.find("resnet")

    def of(target: str) -> Callable[[str], dict[str, str]]:
        def made(text: str) -> dict[str, str]:
            verdict = dataclasses.replace(study.verdict, text=text)
            changed = dataclasses.replace(study, name=text, notes=(text,), verdict=verdict)
            found = export.export(changed, target, card=card)
            return {name: content for name, content in found.items() if isinstance(content, str)}

        return made

    return {target: of(target) for target in export.FORMATS if target not in export.WITHOUT_MODEL}


def wrong_page(make: Callable[[str], str], text: str, plain: list[Any]) -> str | None:
    """What a page is changed by a text; None: nothing but the text."""
    made = make(text)
    if "\ud800" not in text:
        made.encode()
    given = _Tags(made).found
    return (
        None if _shape(given) == _shape(plain) else f"other tags: {set(given) ^ set(plain)!r:.200}"
    )


def _shape(tags: list[tuple[str, tuple[str, ...]]]) -> set[tuple[str, tuple[str, ...]]]:
    """Which tags with which attributes there are: a text may make a line more or less."""
    return set(tags)


def wrong_files(
    make: Callable[[str], dict[str, str]], text: str, plain: dict[str, str]
) -> str | None:
    """What the files of an export are changed by a text; None: nothing but the text."""
    files = make(text)
    if sorted(files) != sorted(plain):
        return f"other files: {sorted(set(files) ^ set(plain))}"
    for name, content in files.items():
        if name.endswith((".yaml", ".yml")):
            if _shape_of(content) != _shape_of(plain[name]):
                return f"{name} is another document"
        elif name.endswith(".sh"):
            done = subprocess.run(
                ["sh", "-n"],
                input=content.encode("utf-8", "surrogatepass"),
                capture_output=True,
                check=False,
            )
            if done.returncode:
                return f"{name}: sh -n says {done.stderr[:100]!r}"
            if _commands(content) != _commands(plain[name]):
                return f"{name} has other commands"
        elif _commands(content) != _commands(plain[name]) and name.endswith((".conf", ".pbtxt")):
            return f"{name} has other lines"
    return None


def _shape_of(content: str) -> object:
    def shape(value: object) -> object:
        if isinstance(value, dict):
            return {str(key): shape(inner) for key, inner in value.items()}
        if isinstance(value, list):
            return [shape(inner) for inner in value]
        return type(value).__name__

    return [shape(document) for document in yaml.safe_load_all(content)]


def _commands(content: str) -> int:
    """Lines that are neither empty nor comments."""
    return sum(
        bool(line.strip()) and not line.lstrip().startswith("#") for line in content.splitlines()
    )


def run(context: Context) -> None:
    """Every text in every page and export."""
    count = context.size(200, 20)
    hostile = texts(context.rng, count)
    for name, make in pages().items():
        plain = _Tags(make(HARMLESS)).found
        for text in hostile if name == "report" else hostile[: count // 4 or 1]:
            wrong = _attempt(
                lambda make=make, text=text, plain=plain: wrong_page(make, text, plain)
            )  # type: ignore[misc]
            context.case(
                f"{name}, {text!r:.60}", wrong, text.encode("utf-8", "surrogatepass"), what=name
            )
    for name, files in exports().items():
        plain_files = files(HARMLESS)
        for text in hostile:
            wrong = _attempt(
                lambda files=files, text=text, plain=plain_files: wrong_files(files, text, plain)
            )  # type: ignore[misc]
            context.case(
                f"{name}, {text!r:.60}", wrong, text.encode("utf-8", "surrogatepass"), what=name
            )


def _attempt(check: Callable[[], str | None]) -> str | None:
    try:
        return check()
    except Exception as error:  # whatever it is, a text caused it
        return f"{type(error).__name__}: {error}"


def replay(case: Case, subject: Subject) -> str | None:
    """Try a stored text again."""
    text, what = case.data.decode("utf-8", "surrogatepass"), case.replay["what"]
    if what in pages():
        make = pages()[what]
        return _attempt(lambda: wrong_page(make, text, _Tags(make(HARMLESS)).found))
    files = exports()[what]
    return _attempt(lambda: wrong_files(files, text, files(HARMLESS)))


STAGE = Stage(
    name="N",
    title="texts in reports and exports",
    half=1,
    run=run,
    is_quick=True,
    limit_s=300,
    quick_limit_s=60,
    spec=None,
)
