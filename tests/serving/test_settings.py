"""Settings from their sources: who wins, what is refused, and with which words."""

import pytest

from serving.errors import InvalidSettings
from serving.settings import SETTINGS, ServingSettings
from serving.settings.sources import resolve


def test_a_later_source_wins(tmp_path):
    """File < environment < command line, each knob for itself."""
    file = tmp_path / "settings.yaml"
    file.write_text("batching: {max_size: 2, timeout_us: 20}\nreplica.count: 2\ncache:\n")
    settings = resolve(
        file=file,
        environment={"LUTHIER_BATCHING__MAX_SIZE": "3", "LUTHIER_REPLICA__COUNT": "3", "HOME": "["},
        command_line={"replica.count": 4},
    )
    assert (settings.batching.max_size, settings.batching.timeout_us) == (3, 20)
    assert settings.replica.count == 4
    assert settings.cache == ServingSettings().cache


@pytest.mark.parametrize(
    ("phrase", "port", "admin_port", "command_line"),
    [
        ("defaults", 8000, 8002, {}),
        ("a free query port", 0, 0, {"server.port": 0}),
        ("both named", 0, 8002, {"server.port": 0, "server.admin_port": 8002}),
        ("both named in a group", 0, 9000, {"server": {"port": 0, "admin_port": 9000}}),
        ("a fixed query port", 9000, 8002, {"server.port": 9000}),
    ],
)
def test_a_free_query_port_comes_with_a_free_admin_port(phrase, port, admin_port, command_line):
    """Servers that take any port do not meet on the admin port that nobody named."""
    server = resolve(environment={}, command_line=command_line).server
    assert (server.port, server.admin_port) == (port, admin_port)


def test_an_admin_port_of_any_source_is_kept(tmp_path):
    """A file or the environment that names the admin port is obeyed beside `--port 0`."""
    file = tmp_path / "settings.yaml"
    file.write_text("server: {admin_port: 9001}")
    free = {"server.port": 0}
    assert resolve(file=file, environment={}, command_line=free).server.admin_port == 9001
    named = {"LUTHIER_SERVER__ADMIN_PORT": "9002"}
    assert resolve(environment=named, command_line=free).server.admin_port == 9002


@pytest.mark.parametrize(
    ("text", "phrase"),
    [
        ("a: [1\n b: 2", "is not YAML"),
        ("\x00", "is not YAML"),
        ("replica: {cpu: 2001-99-99}", "is not YAML"),
        ("- 1", r"holds \[1\], expected a YAML file with settings in their groups"),
        ("batching: 3", r"batching = 3, expected a mapping of its settings"),
        ("bathing: {max_size: 3}", r"'bathing.max_size', did you mean 'batching.max_size'\?"),
        ("3: 4", "3 is not a group"),
        ("replica: {count: .inf}", r"replica.count = inf, expected a whole number from 1 to 64"),
        ("replica: {count: .nan}", r"replica.count = nan"),
        ("replica: {count: 1.5}", r"replica.count = 1.5"),
        ("replica: {count: yes}", r"replica.count = True"),
        (
            "replica: {cpu: .inf}",
            r"replica.cpu = inf, expected a number from 0.05 to 256 \(cores\)",
        ),
        (f"replica: {{cpu: 1{'0' * 400}}}", r"replica.cpu = 10"),
    ],
)
def test_a_wrong_file_is_refused_by_its_name_in_one_line(tmp_path, text, phrase):
    """The file, what it holds, and what is expected."""
    file = tmp_path / "settings.yaml"
    file.write_text(text)
    with pytest.raises(InvalidSettings, match=phrase) as caught:
        resolve(file=file, environment={})
    assert str(file) in str(caught.value)
    assert "\n" not in str(caught.value)


def test_a_missing_file_says_what_is_expected(tmp_path):
    """A path that leads nowhere is named, with the form of what should be there."""
    file = tmp_path / "none.yaml"
    with pytest.raises(
        InvalidSettings, match=r"cannot be read: No such file.*{batching: {"
    ) as caught:
        resolve(file=file, environment={})
    assert str(file) in str(caught.value)


def test_a_wrong_variable_is_named():
    """A variable whose text is no YAML value is refused by its name."""
    with pytest.raises(InvalidSettings, match=r"LUTHIER_REPLICA__COUNT = '\['"):
        resolve(environment={"LUTHIER_REPLICA__COUNT": "["})


def test_every_default_is_allowed():
    """What nobody changes passes its own check."""
    for name, knob in SETTINGS.items():
        assert knob.validate(knob.default, "test") == knob.default, name


def test_no_model_has_a_clock_of_its_own():
    """The GPU has one clock; what a model sees of the GPU is its own."""
    with pytest.raises(InvalidSettings, match=r"models\.m\.accelerator\.clock_mhz"):
        ServingSettings().with_changes({"models.m.accelerator.clock_mhz": 900})
    changed = ServingSettings().with_changes({"models.m.accelerator.share": 50})
    assert changed.of("m").accelerator.share == 50
