"""KubeRay: replicas fit on their machines, the gateway is one of the cluster, and nobody else gets in.

The manifests are run as pods in `tests/containers/test_kuberay.py`.
"""

import pathlib
import re

import yaml
from hypothesis import given, settings
from hypothesis import strategies as st

from serving.models import EXTRAS
from serving.settings import sources
from tests.tuner.export.conftest import RESNET, STUDY, of_model, own_model, texts_of, with_best
from tuner import export
from tuner.advice import Advice
from tuner.export import container, kuberay
from tuner.export.export_input import ExportInput
from tuner.metrics.server_resources import RUNTIME_MB
from tuner.values.configuration import Configuration

ROOT = pathlib.Path(__file__).parents[3]
TWO = with_best(replica__count=4, replica__cpu=0.5, replica__memory_mb=128)
TEXTS, NUMBERS = dict[str, str], {"replicas": int, "minReplicas": int, "maxReplicas": int}
GROUP = {"groupName": str, "rayStartParams": TEXTS, "template": dict, **NUMBERS}
FIELDS = {
    "": {"rayVersion": str, "authOptions": dict, "headGroupSpec": dict, "workerGroupSpecs": list},
    "authOptions": {"mode": str},
    "headGroupSpec": {"rayStartParams": TEXTS, "template": dict},
    "workerGroupSpecs": GROUP,
}
"""Of a RayCluster of ray.io/v1, those that are used, with their types."""


def found(study=TWO, **options):
    """The manifests by kind and name."""
    text = texts_of("kuberay", study, **options)["kuberay.yaml"]
    documents = list(yaml.safe_load_all(text))
    return {(one["kind"], one["metadata"]["name"]): one for one in documents}


def spec(study=TWO, **options):
    """The specification of the cluster."""
    (cluster,) = [one for (kind, _), one in found(study, **options).items() if kind == "RayCluster"]
    return cluster["spec"]


def group(name, study=TWO, **options):
    """A group of pods, and its one container."""
    groups = {one["groupName"]: one for one in spec(study, **options)["workerGroupSpecs"]}
    (only,) = groups[name]["template"]["spec"]["containers"]
    return groups[name], only


def test_every_field_is_one_of_a_raycluster():
    """With a value of its type; KubeRay takes texts alone for the options of `ray start`."""
    made = spec()
    places = [("", made), ("authOptions", made["authOptions"])]
    places += [("headGroupSpec", made["headGroupSpec"])]
    places += [("workerGroupSpecs", one) for one in made["workerGroupSpecs"]]
    for place, data in places:
        assert data.keys() == FIELDS[place].keys(), place
        for name, kind in FIELDS[place].items():
            if kind is TEXTS:
                assert all(isinstance(text, str) for text in data[name].values()), (place, name)
            else:
                assert type(data[name]) is kind, (place, name)


@given(
    count=st.integers(1, 64),
    cpu=st.none() | st.sampled_from([0.05, 0.3, 0.5, 1.0, 1.5, 4.0]),
    memory_mb=st.none() | st.integers(64, 4096),
    share=st.none() | st.integers(1, 100),
    on_gpu=st.booleans(),
)
@settings(max_examples=60, deadline=None)
def test_the_replicas_fit(count, cpu, memory_mb, share, on_gpu):
    """Machine by machine, as Ray places them: cores, memory, GPUs; and in what the pod is given."""
    knobs = {"replica__count": count, "replica__threads": 2}
    knobs |= {} if cpu is None else {"replica__cpu": cpu}
    knobs |= {} if memory_mb is None else {"replica__memory_mb": memory_mb}
    if on_gpu:
        knobs |= {"accelerator__device": "cuda"}
        knobs |= {} if share is None else {"accelerator__share": share}
    best = with_best(**knobs).best
    unset = {
        name
        for name, value in (("replica.cpu", cpu), ("replica.memory_mb", memory_mb))
        if value is None
    }
    best = Configuration({name: value for name, value in best.items() if name not in unset})
    found = Advice(configuration=best, reason="")
    subject = ExportInput(record=STUDY, advice=found, place=pathlib.PurePath("best"), card=RESNET)
    machine, _ = kuberay.replica_machines(subject)
    each = machine.cores / (cpu or 1.0) + 1e-9
    if memory_mb is not None:
        each = min(each, machine.replica_mb // memory_mb)
    if on_gpu:
        each = min(each, 100 // (share or 100))
    assert machine.has_gpu == on_gpu
    assert machine.count * int(each) >= count, "Ray finds a place for all of them"
    assert (machine.count - 1) * int(each) < count or not on_gpu, "no GPU is for nothing"
    held = -(-count // machine.count)
    assert machine.cpu >= held * (cpu or 2) + 0.1
    assert (machine.memory_mb is None) == (memory_mb is None)
    assert memory_mb is None or machine.memory_mb > held * memory_mb + 256


def test_a_machine_that_is_lost_leaves_another():
    """Of several replicas; one has one machine."""
    assert group("machines")[0]["replicas"] == 2
    assert group("machines", with_best(TWO, replica__count=1))[0]["replicas"] == 1


def test_a_large_runtime_is_memory_of_each_machine(tmp_path):
    """The fork server there has it; the gateway has none."""
    card = own_model(tmp_path / "net.pt2", kind="torch")
    study = of_model(card, str(tmp_path / "net.pt2"), TWO)

    def memory(name, study, **options):
        return int(group(name, study, **options)[1]["resources"]["limits"]["memory"][:-2])

    assert memory("machines", study, card=card) == memory("machines", TWO) + RUNTIME_MB["torch"]
    assert memory("gateway", study, card=card) == memory("gateway", TWO)


def test_no_replica_is_placed_beside_head_or_gateway():
    """They have no cores for Ray."""
    assert spec()["headGroupSpec"]["rayStartParams"]["num-cpus"] == "0"
    assert group("gateway")[0]["rayStartParams"]["num-cpus"] == "0"


def test_commands_are_ours_and_hold_the_operators():
    """The annotation says so; the gateway starts as a machine, and then becomes the server."""
    (cluster,) = [one for (kind, _), one in found().items() if kind == "RayCluster"]
    assert cluster["metadata"]["annotations"]["ray.io/overwrite-container-cmd"] == "true"
    (head,) = spec()["headGroupSpec"]["template"]["spec"]["containers"]
    for only in (head, group("machines")[1]):
        assert only["command"][-1].endswith("exec $KUBERAY_GEN_RAY_START_CMD")
    gateway = group("gateway")[1]
    assert "${KUBERAY_GEN_RAY_START_CMD/--block/}" in gateway["command"][2]
    assert gateway["command"][2].endswith('exec python3 -m serving "$@"')
    assert gateway["args"][:2] == ["--model", "resnet"]


def test_ray_asks_for_a_token_and_strangers_do_not_reach_it():
    """KubeRay makes the token for a version of 2.52 or newer; others reach the query ports alone."""
    made = found()
    assert spec()["authOptions"] == {"mode": "token"}
    assert tuple(map(int, spec()["rayVersion"].split("."))) >= (2, 52)
    own, queries = [one["spec"] for (kind, _), one in made.items() if kind == "NetworkPolicy"]
    assert own["podSelector"]["matchLabels"] == {"ray.io/cluster": "luthier-resnet"}
    assert own["ingress"] == [{"from": [{"podSelector": own["podSelector"]}]}]
    assert queries["podSelector"]["matchLabels"]["ray.io/group"] == "gateway"
    assert queries["ingress"][0]["ports"] == [{"port": "http"}, {"port": "grpc"}]


def test_the_service_leads_to_the_gateway():
    """By the labels of KubeRay, on both query ports."""
    (service,) = [one["spec"] for (kind, _), one in found().items() if kind == "Service"]
    assert service["selector"] == {"ray.io/cluster": "luthier-resnet", "ray.io/group": "gateway"}
    ports = {port["name"]: port["containerPort"] for port in group("gateway")[1]["ports"]}
    assert {port["targetPort"]: port["port"] for port in service["ports"]} == ports


def test_every_pod_drains_and_has_no_rights():
    """The grace period is longer than the drain, and no container is root or writes to its image."""
    made = spec()
    for one in (made["headGroupSpec"], *made["workerGroupSpecs"]):
        inside = one["template"]["spec"]
        assert inside["automountServiceAccountToken"] is False
        assert inside["terminationGracePeriodSeconds"] == container.DRAIN_S
        (only,) = inside["containers"]
        rights = only["securityContext"]
        assert rights["readOnlyRootFilesystem"] is rights["runAsNonRoot"] is True
        assert rights["capabilities"] == {"drop": ["ALL"]}
        assert only["livenessProbe"], "or KubeRay adds one that needs Ray's dashboard"
        assert only["readinessProbe"]


def test_the_gateway_reads_the_settings_and_restarts_with_new_ones(tmp_path):
    """They are the study's, with replicas on machines of Ray; a GPU is a machine's, by its share."""
    study = with_best(TWO, accelerator__share=50)
    made = found(study)
    (settings_text,) = [one["data"] for (kind, _), one in made.items() if kind == "ConfigMap"]
    file = tmp_path / "settings.yaml"
    file.write_text(settings_text["settings.yaml"], encoding="utf-8")
    read = sources.resolve(file=file, environment={})
    assert read.replica.spawner == "ray"
    assert (read.replica.count, read.replica.cpu, read.replica.limits) == (4, 0.5, "each")
    assert (read.accelerator.device, read.accelerator.share) == ("cuda", 50)
    assert read.replica.ready_timeout_s == kuberay.READY_S
    probe = group("gateway", study)[1]["startupProbe"]
    assert probe["periodSeconds"] * probe["failureThreshold"] >= kuberay.READY_S
    digests = {
        group("gateway", one)[0]["template"]["metadata"]["annotations"]["luthier/settings-sha256"]
        for one in (study, with_best(study, batching__max_size=16))
    }
    assert len(digests) == 2


def test_a_model_of_the_user_is_the_gateways_alone(tmp_path):
    """It sends the machines what they need."""
    file = tmp_path / "nets" / "net.onnx"
    card = own_model(file)
    study = of_model(card, str(file), TWO)
    made, gateway = group("gateway", study, card=card)
    claims = [one.get("persistentVolumeClaim") for one in made["template"]["spec"]["volumes"]]
    assert {"claimName": "luthier-mine-model", "readOnly": True} in claims
    assert gateway["args"][1] == "/model/nets/net.onnx"
    others, only = group("machines", study, card=card)
    assert [one["name"] for one in others["template"]["spec"]["volumes"]] == ["tmp"]
    assert only["image"] == kuberay.IMAGE


def test_the_image_is_the_one_with_ray(tmp_path):
    """Which `make images RAY=1` builds, with this version of Ray; by the model's kind."""
    text = (ROOT / "docker" / "requirements" / "ray.txt").read_text(encoding="utf-8")
    assert re.search(r"^ray==(.+)$", text, re.MULTILINE)[1] == kuberay.RAY_VERSION
    for kind in EXTRAS:
        card = own_model(tmp_path / "net", kind=kind)
        study = of_model(card, str(tmp_path / "net"), TWO)
        assert group("machines", study, card=card)[1]["image"] == f"{kuberay.IMAGE}-{kind}"


def test_it_is_said_that_it_is_not_what_was_measured():
    """The network was not, so the command warns as well."""
    assert "cross the network" in export.caution(TWO, "kuberay")
    assert "WARNING: the study measured one machine" in texts_of("kuberay", TWO)["kuberay.yaml"]
