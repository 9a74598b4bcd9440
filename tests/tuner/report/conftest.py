"""What tests of pages share: a strict reading of their HTML, and studies of every awkward kind."""

import dataclasses
import functools
import html.parser
import json
import re

import pytest

from tests.fakes import studies
from tuner.report import page
from tuner.values.round_evaluation import FailureCount

VOID = {"meta", "br", "hr", "wbr"}


class Page(html.parser.HTMLParser):
    """A parsed page: its text, attributes, ids and the JSON of its figures; tags must be balanced."""

    def __init__(self, text):
        """Parse all but the code of Plotly, which is most of a page."""
        text = "".join(re.split(r"(?s)\n<script>\n/\*\*\n\* plotly.*?\n</script>\n", text))
        super().__init__(convert_charrefs=True)
        self.open, self.attributes, self.texts = [], [], []
        self.scripts, self.rows, self.tags = {}, [], []
        self.feed(text)
        self.close()
        assert self.open == []

    def handle_starttag(self, tag, attrs):
        self.tags.append(tag)
        self.attributes += attrs
        if tag == "tr":
            self.rows.append([])
        if tag in {"td", "th"} and self.rows:
            self.rows[-1].append("")
        if tag not in VOID:
            self.open.append((tag, dict(attrs)))

    def handle_endtag(self, tag):
        assert self.open.pop()[0] == tag

    def handle_data(self, data):
        tag, attributes = self.open[-1] if self.open else ("", {})
        if tag == "script":
            self.scripts[attributes.get("id", f"code-{len(self.scripts)}")] = data
        elif tag != "style":
            self.texts.append(data)
            if any(open_tag in {"td", "th"} for open_tag, _ in self.open):
                self.rows[-1][-1] += data

    @property
    def text(self):
        return " ".join(" ".join(self.texts).split())

    @property
    def figures(self):
        """Figures by name."""
        return {
            name.removesuffix("-data"): json.loads(text)
            for name, text in self.scripts.items()
            if name.endswith("-data")
        }


@pytest.fixture
def read_page():
    return Page


def _deaths(**counts):
    return {
        role: FailureCount(evaluations=5, failed=count, reason="peak 64 MiB" if count else "")
        for role, count in counts.items()
    }


def _edge_studies():
    whole = studies.study(seed=5, trials=14)
    return {
        "whole": studies.study(),
        "throughput": studies.study(seed=2, objective="throughput"),
        "p99": studies.study(seed=4, objective="p99"),
        "no verdict": studies.study(seed=3, has_verdict=False, has_records=False),
        "one trial": studies.study(trials=1),
        "all failed": studies.all_failed(),
        "no trial": dataclasses.replace(studies.all_failed(), trials=()),
        "default failed": dataclasses.replace(
            whole,
            verdict=None,
            failure_counts={},
            trials=(
                dataclasses.replace(
                    whole.trials[0],
                    measurement=None,
                    objective=None,
                    outcome=studies.all_failed(trials=1).trials[0].outcome,
                ),
                *whole.trials[1:],
            ),
        ),
        "best dies afresh": dataclasses.replace(whole, failure_counts=_deaths(default=0, best=4)),
        "both die afresh": dataclasses.replace(
            whole, verdict=None, failure_counts=_deaths(default=5, best=5)
        ),
        "no knobs": dataclasses.replace(whole, knobs=(), environment={}, settings={}, notes=()),
    }


EDGE_STUDIES = _edge_studies()


@pytest.fixture(params=EDGE_STUDIES)
def edge_study(request):
    """Every awkward study in turn."""
    return EDGE_STUDIES[request.param]


@functools.cache
def _rendered(name):
    return page.render(EDGE_STUDIES[name])


@pytest.fixture(params=EDGE_STUDIES)
def edge_page(request):
    """The page of every awkward study in turn, rendered once."""
    return _rendered(request.param)
