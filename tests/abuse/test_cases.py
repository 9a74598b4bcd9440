"""Cases that failed in the campaign once: each is tried again, against a server that is started as then."""

import contextlib
import functools
import importlib.util
import pathlib
import tempfile

import pytest

from tests.abuse import cases
from tests.abuse.stages import REPLAYS, SPECS, STAGES
from tests.abuse.subject import Subject

STORED = list(cases.stored())
NEEDS = {stage.name: stage.modules for stage in STAGES}


@pytest.fixture(scope="module")
def subjects():
    """A server for each stage that has a case, started when the first of them comes."""
    with contextlib.ExitStack() as owns:

        @functools.cache
        def started(stage):
            folder = owns.enter_context(tempfile.TemporaryDirectory(prefix="abuse-", dir="/tmp"))
            return owns.enter_context(Subject(pathlib.Path(folder), SPECS[stage], is_pinned=False))

        yield started


@pytest.mark.parametrize("path", STORED, ids=[f"{path.parent.name}/{path.stem}" for path in STORED])
def test_a_case_that_failed_once_is_as_promised(path, subjects):
    """What a stage found wrong is not so any more, and the server serves on."""
    case = cases.read(path)
    missing = [name for name in NEEDS[case.stage] if importlib.util.find_spec(name) is None]
    if missing:
        pytest.skip(f"not installed here: {', '.join(missing)}; `make abuse` has it")
    subject = subjects(case.stage)
    start = subject.log_bytes()
    assert REPLAYS[case.stage](case, subject) is None
    assert subject.ready_within(10.0) is not None
    assert "Traceback (most recent call last)" not in subject.log_text(start)


def test_a_case_comes_back_as_it_was_kept(tmp_path):
    """Name, bytes and what the stage needs, short or long; equal ones are one file."""
    for data in (b"\x00\xff" * 5, b"a" * 100_000):
        told = cases.keep("C", "Two Lengths, whole", data, {"form": "whole"}, tmp_path)
        assert told == cases.keep("C", "Two Lengths, whole", data, {"form": "whole"}, tmp_path)
        case = cases.read(tmp_path / told)
        assert (case.stage, case.name, case.data) == ("C", "Two Lengths, whole", data)
        assert case.replay == {"form": "whole"}
    assert len(list(cases.stored(tmp_path))) == 2
    assert max(path.stat().st_size for path in cases.stored(tmp_path)) < 1000
