"""Logs as lines of JSON."""

import json
import logging
import os
import pathlib
import subprocess
import sys

from serving.system.log_lines import JsonLines


def line(*arguments, **fields):
    """The line of one event, read back."""
    record = logging.getLogger("room").makeRecord(
        "room", logging.WARNING, "file.py", 1, *arguments, extra=fields
    )
    text = JsonLines().format(record)
    assert "\n" not in text
    return json.loads(text)


def test_an_event_is_one_object_with_its_fields():
    """What was given by `extra` stands beside time, level, event, room and process."""
    event = line("replica %s", ("ready",), None, worker=3, error=ValueError("odd"))
    assert event.pop("at") > 0
    assert event == {
        "level": "warning",
        "event": "replica ready",
        "room": "room",
        "pid": os.getpid(),
        "worker": 3,
        "error": "odd",
    }


def test_a_traceback_stays_in_its_line():
    """An exception is a field, so that one event is one line."""
    try:
        1 / 0  # noqa: B018 - it is what is told
    except ZeroDivisionError:
        event = line("it broke", (), sys.exc_info())
    assert "ZeroDivisionError" in event["traceback"]


def test_what_warms_up_logs_all_fields_in_that_form(tmp_path):
    """What the template says of a runtime that cannot be imported has the same fields as in the gateway."""
    program = (
        "from serving.replica import preload; from serving.system.log_lines import log_lines;"
        "from serving import models; models.KINDS += ('broken',);"
        f"models.__path__.append({str(tmp_path)!r});"
        "log_lines('WARNING'); preload.import_runtime('fortran'); preload.import_runtime('broken')"
    )
    (tmp_path / "broken.py").write_text("from json import no_such_name\n")
    root = pathlib.Path(__file__).parents[3]
    done = subprocess.run(
        [sys.executable, "-c", program],
        capture_output=True,
        text=True,
        check=True,
        timeout=60,
        env={"PYTHONPATH": str(root)},
    )
    event = json.loads(done.stderr)
    assert event["room"] == "serving.replica.preload"
    assert "no_such_name" in event["error"]
