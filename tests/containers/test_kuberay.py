"""What `tune export --to kuberay` writes, run as KubeRay would: its containers, rights, limits and commands.

There is neither an operator nor Kubernetes here: `Cluster` makes of the manifest what they make of it.
"""

import dataclasses
import http.client
import json
import pathlib
import secrets
import time

import docker
import numpy as np
import pytest
import yaml

from serving.zoo import find
from tests.fakes import studies
from tests.fakes.docker_engine import IS_NEEDED, needs_docker
from tuner import export
from tuner.export import kuberay
from tuner.values.configuration import Configuration

ROOT = pathlib.Path(__file__).parents[2]
UNITS = {"Mi": 1 << 20, "Gi": 1 << 30}
START_S = 90.0
LABEL = "luthier-test-kuberay"
HEAD = "head.test"


def start_command(options, limits, *, is_head):
    """The command that the operator makes of a group's options and limits."""
    given = {"memory": str(size(limits["memory"])), **options, "metrics-export-port": "8080"}
    given |= {"dashboard-agent-listen-port": "52365", "block": "true"}
    given |= {"dashboard-host": "0.0.0.0"} if is_head else {"address": f"{HEAD}:6379"}
    words = (f" --{k} " if v == "true" else f" --{k}={v} " for k, v in sorted(given.items()))
    return f"ray start {'--head ' if is_head else ''}{''.join(words)}"


def size(quantity):
    return int(quantity[:-2]) * UNITS[quantity[-2:]]


class Cluster:
    """The containers of one RayCluster."""

    def __init__(self, text, folder):
        found = {document["kind"]: document for document in yaml.safe_load_all(text)}
        self.spec = found["RayCluster"]["spec"]
        self.groups = {group["groupName"]: group for group in self.spec["workerGroupSpecs"]}
        self.settings = folder / "settings.yaml"
        self.settings.write_text(found["ConfigMap"]["data"]["settings.yaml"], encoding="utf-8")
        self.client = docker.from_env()
        self.token = secrets.token_hex(16)
        self.head_ip = ""

    def start(self, group, *, is_head=False):
        """Start a pod of a group, with its limits and rights."""
        (wanted,) = group["template"]["spec"]["containers"]
        rights, limits = wanted["securityContext"], wanted["resources"]["limits"]
        variables = {one["name"]: one["value"] for one in wanted["env"] if "value" in one} | {
            "RAY_AUTH_MODE": self.spec["authOptions"]["mode"],
            "RAY_AUTH_TOKEN": self.token,
            "RAY_ADDRESS": "127.0.0.1:6379" if is_head else f"{HEAD}:6379",
            "KUBERAY_GEN_RAY_START_CMD": start_command(
                group["rayStartParams"], limits, is_head=is_head
            ),
        }
        places = {place["name"]: place["mountPath"] for place in wanted["volumeMounts"]}
        mounts = []
        if "settings" in places:
            mounts.append(f"{self.settings}:{places['settings']}:ro")
        made = self.client.containers.run(
            wanted["image"],
            entrypoint=wanted["command"],
            command=wanted.get("args", []),
            environment=variables,
            user=f"{rights['runAsUser']}:{rights['runAsGroup']}",
            read_only=rights["readOnlyRootFilesystem"],
            cap_drop=rights["capabilities"]["drop"],
            security_opt=["no-new-privileges:true"],
            nano_cpus=int(limits["cpu"].removesuffix("m")) * 10**6,
            mem_limit=size(limits["memory"]),
            shm_size=size(limits["memory"]),
            tmpfs={places["tmp"]: "mode=777"},  # an emptyDir has no sticky bit
            extra_hosts={} if is_head else {HEAD: self.head_ip},
            volumes=mounts,
            labels=[LABEL],
            detach=True,
        )
        made.reload()
        if is_head:
            self.head_ip = made.attrs["NetworkSettings"]["IPAddress"]
        return made

    def close(self):
        for one in self.client.containers.list(all=True, filters={"label": LABEL}):
            one.remove(force=True)


@pytest.fixture(name="cluster")
def _cluster(tmp_path):
    study = studies.study(trials=12)
    values = {"replica.count": 2, "replica.cpu": 0.5, "replica.memory_mb": 192}
    study = dataclasses.replace(study, best=Configuration({**study.best, **values}))
    (text,) = export.export(study, "kuberay", card=find("resnet")).values()
    made = Cluster(text, tmp_path)
    if not made.client.images.list(kuberay.IMAGE):
        assert not IS_NEEDED, f"no image {kuberay.IMAGE}; `make images RAY=1` builds it"
        pytest.skip(f"no image {kuberay.IMAGE}; `make images RAY=1` builds it")
    try:
        yield made
    finally:
        made.close()


def ask(host, method, path, body=None):
    """Status and text; 0 where nobody listens."""
    connection = http.client.HTTPConnection(host, 8000, timeout=20)
    try:
        connection.request(method, path, body)
        answer = connection.getresponse()
        return answer.status, answer.read().decode()
    except OSError:
        return 0, ""
    finally:
        connection.close()


def infer(host):
    with np.load(ROOT / "serving" / "zoo" / "samples.npz") as samples:
        image = samples["image"][:1]
    item = {"name": "image", "datatype": "UINT8", "shape": [1, 3, 32, 32]}
    body = json.dumps({"inputs": [{**item, "data": image.ravel().tolist()}]})
    return ask(host, "POST", "/v2/models/resnet/infer", body)


def until(holds, what, *logs):
    end_s = time.monotonic() + START_S
    while not holds():
        if time.monotonic() > end_s:
            told = "\n".join(one.logs(tail=15).decode(errors="replace") for one in logs)
            pytest.fail(f"{what}:\n{told}")
        time.sleep(0.2)


@needs_docker
@pytest.mark.slow
def test_the_pods_serve_lose_a_machine_and_drain(cluster):
    """As a user without a name; no request fails when a machine ends, and the gateway ends in order."""
    head = cluster.start(cluster.spec["headGroupSpec"], is_head=True)
    until(lambda: head.exec_run("ray health-check").exit_code == 0, "no head", head)
    gateway = cluster.start(cluster.groups["gateway"])
    group = cluster.groups["machines"]
    machines = [cluster.start(group) for _ in range(group["replicas"])]
    gateway.reload()
    host = gateway.attrs["NetworkSettings"]["IPAddress"]
    until(lambda: ask(host, "GET", "/v2/health/ready")[0] == 200, "not ready", gateway, *machines)
    status, text = infer(host)
    assert status == 200, text
    (container,) = cluster.groups["gateway"]["template"]["spec"]["containers"]
    lives = container["livenessProbe"]["exec"]["command"]
    assert gateway.exec_run(lives).exit_code == 0
    machines[0].kill()
    for _ in range(20):
        assert infer(host)[0] == 200
    gateway.kill("SIGTERM")
    grace_s = cluster.groups["gateway"]["template"]["spec"]["terminationGracePeriodSeconds"]
    assert gateway.wait(timeout=grace_s)["StatusCode"] == 0
