"""Search-space files: what they say, where they are found, and how a wrong one is refused."""

import dataclasses
import pathlib

import pytest

from serving.settings import SETTINGS
from tuner.errors import InvalidSpace
from tuner.space import files
from tuner.space.environment import Environment, Machine
from tuner.space.equivalence import RULES
from tuner.space.knob_entry import KEYS
from tuner.space.knob_schema import SERVING
from tuner.space.knobs import ChoiceKnob, DeviceKnob, FloatKnob, IntKnob

TEXT = """\
name: toy
knobs:
  replica.count:
    type: int
    range: [1, 8]
    default: 1
  replica.cpu:
    type: float
    range: [0.3, 2]
    step: 0.1
    default: 1
    unit: cores
  replica.memory_mb: {type: int, range: [24, 512], scale: log, points: 5, default: 512}
  batching.max_size: {type: int, choices: [1, 2, 8], scale: log, default: 8}
  batching.timeout_us: {type: int, choices: [0, 100, 1000], scale: log, default: 0,
                        condition: batching.max_size > 1}
  routing.policy: {type: choice, choices: [least-loaded, round-robin], default: least-loaded}
  accelerator.clock_mhz: {type: int, choices: device, points: 4}
constraints:
  - replica.count * replica.memory_mb <= machine.memory_mb
equivalence: [batch-timeout]
"""


def changed(old, new):
    """The text of this file with one part replaced."""
    assert old in TEXT
    return TEXT.replace(old, new, 1)


def with_role(role):
    """The text of this file with a role of its second knob."""
    return changed("    unit: cores", f"    unit: cores\n    role: {role}")


def test_a_file_becomes_a_space():
    """Every key of a file is found in the space."""
    space = files.parse(TEXT, "toy.yaml")

    knobs = {knob.name: knob for knob in space.knobs}
    assert (
        IntKnob(name="replica.count", low=1, high=8, default=1, unit="replicas")
        == (knobs["replica.count"])
    )
    assert (
        FloatKnob(name="replica.cpu", low=0.3, high=2.0, step=0.1, default=1.0, unit="cores")
        == (knobs["replica.cpu"])
    )
    assert knobs["replica.memory_mb"].values() == (24, 52, 111, 238, 512)
    assert knobs["batching.timeout_us"].values() == (0, 100, 1000)
    assert knobs["batching.timeout_us"].condition == "batching.max_size > 1"
    assert (
        ChoiceKnob(
            name="routing.policy", choices=("least-loaded", "round-robin"), default="least-loaded"
        )
        == (knobs["routing.policy"])
    )
    assert (
        DeviceKnob(name="accelerator.clock_mhz", unit="MHz", points=4)
        == (knobs["accelerator.clock_mhz"])
    )
    assert space.constraints == ("replica.count * replica.memory_mb <= machine.memory_mb",)
    assert (space.equivalence, space.name, space.source) == (("batch-timeout",), "toy", "toy.yaml")


def test_what_a_file_leaves_out():
    """Without name, constraints and equivalence: the file's name, none, and all rules."""
    space = files.parse(
        "knobs: {replica.count: {type: int, range: [1, 2], default: 1}}", "a/b.yaml"
    )

    assert (space.name, space.constraints, space.equivalence) == ("b", (), RULES)
    assert "knobs: {accelerator" not in TEXT
    clock = "knobs: {accelerator.clock_mhz: {type: int, choices: device}}"
    assert DeviceKnob(name="accelerator.clock_mhz", unit="MHz") == files.parse(clock, "c").knobs[0]


WRONG = [
    ("not a mapping", "- 1", "", "a list, expected a mapping"),
    ("an empty file", "", "", "nothing, expected a mapping"),
    ("an unknown key", changed("constraints:", "constraint:"), "constraint",
     "did you mean 'constraints'? (expected one of: name, knobs, constraints, equivalence) (line 19)"),
    ("no knobs", "name: toy", "", "`knobs` is missing"),
    ("knobs that are none", "knobs: {}", "knobs", "there is none"),
    ("an unknown knob", changed("batching.max_size:", "batching.maxsize:"),
     "knobs.batching.maxsize", "unknown knob 'batching.maxsize', did you mean 'batching.max_size'?"),
    ("a knob twice", changed("replica.cpu:", "replica.count:"), "knobs.replica.count",
     "given twice, on lines 3 and 7"),
    ("a fixed setting", changed("replica.count:", "server.port:"), "knobs.server.port",
     "cannot change while the server runs"),
    ("an unknown key of a knob", changed("range: [1, 8]", "rang: [1, 8]"),
     "knobs.replica.count.rang", "did you mean 'range'?"),
    ("a key that its type has not",
     changed("{type: choice,", "{type: choice, scale: log,"), "knobs.routing.policy.scale",
     "unknown key 'scale'"),
    ("no type", changed("    type: int\n", ""), "knobs.replica.count", "`type` is missing"),
    ("an unknown type", changed("type: int", "type: itn"), "knobs.replica.count.type",
     "did you mean 'int'?"),
    ("another type than the setting's", changed("type: float", "type: int"),
     "knobs.replica.cpu.type", "'int', but replica.cpu is of type float (line 8)"),
    ("another unit", changed("unit: cores", "unit: percent"), "knobs.replica.cpu.unit",
     "'percent', but replica.cpu is in cores"),
    ("no default", changed("    default: 1\n", ""), "knobs.replica.count", "`default` is missing"),
    ("neither range nor choices", changed("    range: [1, 8]\n", ""), "knobs.replica.count",
     "expected either `range` or `choices`"),
    ("both", changed("    range: [1, 8]\n", "    range: [1, 8]\n    choices: [1]\n"),
     "knobs.replica.count", "expected either `range` or `choices`"),
    ("a range of three", changed("[1, 8]", "[1, 4, 8]"), "knobs.replica.count.range",
     "3 numbers, expected two"),
    ("a range turned around", changed("[1, 8]", "[8, 1]"), "knobs.replica.count.range",
     "expected the lower end first (line 5)"),
    ("a text for a number", changed("[1, 8]", "[1, eight]"), "knobs.replica.count.range[1]",
     "'eight', expected a whole number"),
    ("a float for a whole number", changed("[1, 8]", "[1, 8.0]"), "knobs.replica.count.range[1]",
     "8.0, expected a whole number"),
    ("a range beyond the engine's", changed("[1, 8]", "[1, 80]"), "knobs.replica.count.range",
     "the engine does not accept 80, expected a whole number from 1 to 64 (replicas)"),
    ("a number below the engine's", changed("range: [24, 512]", "range: [4, 512]"),
     "knobs.replica.memory_mb.range", "does not accept 4, expected a whole number from 8 to 4194304 (MiB)"),
    ("no YAML", "name: [x", "",
     "not YAML: while parsing a flow sequence, expected ',' or ']', but got '<stream end>' (line 1,"),
    ("a choice that the engine has not", changed("round-robin]", "random]"),
     "knobs.routing.policy.choices", "the engine does not accept 'random', expected one of"),
    ("a default out of range", changed("default: 1\n", "default: 9\n"),
     "knobs.replica.count.default", "9, expected a whole number from 1 to 8 replicas (line 6)"),
    ("a default that is no choice", changed("default: 8}", "default: 4}"),
     "knobs.batching.max_size.default", "4 is not one of the choices 1, 2, 8"),
    ("choices out of order", changed("[1, 2, 8]", "[2, 1, 8]"),
     "knobs.batching.max_size.choices", "expected ascending"),
    ("a log choice below 0", changed("[0, 100, 1000]", "[-1, 100, 1000]"),
     "knobs.batching.timeout_us.choices", "a log scale starts above 0"),
    ("an unknown scale", changed("scale: log, points", "scale: lin, points"),
     "knobs.replica.memory_mb.scale", "expected linear or log"),
    ("zero that is no truth value", changed("points: 5", "points: 5, zero: 1"),
     "knobs.replica.memory_mb.zero", "1, expected true or false"),
    ("numbers as texts of a choice", changed("[least-loaded, round-robin]", "[1, 2]"),
     "knobs.routing.policy.choices[0]", "1, expected a text"),
    ("a condition that is no text", changed("condition: batching.max_size > 1", "condition: 1"),
     "knobs.batching.timeout_us.condition", "1, expected a text"),
    ("a wrong condition", changed("batching.max_size > 1", "batching.maxsize > 1"),
     "knobs.batching.timeout_us.condition", "at character 1: 'batching.maxsize' is not known, did"),
    ("another knob from the device", changed("range: [1, 8]", "choices: device"),
     "knobs.replica.count.choices", "only accelerator.clock_mhz takes its choices"),
    ("a default beside the device", changed("points: 4", "default: 4"),
     "knobs.accelerator.clock_mhz.default", "unknown key of a knob with `choices: device`"),
    ("one point of the device", changed("points: 4", "points: 1"),
     "knobs.accelerator.clock_mhz.points", "expected at least 2"),
    ("constraints that are no list", changed("constraints:\n  - ", "constraints: "), "constraints",
     "expected a list of texts"),
    ("a wrong constraint", changed("machine.memory_mb\n", "machine.memory\n"), "constraints[0]",
     "at character 38: 'machine.memory' is not known, did you mean 'machine.memory_mb'?"),
    ("a call in a constraint", changed("<= machine.memory_mb", "<= open('/etc/passwd')"),
     "constraints[0]", "\"open('/etc/passwd')\" is not allowed"),
    ("an impossible constraint", changed("<= machine.memory_mb", "< 24"), "constraints[0]",
     "rules out every configuration"),
    ("an unknown role", changed("scale: log, points: 5", "role: batc, points: 5"),
     "knobs.replica.memory_mb.role", "unknown role 'batc', did you mean 'batch'?"),
    ("a role of a choice", changed("{type: choice,", "{type: choice, role: batch,"),
     "knobs.routing.policy.role", "only a knob of type int or float has a role (line 17)"),
    ("two knobs that declare one role",
     with_role("threads").replace("points: 5", "role: threads, points: 5"),
     "knobs.replica.memory_mb.role", "'threads' is the role of replica.cpu too"),
    ("a role that another knob has by its name", with_role("batch"),
     "knobs.replica.cpu.role", "'batch' is the role of batching.max_size too"),
    ("a wait that is no time", with_role("wait"),
     "knobs.replica.cpu.unit", "'cores', but a wait is in one of us, ms, s"),
    ("an unknown rule", changed("[batch-timeout]", "[batch-timeuot]"), "equivalence[0]",
     "did you mean 'batch-timeout'?"),
    ("a name that is none", changed("name: toy", "name: 3"), "name", "3, expected a text"),
]  # fmt: skip


@pytest.mark.parametrize(("phrase", "text", "key", "part"), WRONG, ids=[row[0] for row in WRONG])
def test_a_wrong_file_is_refused_with_its_key(phrase, text, key, part):
    """The error names the file, the key as a dotted path, and what would be right."""
    with pytest.raises(InvalidSpace) as caught:
        files.parse(text, "toy.yaml")

    assert ("toy.yaml", key) == (caught.value.file, caught.value.key)
    assert part in caught.value.text
    assert "\n" not in str(caught.value)


def test_a_file_that_cannot_be_read_is_refused(tmp_path):
    """A missing file names what there is; a binary one is not text."""
    with pytest.raises(
        InvalidSpace, match=r"No such file.*bundled spaces are clockwork, echo, gan, linear, mnist"
    ):
        files.read(tmp_path / "missing.yaml")
    (tmp_path / "binary.yaml").write_bytes(b"\xff\xfe\x00")
    with pytest.raises(InvalidSpace, match="not text in UTF-8"):
        files.read(str(tmp_path / "binary.yaml"))


def test_knob_names_are_the_engines_settings_and_the_clock():
    """One name per knob: what can be searched is what can be set."""
    assert {*SETTINGS, "accelerator.clock_mhz"} == set(SERVING.names())


BUNDLED = ("echo", "gan", "linear", "mnist", "opennmt", "resnet", "resnet50", "reviews")
STUDY = {"opennmt": {"batching.timeout_us"}}
"""Where a range is the study's, and the server's own value is not in it."""


@pytest.mark.parametrize("name", BUNDLED)
@pytest.mark.parametrize("concurrency", [1, 20, 100])
def test_bundled_spaces_load_and_have_a_searchable_number_of_cells(name, concurrency):
    """Each bundled space has from fifty to ten thousand cells on a small machine."""
    space = files.load_bundled(name)
    assert space is not None
    environment = Environment(concurrency=concurrency, machine=Machine(cores=2, memory_mb=8192))

    cells = space.candidates(environment)

    assert name == space.name
    assert 50 < len(cells) < 10_000


@pytest.mark.parametrize("name", BUNDLED)
def test_the_default_of_a_bundled_space_is_the_untuned_server(name):
    """Where the server has a default the space has the same; it is a cell of its own."""
    space = files.load_bundled(name)
    assert space is not None
    environment = Environment(concurrency=20, machine=Machine(cores=2, memory_mb=8192))

    default = space.narrow(environment).default()

    without_limits = {"replica.cpu", "replica.memory_mb", *STUDY.get(name, ())}
    assert {
        knob: SETTINGS[knob].default for knob in default if knob not in without_limits
    } == {knob: value for knob, value in default.items() if knob not in without_limits}  # fmt: skip
    assert default in space.candidates(environment)


def test_bundled_names_are_the_files_of_the_folder():
    """What is bundled can be listed, and nothing else is found, least of all by a path."""
    assert files.bundled_names() == tuple(sorted((*BUNDLED, "clockwork")))  # of many models
    assert files.load_bundled("unknown") is None
    assert files.load_bundled("../search_spaces/echo") is None
    assert files.load_bundled("") is None


def test_a_wheel_has_the_bundled_files_beside_the_code(tmp_path, monkeypatch):
    """The folder inside the package comes first, as an installed wheel has no checkout around it."""
    beside = tmp_path / "bundled"
    beside.mkdir()
    (beside / "own.yaml").write_text(TEXT)
    checkout = pathlib.Path(files.__file__).parents[2] / "search_spaces"
    monkeypatch.setattr(files, "_FOLDERS", (beside, checkout))

    assert files.bundled_names() == ("own",)
    assert files.load_bundled("own") is not None
    monkeypatch.setattr(files, "_FOLDERS", (tmp_path / "nothing",))
    assert files.bundled_names() == ()


@pytest.mark.parametrize("name", ["resnet", "linear", "echo", "toy"])
def test_a_written_space_reads_back_as_the_same(name):
    """Writing and reading loses nothing but what bound the space to a machine."""
    space = files.parse(TEXT, "toy.yaml") if name == "toy" else files.load_bundled(name)
    assert space is not None

    text = files.dump(space, {"head": "A head.", "replica.count": "Why: this."})

    assert space == dataclasses.replace(files.parse(text, "x.yaml"), source=space.source)
    assert text.startswith("# A head.\n")
    assert "  # Why: this.\n  replica.count:" in text


def test_the_example_of_the_documentation_is_a_search_space():
    """What docs/search-spaces.md shows can be copied, and its table has every rule and every key."""
    page = (pathlib.Path(files.__file__).parents[2] / "docs" / "search-spaces.md").read_text()
    example = page.split("```yaml\n")[1].split("```")[0]

    space = files.parse(example, "toy.yaml")

    assert space.knobs[2].values() == (1, 2, 4, 8, 16, 32, 64)
    assert all(f"| `{rule}` |" in page for rule in RULES)
    keys = {key for kind in KEYS.values() for key in kind}
    assert all(f"| `{key}` |" in page for key in keys)


def test_an_unknown_knob_is_told_the_nearest_names_alone():
    """Of more than twenty knobs the few that look like it."""
    with pytest.raises(InvalidSpace) as caught:
        files.parse(
            "name: x\nknobs:\n  replica.cout: {type: int, choices: [1], default: 1}\n", "x.yaml"
        )
    text = str(caught.value)
    assert "did you mean 'replica.count'?" in text
    assert "server.max_body_bytes" not in text
    assert "others)" in text
    assert len(text) < 250
