"""Events reach the file of the study, also those from before it had a folder."""

from __future__ import annotations

import json
import logging
import pathlib

from tuner.store.event_log import EventLog


def test_events_wait_for_their_file(tmp_path: pathlib.Path) -> None:
    """What was logged before the folder was known stands first, with fields and traceback."""
    logger = logging.getLogger("tuner.somewhere")
    with EventLog() as log:
        logger.info("engine started", extra={"fields": {"port": 1}})
        log.write_to(tmp_path / "log.jsonl")
        try:
            raise ValueError("odd")
        except ValueError:
            logger.exception("unexpected end")
    logger.info("after the block")
    events = [json.loads(line) for line in (tmp_path / "log.jsonl").read_text().splitlines()]
    assert [event["event"] for event in events] == ["engine started", "unexpected end"]
    assert events[0]["port"] == 1
    assert "ValueError: odd" in events[1]["traceback"]


def test_a_full_disk_does_not_end_the_study(tmp_path: pathlib.Path) -> None:
    """A log that cannot be written loses lines, nothing else."""
    with EventLog() as log:
        log.write_to(tmp_path / "no" / "such" / "folder" / "log.jsonl")
        logging.getLogger("tuner").info("said into the void")


def test_details_have_a_file_without_a_study() -> None:
    """An unexpected end before any folder is written to a temporary file."""
    with EventLog() as log:
        logging.getLogger("tuner").error("broken")
        path = log.path_for_details()
    try:
        assert "broken" in path.read_text()
    finally:
        path.unlink()
