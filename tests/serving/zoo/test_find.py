"""Finding models: bundled names, files, folders, references to Python code, and what is refused."""

from __future__ import annotations

import json
import pathlib
import pickle
import re

import pytest
from hypothesis import given
from hypothesis import strategies as st

from serving import models, zoo
from serving.errors import InvalidSettings, ModelLoadFailed, UnknownModel
from serving.zoo import bundled, model_specs

BUNDLED = ("echo", "gan", "linear", "mnist", "opennmt", "resnet", "resnet50", "reviews")
CARD = 'name: mine\nversion: "3"\nkind: echo\n'


def test_bundled_models_are_listed_in_order():
    assert bundled.names() == BUNDLED


@pytest.mark.parametrize("name", [name for name in BUNDLED if name != "resnet50"])
def test_every_bundled_card_names_existing_absolute_files_and_a_known_kind(name):
    card = zoo.find(name)
    assert card.name == name
    assert card.kind in models.KINDS
    assert card.sample is None or (card.sample.is_absolute() and card.sample.is_file())
    file = card.path and card.path.with_name(card.path.name.partition(":")[0])
    assert file is None or (file.is_absolute() and file.is_file())


def test_a_bundled_model_can_be_served_under_another_name():
    card = zoo.find("resnet", name="resnet_b")
    assert card.name == "resnet_b"
    assert card.path == zoo.find("resnet").path


def test_an_unknown_name_lists_the_known_ones_and_the_nearest():
    with pytest.raises(UnknownModel, match=r"did you mean 'resnet'.*echo, gan, linear") as caught:
        zoo.find("resnett")
    assert caught.value.known == bundled.names()
    assert str(pickle.loads(pickle.dumps(caught.value))) == str(caught.value)


@pytest.mark.parametrize(
    ("file", "kind", "name"),
    [
        pytest.param("net.onnx", "onnx", "net", id="ONNX"),
        pytest.param("NET.ONNX", "onnx", "NET", id="suffix in capitals"),
        pytest.param("forest.skops", "sklearn", "forest", id="skops"),
        pytest.param("coefficients.npz", "sklearn", "coefficients", id="arrays"),
        pytest.param("old.joblib", "sklearn", "old", id="pickle, refused when loaded"),
        pytest.param("my net v1.2.onnx", "onnx", "my-net-v1-2", id="name made safe"),
        pytest.param("Ü.onnx", "onnx", "model", id="nothing safe in the name"),
    ],
)
def test_a_file_is_found_by_its_path_and_its_kind_by_its_suffix(tmp_path, file, kind, name):
    (tmp_path / file).write_bytes(b"")
    card = zoo.find(str(tmp_path / file))
    assert (card.kind, card.name, card.version, card.path) == (kind, name, "1", tmp_path / file)


@pytest.mark.parametrize("file", ["weights.bin", "weights", "net.onnx.bak"])
def test_a_suffix_that_tells_no_kind_is_refused_with_those_that_do(tmp_path, file):
    (tmp_path / file).write_bytes(b"")
    with pytest.raises(
        ModelLoadFailed, match=r"identifies the kind of model; expected one of \.onnx"
    ):
        zoo.find(str(tmp_path / file))


def test_a_relative_path_becomes_absolute(tmp_path, monkeypatch):
    (tmp_path / "net.onnx").write_bytes(b"")
    monkeypatch.chdir(tmp_path)
    assert zoo.find("net.onnx").path == tmp_path / "net.onnx"


def test_a_python_file_is_named_with_its_class(tmp_path):
    (tmp_path / "words.py").write_text("")
    card = zoo.find(f"{tmp_path}/words.py:Model")
    assert (card.kind, card.name) == ("python", "words")
    assert card.path == pathlib.Path(f"{tmp_path}/words.py:Model")


def test_a_python_file_without_its_class_is_asked_for_it(tmp_path):
    (tmp_path / "words.py").write_text("")
    with pytest.raises(ModelLoadFailed, match=r"words\.py:Model"):
        zoo.find(f"{tmp_path}/words.py")


def test_a_module_reference_is_kept_as_it_is():
    card = zoo.find("package.module:Name")
    assert (card.kind, card.name, str(card.path)) == ("python", "module", "package.module:Name")


@pytest.mark.parametrize(
    "missing", ["no/such.onnx", "nowhere.onnx", "no/such.py:Model", "/no/such"]
)
def test_a_path_that_does_not_exist_says_where_it_looked_and_what_to_give(missing):
    with pytest.raises(ModelLoadFailed, match=r"no file /.*bundled model's name"):
        zoo.find(missing)


def test_a_name_that_urls_and_knobs_cannot_have_is_refused_with_a_safe_one():
    with pytest.raises(InvalidSettings, match="try 'a-b'"):
        zoo.find("resnet", name="a.b")


def test_a_users_folder_with_a_card_is_read(tmp_path):
    (tmp_path / "weights.onnx").write_bytes(b"")
    (tmp_path / "model.yaml").write_text("name: own\nversion: 7\nkind: onnx\nfile: weights.onnx\n")
    card = zoo.find(str(tmp_path))
    assert (card.name, card.version, card.path) == ("own", "7", tmp_path / "weights.onnx")
    assert card.sample is None
    assert card.quality == {}


def test_samples_are_found_beside_the_model(tmp_path, monkeypatch):
    """`samples.npz` of a folder, `net.samples.npz` of a file, and none of what is imported by name."""
    for name in ("net.onnx", "net.samples.npz", "words.py", "words.samples.npz", "samples.npz"):
        (tmp_path / name).write_bytes(b"")
    assert zoo.find(str(tmp_path / "net.onnx")).sample == tmp_path / "net.samples.npz"
    assert zoo.find(f"{tmp_path}/words.py:Model").sample == tmp_path / "words.samples.npz"
    monkeypatch.chdir(tmp_path)
    assert zoo.find("words.py:Model").sample == tmp_path / "words.samples.npz"
    assert zoo.find("words.inner:Model").sample is None
    (tmp_path / "model.yaml").write_text("name: own\nversion: 7\nkind: onnx\nfile: net.onnx\n")
    assert zoo.find(str(tmp_path)).sample == tmp_path / "samples.npz"
    (tmp_path / "saved_model.pb").write_bytes(b"")
    (tmp_path / "model.yaml").unlink()
    assert zoo.find(str(tmp_path)).sample == tmp_path / "samples.npz"


def test_a_card_of_kind_python_names_file_and_class(tmp_path):
    (tmp_path / "words.py").write_text("")
    (tmp_path / "model.yaml").write_text(
        "name: words\nversion: 1\nkind: python\nfile: words.py:Model\n"
    )
    assert zoo.find(str(tmp_path)).path == tmp_path / "words.py:Model"


@pytest.mark.parametrize(
    ("text", "complaint"),
    [
        pytest.param(
            CARD + "verison: 2\n", "unknown key 'verison', did you mean 'version'", id="typo"
        ),
        pytest.param("name: mine\n", "missing key version, kind", id="keys missing"),
        pytest.param("- a\n", "expected a mapping", id="a list"),
        pytest.param("", "expected a mapping", id="empty"),
        pytest.param("name: [\n", "not valid YAML", id="broken YAML"),
        pytest.param("[" * 10_000, "nested deeper than 32", id="too deep"),
        pytest.param(CARD + "#" * 70_000, "larger than 65536 bytes", id="too large"),
        pytest.param(
            CARD + "quality: {a: &a [1, 1], b: [*a, *a]}", "aliases (*name)", id="a bomb of aliases"
        ),
        pytest.param(CARD + "quality: {a: .nan}", "quality: expected numbers", id="not a number"),
        pytest.param(CARD + "quality: {a: !!set {b}}", "quality: expected numbers", id="a set"),
        pytest.param(CARD + "file: gone.onnx\n", "file: no file", id="weights missing"),
        pytest.param(CARD + "file: 3\n", "file: expected str, given 3", id="wrong type"),
        pytest.param(CARD.replace('"3"', "true"), "version: expected str or int", id="boolean"),
        pytest.param(CARD.replace("mine", "a/b"), "name: expected letters", id="unsafe name"),
        pytest.param(CARD.replace("echo", "onxx"), "did you mean 'onnx'", id="unknown kind"),
        pytest.param(
            CARD + "built: true\n", "built: for bundled models only", id="built by a user"
        ),
        pytest.param(
            CARD + "variants: {8: {file: model.yaml}}\n", "variants.8: expected a name", id="number"
        ),
        pytest.param(
            CARD + "variants: {a: model.yaml}\n", "variants.a: expected {file:", id="no mapping"
        ),
        pytest.param(
            CARD + "variants: {a: {fil: b}}\n", "variants.a: expected {file:", id="no file named"
        ),
        pytest.param(
            CARD + "variants: {a: {file: 3}}\n", "variants.a: expected a text", id="no text"
        ),
        pytest.param(
            CARD + "variants: {a: {file: no}}\n", "variants.a: expected a text", id="a truth value"
        ),
        pytest.param(CARD + "variants: {a: {file: gone}}\n", "variants.a.file: no", id="no such"),
        pytest.param(
            CARD + "variants: {a: {file: model.yaml}}\n",
            "none of them has the spec's",
            id="no default",
        ),
    ],
)
def test_a_wrong_card_is_refused_with_file_and_key(tmp_path, text, complaint):
    (tmp_path / "model.yaml").write_text(text)
    with pytest.raises(ModelLoadFailed, match=re.escape(complaint)) as caught:
        zoo.find(str(tmp_path))
    assert caught.value.model == str(tmp_path / "model.yaml")


def test_variants_are_forms_of_one_model(tmp_path):
    """Other weights for the same model; the card's own are the default's."""
    for name in ("small.onnx", "large.onnx"):
        (tmp_path / name).write_bytes(b"")
    (tmp_path / "model.yaml").write_text(
        "name: own\nversion: 1\nkind: onnx\nfile: large.onnx\nvariants:\n"
        "  small: {file: small.onnx, quality: {metric: accuracy, value: 0.8}}\n"
        "  large: {file: large.onnx}\n"
    )
    card = zoo.find(str(tmp_path))
    assert card.default_variant == "large"
    assert card.weights(None) == card.weights("large") == tmp_path / "large.onnx"
    assert card.weights("small") == tmp_path / "small.onnx"
    assert [variant.accuracy for variant in card.variants.values()] == [0.8, None]
    assert set(card.files) == {tmp_path / "small.onnx", tmp_path / "large.onnx"}
    assert model_specs.from_json(json.loads(json.dumps(model_specs.as_json(card)))) == card
    with pytest.raises(
        InvalidSettings, match=r"did you mean 'small'\?; its variants are small, large"
    ):
        card.weights("smal")
    with pytest.raises(InvalidSettings, match="it has no variants"):
        zoo.find("echo").weights("smal")


def test_what_was_measured_is_what_the_record_gives_back(tmp_path):
    """YAML has dates and other keys than texts, JSON has not."""
    (tmp_path / "model.yaml").write_text(CARD + "quality: {when: 2026-01-02, 1: [0.5, null]}")
    card = zoo.find(str(tmp_path))
    assert card.quality == {"when": "2026-01-02", "1": [0.5, None]}
    assert model_specs.from_json(json.loads(json.dumps(model_specs.as_json(card)))) == card


@pytest.mark.parametrize(
    "path", ["~nobody-of-this-name/net.onnx", "x" * 5000 + ".onnx", "a\0.onnx"]
)
def test_a_path_that_no_file_can_have_is_one_line(path):
    with pytest.raises(ModelLoadFailed) as caught:
        zoo.find(path)
    assert "\n" not in str(caught.value)


def test_a_folder_without_a_card_says_so(tmp_path):
    with pytest.raises(ModelLoadFailed, match=r"has no model\.yaml"):
        zoo.find(str(tmp_path))


@given(
    stem=st.text(st.characters(exclude_characters="/\0", exclude_categories=["Cs"]), max_size=40)
)
def test_any_stem_becomes_a_name_that_can_be_given_back(stem):
    safe = zoo._safe(stem)
    assert re.fullmatch(r"[A-Za-z0-9_-]+", safe)
    assert zoo._safe(safe) == safe


# Programs


@pytest.fixture(name="program")
def _program(tmp_path):
    file = tmp_path / "my-container"
    file.write_text("#!/bin/sh\n")
    file.chmod(0o755)
    return file


def test_a_program_is_a_model_when_its_kind_is_named(program, monkeypatch):
    monkeypatch.chdir(program.parent)
    card = zoo.find("./my-container", kind="command")
    assert (card.kind, card.name, card.path) == ("command", "my-container", None)
    assert card.program == ((str(program),), program.parent)
    assert zoo.find("my-container", kind="command") == card


def test_a_folder_names_its_program_with_arguments_and_a_file(program):
    folder = program.parent
    (folder / "weights.bin").write_bytes(b"")
    (folder / "model.yaml").write_text(
        'name: mine\nversion: "1"\nkind: command\n'
        'command: [./my-container, "-x", "{a b}"]\nfile: weights.bin\n'
    )
    card = zoo.find(str(folder))
    assert card.program == ((str(program), "-x", "{a b}"), folder)
    assert card.path == folder / "weights.bin"


def test_a_program_without_a_slash_is_one_of_the_path(tmp_path):
    (tmp_path / "model.yaml").write_text(
        'name: mine\nversion: "1"\nkind: command\ncommand: [sh, own.sh]\n'
    )
    program = zoo.find(str(tmp_path)).program
    assert pathlib.Path(program.words[0]).is_absolute()
    assert program.words[1:] == ("own.sh",)


@pytest.mark.parametrize(
    ("text", "reason"),
    [
        pytest.param("kind: command", "needs the program", id="no program"),
        pytest.param(
            "kind: echo\ncommand: [sh]", "other kinds have none", id="a program of another kind"
        ),
        pytest.param("kind: command\ncommand: sh", "expected list", id="one text"),
        pytest.param("kind: command\ncommand: []", "expected a list of texts", id="nothing"),
        pytest.param("kind: command\ncommand: [sh, 1]", "expected a list of texts", id="a number"),
        pytest.param("kind: command\ncommand: [./gone]", "no program ./gone", id="missing"),
        pytest.param("kind: command\ncommand: [gone-a1]", "no program gone-a1", id="unknown"),
        pytest.param("kind: command\ncommand: [./model.yaml]", r"chmod \+x", id="not executable"),
    ],
)
def test_a_card_whose_program_cannot_be_started_is_refused(tmp_path, text, reason):
    (tmp_path / "model.yaml").write_text(f'name: mine\nversion: "1"\n{text}\n')
    with pytest.raises(ModelLoadFailed, match=reason):
        zoo.find(str(tmp_path))


@pytest.mark.parametrize(
    ("model", "kind", "reason"),
    [
        ("resnet", "onxx", "did you mean 'onnx'"),
        ("resnet", "torch", "is of kind onnx, not torch"),
    ],
)
def test_a_kind_that_is_none_or_another_is_refused(model, kind, reason):
    with pytest.raises(InvalidSettings, match=reason):
        zoo.find(model, kind=kind)


def test_a_named_kind_is_taken_where_the_suffix_tells_none(tmp_path):
    (tmp_path / "weights").write_bytes(b"")
    assert zoo.find(f"{tmp_path}/weights", kind="torch").kind == "torch"
    assert zoo.find("resnet", kind="onnx").kind == "onnx"


# Formats of other frameworks


@pytest.mark.parametrize("file", ["net.pt", "net.pt2", "old.pth"])
def test_files_of_pytorch_are_known_by_their_suffix(tmp_path, file):
    (tmp_path / file).write_bytes(b"")
    assert zoo.find(str(tmp_path / file)).kind == "torch"


@pytest.mark.parametrize(
    ("folder", "name", "version"), [("half", "half", "1"), ("half/12", "half", "12")]
)
def test_a_saved_model_is_a_folder_or_one_version_of_several(tmp_path, folder, name, version):
    (tmp_path / folder).mkdir(parents=True)
    (tmp_path / folder / "saved_model.pb").write_bytes(b"")
    card = zoo.find(str(tmp_path / folder))
    assert (card.kind, card.name, card.version) == ("tensorflow", name, version)
    assert card.path == tmp_path / folder


def test_a_card_may_name_the_folder_of_a_saved_model(tmp_path):
    (tmp_path / "saved").mkdir()
    (tmp_path / "saved" / "saved_model.pb").write_bytes(b"")
    (tmp_path / "model.yaml").write_text(
        'name: mine\nversion: "1"\nkind: tensorflow\nfile: saved\n'
    )
    assert zoo.find(str(tmp_path)).path == tmp_path / "saved"
