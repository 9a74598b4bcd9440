"""What holds for every target."""

import dataclasses
import functools
import pathlib
import re

import pytest
import yaml
from hypothesis import example, given, settings
from hypothesis import strategies as st

from serving.model_spec import Variant
from serving.settings import SETTINGS
from serving.values import Signature
from tests.tuner.export.conftest import (
    MODEL_TARGETS,
    RESNET,
    STUDY,
    of_model,
    own_model,
    texts_of,
    with_best,
)
from tuner.errors import UsageError
from tuner.export import triton
from tuner.values.configuration import Configuration

NASTY = "a\nreplica: {count: 64}\u2028} # $HOME ${X} $(id) `id` \"'\\ \x00\x1b[31m 模型"
PLAIN = {target: texts_of(target) for target in MODEL_TARGETS}
SIGNATURE = Signature.from_json(
    {
        "inputs": [{"name": "x", "datatype": "FP32", "shape": [-1, 3]}],
        "outputs": [{"name": "y", "datatype": "FP32", "shape": [-1, 3]}],
    }
)
LEFT = re.compile(r"^# Not exported:\n((?:#   .*\n)+)", re.MULTILINE)


def left_out(text):
    """Names of the knobs that a file lists as not carried over."""
    found = LEFT.search(text)
    return {} if found is None else dict(re.findall(r"#   ([\w.]+): (.*)\n", found[1]))


def without_head(text):
    return "".join(line for line in text.splitlines(keepends=True) if not line.startswith("#"))


def used(text):
    """What a file holds, and the command that puts it to use."""
    return without_head(text), re.findall(r"^# Use: .*", text, re.MULTILINE)


def other_value(name, value):
    """A valid value of a knob that is another one."""
    knob = SETTINGS[name]
    if knob.choices:
        return next(choice for choice in knob.choices if choice != value)
    return value * 2 or 2


@pytest.mark.parametrize(
    "extra",
    [
        {},
        {"batching__max_size": 1},
        {"batching__policy": "aimd", "batching__slo_ms": 10.0},
        {"cache__capacity_mb": 64, "scheduling__queue_capacity": 100},
        {"accelerator__clock_mhz": 1410, "some__thing": "new"},
    ],
    ids=lambda extra: ",".join(extra) or "plain",
)
def test_every_knob_is_carried_over_or_listed_with_a_reason(target, extra):
    """A knob that is not listed changes the export when it changes."""
    study = with_best(replica__count=2, replica__cpu=0.5, **extra)
    files = texts_of(target, study)
    listed = left_out(next(iter(files.values())))
    for name, value in study.best.items():
        if name in listed:
            assert re.search(r"\(.+\)$", listed[name]), "the reason"
            continue
        others = Configuration({**study.best, name: other_value(name, value)})
        changed = texts_of(target, dataclasses.replace(study, best=others))
        heads = next(iter(changed.values()))
        is_changed = list(map(used, files.values())) != list(map(used, changed.values()))
        assert is_changed or name in left_out(heads), name


def test_the_head_tells_study_load_figures_and_verdict(target):
    """As comments, with the intervals of the figures."""
    text = next(iter(texts_of(target).values()))
    for part in (STUDY.name, "concurrency 20", STUDY.verdict.text, *STUDY.notes):
        assert part in text
    assert len(re.findall(r"mean [\d.]+ ms \[[\d.]+, [\d.]+\]", text)) >= 2
    assert text.count("requests/s [") >= 2


@example(name=NASTY)
@given(name=st.text(max_size=30))
@settings(max_examples=20, deadline=None)
def test_no_name_leaves_the_comments_or_its_string(name):
    """Whatever study, model and notes are called, what is deployed differs in texts alone."""
    study = dataclasses.replace(
        STUDY,
        name=name,
        notes=(name,),
        verdict=dataclasses.replace(STUDY.verdict, text=name),
    )
    for target in MODEL_TARGETS:
        plain, nasty = PLAIN[target], texts_of(target, study)
        assert plain.keys() == nasty.keys()
        for file, text in nasty.items():
            if file.endswith(".yaml"):
                assert shapes_of(text) == shapes_of(plain[file])
            else:
                assert without_head(text) == without_head(plain[file])


@functools.lru_cache(maxsize=64)
def shapes_of(text):
    """The documents of a file."""
    return [shape_of(document) for document in yaml.safe_load_all(text)]


def shape_of(data):
    """A document without what tells of the study: annotations, labels, comments in texts."""
    if isinstance(data, dict):
        return {
            key: shape_of(value)
            for key, value in data.items()
            if not str(key).startswith(("luthier/", "luthier-export."))
        }
    if isinstance(data, list):
        return [shape_of(value) for value in data]
    return without_head(data) if isinstance(data, str) else data


def test_a_service_offers_both_query_ports():
    """REST and gRPC, by the names that the pod gives them."""
    found = {
        document["kind"]: document.get("spec")
        for document in yaml.safe_load_all(texts_of("kubernetes", STUDY)["kubernetes.yaml"])
    }
    (pod,) = found["Deployment"]["template"]["spec"]["containers"]
    ports = {"http": 8000, "grpc": 8001}
    assert {port["name"]: port["containerPort"] for port in pod["ports"]} == ports
    assert {port["targetPort"]: port["port"] for port in found["Service"]["ports"]} == ports


@pytest.mark.parametrize("name", [NASTY, "Ünïcode", "9", "-", "a" * 200])
def test_any_model_name_gives_names_that_systems_take(name):
    """DNS labels of at most 63 characters that begin with a letter."""
    study = dataclasses.replace(STUDY, model=name)
    (service,) = [
        document
        for document in yaml.safe_load_all(texts_of("kubernetes", study)["kubernetes.yaml"])
        if document["kind"] == "Service"
    ]
    assert re.fullmatch(r"[a-z]([-a-z0-9]{0,61}[a-z0-9])?", service["metadata"]["name"])


def test_paths_of_models_are_taken_as_they_are(tmp_path):
    """Nothing in a path is filled in, cut off, or read as another setting."""
    file = tmp_path / "my $HOME models #1" / 'n"et ${x}.onnx'
    card = own_model(file)
    study = of_model(card, str(file))
    compose = yaml.safe_load(texts_of("compose", study, card)["compose.yaml"])
    service = compose["services"]["server"]
    model = service["volumes"][1]
    assert model["source"].replace("$$", "$") == str(file.parent)
    assert model["target"].replace("$$", "$") == "/model/my $HOME models #1"
    assert model["read_only"] is True
    assert service["command"][1].replace("$$", "$") == f"/model/my $HOME models #1/{file.name}"
    assert "$" not in str(service).replace("$$", "")


def test_code_of_a_user_is_found_where_it_lies(tmp_path):
    """FILE.py:NAME keeps its class, its folder is mounted, other servers get the absolute path."""
    reference = tmp_path / "doubled.py:Doubled"
    card = own_model(reference, kind="python")
    study = of_model(card, "doubled.py:Doubled")
    service = yaml.safe_load(texts_of("compose", study, card)["compose.yaml"])["services"]["server"]
    assert service["command"][1] == f"/model/{tmp_path.name}/doubled.py:Doubled"
    assert service["volumes"][1]["source"] == str(tmp_path)
    ray = yaml.safe_load(texts_of("ray", study, card)["ray.yaml"])
    assert ray["applications"][0]["args"]["model"] == str(reference)
    config = texts_of("triton", study, card)["mine/config.pbtxt"]
    assert f"string_value: {triton.quote(str(reference))}" in config


def test_a_saved_model_keeps_its_name_and_version(tmp_path):
    """Its folder is mounted under the folders that its name and version are told from."""
    folder = tmp_path / "scaled" / "3"
    card = own_model(folder, kind="tensorflow")
    service = yaml.safe_load(texts_of("compose", of_model(card, str(folder)), card)["compose.yaml"])
    volume = service["services"]["server"]["volumes"][1]
    assert (volume["source"], volume["target"]) == (str(folder), "/model/scaled/3")


def test_a_module_of_this_machine_is_in_no_image():
    """Said in one line, with what to do."""
    card = own_model(pathlib.Path("package.module:Name"), kind="python")
    study = of_model(card, "package.module:Name")
    with pytest.raises(
        UsageError, match=r"which no image contains.* tune its file \(FILE\.py:NAME\)"
    ):
        texts_of("compose", study, card)
    assert texts_of("ray", study, card), "Python of the same machine has it"


@pytest.mark.parametrize("name", ["triton", "ray"])
def test_a_program_is_no_model_of_others(name):
    """The kind command speaks our wire alone."""
    card = own_model(None, kind="command")
    with pytest.raises(UsageError, match="--to compose, kubernetes or kserve"):
        texts_of(name, of_model(card, "/srv/mine"), card)


def test_the_model_is_asked_for_where_it_is_needed(target):
    """Without its card the error names it."""
    with pytest.raises(UsageError, match="the model resnet is needed"):
        texts_of(target, card=None)


def test_a_trial_is_exported_on_request(target):
    """Its configuration, whatever the study advises."""
    trial = next(t for t in STUDY.trials if t.measurement and t.configuration != STUDY.best)
    text = "".join(texts_of(target, trial=trial.number).values())
    assert f"Trial {trial.number}, as requested." in text
    assert texts_of(target) != texts_of(target, trial=trial.number)


def test_the_card_of_the_tests_is_real():
    """Of the bundled model, whose file is copied."""
    assert RESNET.path.is_file()


def test_the_variant_goes_along(target):
    """By its name, as its file, or as its folder in the command."""
    if target == "tfserving":
        pytest.skip("it takes a SavedModel, which resnet is not")
    files = texts_of(target, with_best(model__variant="resnet8"))
    assert "model.variant" not in left_out(next(iter(files.values())))


def test_programs_of_ours_load_the_variant():
    """Ray's gets it as an argument, Triton's as a parameter."""
    study = with_best(model__variant="small")
    variants = {"small": Variant(pathlib.Path("/m/small.py"), {})}
    card = own_model(pathlib.Path("/m/small.py:Mine"), kind="python", variants=variants)
    study = dataclasses.replace(of_model(card, "/m", study), signature=SIGNATURE)
    ray = yaml.safe_load(texts_of("ray", study, card)["ray.yaml"])
    assert ray["applications"][0]["args"]["variant"] == "small"
    config = texts_of("triton", study, card)["mine/config.pbtxt"]
    assert 'key: "variant" value { string_value: "small" }' in config


def test_the_command_names_the_folder_of_the_variant():
    """TensorFlow Serving's script takes a folder."""
    variants = {name: Variant(pathlib.Path(f"/m/{name}"), {}) for name in ("small", "large")}
    card = own_model(pathlib.Path("/m/large"), kind="tensorflow", variants=variants)
    study = of_model(card, "/m", with_best(model__variant="small"))
    text = texts_of("tfserving", study, card)["serve.sh"]
    assert "serve.sh /m/small\n" in text
    assert "model.variant" not in left_out(text)


@pytest.mark.parametrize(
    ("knobs", "is_for_gpu"),
    [
        ({"accelerator__device": "cuda"}, True),
        ({"accelerator__clock_mhz": 1410}, True),
        ({"accelerator__device": "auto", "accelerator__share": 50}, True),
        ({"accelerator__device": "auto"}, False),
        ({"accelerator__device": "cpu"}, False),
        ({"accelerator__device": "cpu", "accelerator__clock_mhz": 1410}, False),
    ],
    ids=str,
)
def test_a_gpu_is_asked_for_where_one_is_used(knobs, is_for_gpu):
    """`auto` is the default everywhere: by itself it asks for nothing."""
    text = texts_of("compose", with_best(**knobs))["compose.yaml"]
    assert ("driver: nvidia" in text) == is_for_gpu


@pytest.mark.parametrize("where", ["ray", "triton"])
def test_a_program_that_loads_the_model_is_told_that_it_is_trusted(tmp_path, where):
    """Only where the study was."""
    card = own_model(tmp_path / "mine", kind="mlflow")
    study = of_model(card, str(tmp_path / "mine"))
    study = dataclasses.replace(study, signature=SIGNATURE)
    trusted = {"target": {**study.settings["target"], "trust": True}}
    told = re.compile(r"\btrust: true|\"trust\" value")
    for settings_of_it, count in ((study.settings, 0), (trusted, 1)):
        files = texts_of(where, dataclasses.replace(study, settings=settings_of_it), card)
        assert sum(len(told.findall(text)) for text in files.values()) == count
