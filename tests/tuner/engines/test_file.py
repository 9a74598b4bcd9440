"""Engine files: what they say, and how a wrong one is refused."""

from __future__ import annotations

import pathlib
import signal

import pytest

from tests.fakes import other_engines
from tuner.engines import engine_lookup
from tuner.engines import file as engine_file
from tuner.errors import InvalidEngine
from tuner.space import files, knob_schema

PATH = pathlib.Path("/somewhere/engine.yaml")
GOOD = other_engines.text()
KNOWN = sorted(engine_lookup.FOLDER.glob("*/engine.yaml"))


def test_a_file_is_read_whole() -> None:
    """What stands in it is what the engine has; what does not is the default."""
    found = engine_file.parse(GOOD, PATH)
    assert found.name == "tiny"
    assert found.label == f"tiny (command:{PATH})"
    assert found.knobs == ("delay.ms",)
    assert found.defaults == {"delay.ms": "20"}
    assert (found.ready_path, found.ready_timeout_s) == ("/health", 20.0)
    assert (found.stop_signal, found.stop_grace_s) == (signal.SIGTERM, 0.3)
    assert found.directory == "{work}"
    assert found.request.body == PATH.parent / "body.txt"


@pytest.mark.parametrize("path", KNOWN, ids=lambda path: path.parent.name)
def test_those_of_the_tuner_are_engine_files_and_search_spaces(path: pathlib.Path) -> None:
    """Both halves of each file are right."""
    found = engine_lookup.engine_of(f"command:{path}")
    known = knob_schema.of_command(found.knobs, beside=engine_file.OWN_KEYS)
    space = files.parse(found.text, file=str(path), vocabulary=known)
    assert set(found.knobs) <= set(space.names)
    assert space.equivalence == ()


@pytest.mark.parametrize(
    ("change", "said"),
    [
        (("command:", "comand:"), "comand: unknown key 'comand', did you mean 'command'? "),
        (("name: tiny", "name: [tiny]"), "name: a list, expected a text"),
        (("{delay.ms}", "{delay.us}"), "{delay.us} is neither a knob of this file nor one of port"),
        (('"{port}"', '"8000"'), "no template uses {port}"),
        (("  delay.ms:", "  other: {type: int, range: [1, 2], default: 1}\n  delay.ms:"), "no template uses {other}"),
        (("{python}", "{engine.cpu}"), "{engine.cpu} is neither"),
        (("protocol: raw", "protocol: grpc"), "unknown protocol 'grpc'"),
        (("path: /predict, ", ""), "a raw request needs a `path`"),
        (("path: /predict", "path: predict"), "'predict', expected /... in ASCII"),
        (("protocol: raw", "protocol: raw, model: m"), "unknown key of a raw request 'model'"),
        (("body: body.txt", "body: body.txt, encoding: tensor"), "takes no body file"),
        (("body: body.txt", "answer: float"), "unknown datatype 'float'"),
        (("timeout_s: 20", "timeout_s: soon"), "ready.timeout_s: 'soon', expected a number"),
        (("timeout_s: 20", "timeout_s: 0"), "expected seconds above 0 to 3600"),
        (("timeout_s: 20", "timout_s: 20"), "did you mean 'timeout_s'?"),
        (("signal: TERM", "signal: STOP"), "unknown signal 'STOP'"),
        (("stop:", "files: {../x: y}\nstop:"), "expected a path within the evaluation's work folder"),
        (("stop:", "environment: {A: [1]}\nstop:"), "environment.A: [1], expected a text"),
        (("command: [", 'command: "run it"\nxs: ['), "unknown key 'xs'"),
        (("knobs:", "nobs:"), "unknown key 'nobs'"),
        (("name: tiny", "name: tiny\nname: two"), "given twice"),
    ],
)  # fmt: skip
def test_a_wrong_file_is_refused_in_one_line(change: tuple[str, str], said: str) -> None:
    """With the file, the key, what was expected, and the nearest name."""
    text = GOOD.replace(*change)
    assert text != GOOD
    with pytest.raises(InvalidEngine) as caught:
        engine_file.parse(text, PATH)
    assert str(caught.value).startswith(f"engine file {PATH}")
    assert said in str(caught.value)
    assert "\n" not in str(caught.value)


def test_a_command_is_a_list_of_words() -> None:
    """A line for a shell is refused with the right form; numbers are words."""
    with pytest.raises(InvalidEngine, match="expected a list of words"):
        engine_file.parse(GOOD.replace("command: [", 'command: "a b" # ['), PATH)
    numbered = engine_file.parse(GOOD.replace('"{port}"', '"{port}", 8, 0.5'), PATH)
    assert numbered.command[3:5] == ("8", "0.5")


def test_a_missing_file_is_named(tmp_path: pathlib.Path) -> None:
    """With the system's reason."""
    with pytest.raises(InvalidEngine, match=r"no\.yaml: No such file"):
        engine_lookup.engine_of(f"command:{tmp_path / 'no.yaml'}")
