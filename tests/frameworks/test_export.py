"""What `tune export` writes for clusters, held against the schemas of Kubernetes and KServe's own models."""

import dataclasses
import re

import pytest
import yaml

from serving.model_spec import ModelSpec
from serving.zoo import find
from tests.fakes import studies
from tuner import export
from tuner.export import confirmation_job
from tuner.settings.measurement import MeasurementSettings
from tuner.settings.target import TargetSettings
from tuner.values.configuration import Configuration

validate = pytest.importorskip(
    "kubernetes_validate", reason="kubernetes-validate is installed by make test-frameworks"
).validate
client = pytest.importorskip("kubernetes.client", reason="kserve brings it")
kserve_models = pytest.importorskip(
    "kserve.models", reason="kserve is installed by make test-frameworks"
)

pytestmark = pytest.mark.frameworks
VERSIONS = ("1.27", "1.37")
"""Of Kubernetes."""
PLAIN = {"str": str, "int": int, "bool": bool}


def study_of(**values):
    """A study whose best configuration has these knobs."""
    study = studies.study(trials=12)
    best = {name.replace("__", "."): value for name, value in values.items()}
    return dataclasses.replace(study, best=Configuration({**study.best, **best}))


def _own_model(tmp_path):
    path = tmp_path / "nets" / "net.onnx"
    card = ModelSpec(name="net", version="1", kind="onnx", path=path)
    study = studies.study(trials=12, name="n\nkind: Pod $(HOME) # é", notes=("{", "---"))
    return dataclasses.replace(study, settings={"target": {"model": str(path)}}), card


@pytest.fixture(params=["bundled", "cached", "own"], name="exported")
def _exported(request, tmp_path):
    """Manifests of one target, for studies of several kinds."""
    if request.param == "own":
        study, card = _own_model(tmp_path)
    else:
        cache = {"cache__capacity_mb": 64} if request.param == "cached" else {}
        study, card = study_of(**cache), find("resnet")

    def manifests(target):
        (text,) = export.export(study, target, card=card).values()
        return list(yaml.safe_load_all(text))

    return manifests


@pytest.mark.parametrize("version", VERSIONS)
def test_kubernetes_takes_every_manifest(exported, version):
    """Strictly: no field that its schema does not know."""
    found = exported("kubernetes")
    kinds = ["ConfigMap", "Deployment", "Service", "NetworkPolicy", "HorizontalPodAutoscaler"]
    assert [document["kind"] for document in found] == kinds
    for document in found:
        validate(document, version, strict=True)


@pytest.mark.parametrize("version", VERSIONS)
def test_kubernetes_takes_the_pods_of_a_raycluster(exported, version):
    """Strictly, each as a template; the fields of the RayCluster are in `tests/tuner/export/test_kuberay.py`."""
    settings, cluster, *others = exported("kuberay")
    for document in (settings, *others):
        validate(document, version, strict=True)
    groups = [cluster["spec"]["headGroupSpec"], *cluster["spec"]["workerGroupSpecs"]]
    assert len(groups) == 3
    for group in groups:
        pods = {"apiVersion": "v1", "kind": "PodTemplate", "metadata": cluster["metadata"]}
        validate({**pods, "template": group["template"]}, version, strict=True)


@pytest.mark.parametrize("version", VERSIONS)
def test_kubernetes_takes_the_job_that_confirms_an_export(version):
    """Strictly, and whatever the names of study and shapes are."""
    study = study_of()
    target = TargetSettings(model="resnet", rate=20.0, shape=("image=3x32x$(HOME)",))
    text = confirmation_job.manifest(
        study, target, MeasurementSettings(), url=None, repeats=3, seconds=0.6
    )
    validate(yaml.safe_load(text), version, strict=True)


def test_the_check_finds_what_is_wrong(exported):
    """A misspelt field and a text for a number are refused."""
    service, *_ = [d for d in exported("kubernetes") if d["kind"] == "Service"]
    with pytest.raises(Exception, match="prots"):
        validate({**service, "spec": {"prots": []}}, VERSIONS[-1], strict=True)
    with pytest.raises(AssertionError, match="minReplica"):
        typed({"predictor": {"minReplica": 1}}, "V1beta1InferenceServiceSpec")


def test_kserve_takes_the_service(exported):
    """Field by field in KServe's models, and in those of Kubernetes below them."""
    settings, service = exported("kserve")
    validate(settings, VERSIONS[-1], strict=True)
    typed(service, "V1beta1InferenceService")
    predictor = service["spec"]["predictor"]
    assert predictor["containers"][0]["name"] == "kserve-container"


def typed(data, kind):
    """Hold plain data against a model of the clients, in which every field has a name and a type."""
    nested = re.fullmatch(r"(list|dict)[\[(](?:str, )?(.+)[\])]", kind, re.IGNORECASE)
    if nested:
        is_list = nested[1].lower() == "list"
        assert isinstance(data, list if is_list else dict), (kind, data)
        for item in data if is_list else data.values():
            typed(item, nested[2])
        return
    if kind in PLAIN:
        assert type(data) is PLAIN[kind], (kind, data)
        return
    if kind in {"object", "ResourceQuantity"}:
        assert isinstance(data, int | str), (kind, data)
        return
    model = getattr(kserve_models, kind, None) or getattr(client, kind)
    fields = {outer: model.openapi_types[inner] for inner, outer in model.attribute_map.items()}
    assert isinstance(data, dict), (kind, data)
    for name, value in data.items():
        assert name in fields, f"{kind} has no field {name}"
        typed(value, fields[name])
