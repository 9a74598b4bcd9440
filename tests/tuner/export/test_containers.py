"""Compose, Kubernetes and KServe: one container with the whole server, limits that add up."""

import dataclasses

import pytest
import yaml

from serving import __version__
from serving.settings import ServingSettings, sources
from tests.tuner.export.conftest import STUDY, of_model, own_model, texts_of, with_best
from tuner.export import kubernetes
from tuner.metrics import server_resources

CONTAINERS = ("compose", "kubernetes", "kserve")
TWO = with_best(replica__count=2, replica__cpu=0.5, replica__memory_mb=128)


def documents(target, study=TWO, **options):
    """The manifests of a target by kind."""
    text = texts_of(target, study, **options)[f"{target}.yaml"]
    return {document["kind"]: document for document in yaml.safe_load_all(text)}


def pod(target, study=TWO, **options):
    """The specification of the pod."""
    found = documents(target, study, **options)
    if target == "kserve":
        return found["InferenceService"]["spec"]["predictor"]
    return found["Deployment"]["spec"]["template"]["spec"]


def service(study=TWO, **options):
    """The service of the compose file."""
    return yaml.safe_load(texts_of("compose", study, **options)["compose.yaml"])["services"][
        "server"
    ]


def test_limits_are_the_sum_of_gateway_and_replicas():
    """2 x 0.5 + 1 cores; 2 x 128 MiB, 256 of gateway and template, 64 of /tmp; no swap."""
    assert service()["cpus"] == 2.0
    assert service()["mem_limit"] == service()["memswap_limit"] == "576m"


@pytest.mark.parametrize("target", ["kubernetes", "kserve"])
def test_a_pod_gets_what_it_may_use(target):
    """Requests equal limits, so that a pod is not the first to be evicted."""
    resources = pod(target)["containers"][0]["resources"]
    assert resources["requests"] == resources["limits"] == {"cpu": "2000m", "memory": "576Mi"}


def test_no_more_cores_than_were_measured():
    """Quotas that overlap on a machine of 4 cores are no 9 cores."""
    assert service(with_best(replica__count=4, replica__cpu=2.0))["cpus"] == 4.0


def test_a_cache_and_a_large_runtime_are_memory(tmp_path):
    """The cache is in the gateway, PyTorch in the template."""
    assert service(with_best(TWO, cache__capacity_mb=100))["mem_limit"] == "676m"
    card = own_model(tmp_path / "net.pt2", kind="torch")
    study = of_model(card, str(tmp_path / "net.pt2"), TWO)
    more = server_resources.RUNTIME_MB["torch"]
    assert service(study, card=card)["mem_limit"] == f"{576 + more}m"


def test_without_limits_of_the_study_memory_is_not_limited():
    """Cores follow from the threads."""
    best = {name: TWO.best[name] for name in ("replica.count", "replica.threads")}
    study = dataclasses.replace(TWO, best=type(TWO.best)(best))
    assert "mem_limit" not in service(study)
    assert service(study)["cpus"] == min(4, 1 + 2 * best["replica.threads"])


@pytest.mark.parametrize("target", CONTAINERS)
def test_the_server_reads_the_settings_of_the_container(target, tmp_path):
    """They hold the whole configuration, and that the container is limited, not a replica."""
    if target == "compose":
        text = texts_of("compose", TWO)["best.yaml"]
    else:
        text = documents(target)["ConfigMap"]["data"]["settings.yaml"]
    file = tmp_path / "settings.yaml"
    file.write_text(text, encoding="utf-8")
    read = sources.resolve(file=file, environment={})
    assert read == ServingSettings().with_changes({**TWO.best, "replica.limits": "pod"})


@pytest.mark.parametrize("target", CONTAINERS)
def test_the_container_has_no_rights_that_it_does_not_need(target):
    """Read-only root, no capabilities, no new privileges, no root."""
    if target == "compose":
        found = service()
        assert found["read_only"] is True
        assert found["cap_drop"] == ["ALL"]
        assert found["security_opt"] == ["no-new-privileges:true"]
        assert found["user"] == "65532:65532"
        assert found["ports"] == ["127.0.0.1:8000:8000", "127.0.0.1:8001:8001"]
        return
    found = pod(target)["containers"][0]["securityContext"]
    assert found["readOnlyRootFilesystem"] is found["runAsNonRoot"] is True
    assert found["allowPrivilegeEscalation"] is False
    assert found["capabilities"] == {"drop": ["ALL"]}


@pytest.mark.parametrize("target", CONTAINERS)
def test_the_image_is_the_one_of_this_version(target):
    """Which `make images` builds."""
    found = service() if target == "compose" else pod(target)["containers"][0]
    assert found["image"] == f"luthier-server:{__version__}"


def test_a_kind_with_a_runtime_of_its_own_has_an_image_of_its_own(tmp_path):
    """As `make images` names it."""
    card = own_model(tmp_path / "net.pt2", kind="torch")
    study = of_model(card, str(tmp_path / "net.pt2"), TWO)
    assert service(study, card=card)["image"] == f"luthier-server:{__version__}-torch"


@pytest.mark.parametrize("target", CONTAINERS)
def test_a_configuration_for_a_gpu_gets_one(target):
    """Its clock is the machine's: no server without rights sets it."""
    study = with_best(TWO, accelerator__clock_mhz=1410)
    if target == "compose":
        devices = service(study)["deploy"]["resources"]["reservations"]["devices"]
        assert devices == [{"driver": "nvidia", "count": 1, "capabilities": ["gpu"]}]
    else:
        resources = pod(target, study)["containers"][0]["resources"]
        assert (
            resources["limits"]["nvidia.com/gpu"] == resources["requests"]["nvidia.com/gpu"] == "1"
        )
    text = texts_of(target, study)[f"{target}.yaml"]
    assert "#   accelerator.clock_mhz: 1410 (set it on the machine)" in text


@pytest.mark.parametrize("target", CONTAINERS)
def test_it_is_said_what_one_container_cannot_hold(target):
    """Limits of the single replica are not enforced in it."""
    text = texts_of(target, TWO)[f"{target}.yaml"]
    assert "# a replica may use what another leaves. `tune confirm` measures" in text
    head = " ".join(text.replace("\n# ", " ").split())
    assert (
        "WARNING: in the study each of 2 replicas had 0.5 cores and 128 MiB; in this export they"
        in head
    )


@pytest.mark.parametrize("target", CONTAINERS)
def test_what_was_measured_as_a_whole_is_exported_without_a_warning(target):
    """The sums are those under which the study measured."""
    settings = {**TWO.settings, "target": {**TWO.settings.get("target", {}), "limits": "pod"}}
    study = dataclasses.replace(TWO, settings=settings)
    text = texts_of(target, study)[f"{target}.yaml"]
    assert "# a replica may use what another leaves, as when it was measured." in text
    assert "WARNING" not in text
    measured = server_resources.needed_by(study.best, "onnx", cores=4)
    memory, cpu = f"{measured.memory_mb}Mi", f"{round(1000 * measured.cpu)}m"
    if target == "compose":
        assert service(study)["mem_limit"] == f"{measured.memory_mb}m"
        assert service(study)["cpus"] == measured.cpu
    else:
        limits = pod(target, study)["containers"][0]["resources"]["limits"]
        assert limits == {"cpu": cpu, "memory": memory}


def test_the_autoscaler_adds_pods_before_the_measured_load_is_reached():
    """At 80 % of the CPU time that was used at the study's load."""
    launch = TWO.verdict.best[0]
    noise = dataclasses.replace(launch.noise, server_cpu_s=1.5 * (launch.seconds + launch.warmup_s))
    target, lines = kubernetes.scaling_target((dataclasses.replace(launch, noise=noise),), 2.0)
    assert target == 60, "80 % of 1.5 of 2 cores"
    assert f"{launch.throughput_per_s:.4g} requests/s and used 1.5 cores" in lines[0]


def test_without_the_cpu_time_the_autoscaler_takes_the_request():
    """That it is not known is said."""
    target, lines = kubernetes.scaling_target((TWO.verdict.best[0],), 2.0)
    assert target == 80
    assert "not known" in lines[0]


def test_new_settings_start_new_pods():
    """The pods carry the digest of the settings that they read at their start."""

    def digest(study):
        template = documents("kubernetes", study)["Deployment"]["spec"]["template"]
        return template["metadata"]["annotations"]["luthier/settings-sha256"]

    assert digest(TWO) == digest(dataclasses.replace(TWO, notes=()))
    assert digest(TWO) != digest(with_best(TWO, batching__max_size=16))


def test_kserve_lets_no_more_requests_in_than_were_measured():
    """The study's concurrency is the pod's."""
    predictor = pod("kserve")
    assert predictor["containerConcurrency"] == predictor["scaleTarget"] == STUDY.concurrency
    assert {"name": "PROTOCOL", "value": "v2"} in predictor["containers"][0]["env"]


def test_a_model_of_the_user_comes_from_a_volume_or_a_storage(tmp_path):
    """A claim in Kubernetes, STORAGE_URI in KServe; the arguments name the file in it."""
    file = tmp_path / "nets" / "net.onnx"
    card = own_model(file)
    study = of_model(card, str(file), TWO)
    in_pod = pod("kubernetes", study, card=card)
    assert in_pod["volumes"][-1]["persistentVolumeClaim"]["claimName"] == "luthier-mine-model"
    assert in_pod["containers"][0]["args"][1] == "/model/nets/net.onnx"
    server = pod("kserve", study, card=card)["containers"][0]
    assert server["args"][1] == "/mnt/models/nets/net.onnx"
    assert {"name": "STORAGE_URI", "value": "pvc://luthier-mine-model"} in server["env"]


def test_weights_that_were_built_here_go_along(tmp_path, monkeypatch):
    """No image has those of resnet50, and a read-only container without their room cannot build them."""
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path))
    folder = tmp_path / "luthier" / "zoo" / "resnet50"
    card = dataclasses.replace(own_model(folder / "model-1.onnx"), name="resnet50")
    study = of_model(card, "resnet50", TWO)
    compose = service(study, card=card)
    assert compose["environment"] == {"XDG_CACHE_HOME": "/model"}
    assert compose["volumes"][1]["source"] == str(folder)
    assert compose["volumes"][1]["target"] == "/model/luthier/zoo/resnet50"
    assert compose["command"][1] == "resnet50"
    variable = {"name": "XDG_CACHE_HOME", "value": "/model"}
    assert variable in pod("kubernetes", study, card=card)["containers"][0]["env"]
    variable = {"name": "XDG_CACHE_HOME", "value": "/mnt/models"}
    assert variable in pod("kserve", study, card=card)["containers"][0]["env"]
    assert "that holds as luthier/zoo/resnet50/" in texts_of("kserve", study, card)["kserve.yaml"]


def test_a_model_that_is_trusted_is_trusted_in_the_container(tmp_path):
    """The folder is mounted, and the command says --trust; no other model's does."""
    card = own_model(tmp_path / "mine", kind="mlflow")
    study = of_model(card, str(tmp_path / "mine"), TWO)
    study = dataclasses.replace(
        study, settings={"target": {**study.settings["target"], "trust": True}}
    )
    made = service(study, card=card)
    assert made["command"][:3] == ["--model", "/model/mine", "--trust"]
    assert any(f"{tmp_path / 'mine'}" in str(volume) for volume in made["volumes"])
    assert "--trust" not in service()["command"]


def test_pods_of_other_namespaces_do_not_reach_the_server():
    """Those of its own do, on the query ports alone."""
    policy = documents("kubernetes")["NetworkPolicy"]["spec"]
    labels = documents("kubernetes")["Deployment"]["spec"]["template"]["metadata"]["labels"]
    assert policy["podSelector"]["matchLabels"] == labels
    assert policy["policyTypes"] == ["Ingress"]
    (rule,) = policy["ingress"]
    assert rule["from"] == [{"podSelector": {}}]
    ports = {port["name"] for port in pod("kubernetes")["containers"][0]["ports"]}
    assert {port["port"] for port in rule["ports"]} == ports


@pytest.mark.parametrize("target", ["kubernetes", "kserve"])
def test_a_token_comes_from_a_secret_where_there_is_one(target):
    """Without it the pods start all the same, and the head says how to make it."""
    (token,) = [
        one for one in pod(target)["containers"][0]["env"] if one["name"] == "LUTHIER_TOKEN"
    ]
    reference = token["valueFrom"]["secretKeyRef"]
    assert reference == {"name": "luthier-resnet-token", "key": "token", "optional": True}
    text = texts_of(target, TWO)[f"{target}.yaml"]
    assert "kubectl create secret generic luthier-resnet-token --from-literal=token=" in text


def test_compose_says_who_may_ask():
    """The ports are on loopback, which every user of the machine reaches."""
    assert "LUTHIER_TOKEN in the environment" in texts_of("compose", TWO)["compose.yaml"]
