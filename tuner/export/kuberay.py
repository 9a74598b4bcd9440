"""Export as a RayCluster of KubeRay: the server in one pod, its replicas in pods of their own.

Three groups: a head, which runs no replica; the gateway, which must be a machine of the cluster, as
Ray's drivers must; and the machines of the replicas. Source: the KubeRay API, ray.io/v1, and what
its operator adds to a pod.
"""

from __future__ import annotations

import copy
import dataclasses
import math
from typing import Any

from serving import __version__
from serving.models import EXTRAS
from tuner.export import container, kubernetes, provenance
from tuner.export.container import Container
from tuner.export.export_input import ExportInput, Files, Knobs
from tuner.metrics import server_resources
from tuner.values.configuration import Value

FILE_NAME = "kuberay.yaml"
RAY_VERSION = "2.60.0"
"""Version of Ray in the image; KubeRay turns its token on by it (2.52 or newer)."""
IMAGE = f"luthier-ray:{__version__}"
"""Image that `make images RAY=1` builds; some model kinds append a dash and their name."""
GATEWAY, MACHINES = "gateway", "machines"
HEAD_CPU, HEAD_MB = 1.0, 1024
"""Of the head: it uses 7 % of a core and 350 MiB, and more while machines come and go."""
RAY_CPU, RAY_MB = 0.25, 256
"""Of Ray on any other machine: it uses 2 % of a core and 200 MiB, and more while it starts."""
STEWARD_MB = 96
"""Memory of the gateway's process that speaks with Ray: it uses 45 MiB."""
AGENT_MB = 128
"""Memory of a node agent, its parent in Ray and the fork server of its replicas: they use 90 MiB."""
MIN_MACHINES = 2
"""Machines of several replicas, so that the loss of one leaves the others."""
OBJECT_STORE_BYTES = 75 << 20
"""Smallest object store that Ray starts with; no request or model passes through it."""
READY_S = 600
"""Time for a replica's machine: at the start it pulls its image while the gateway waits."""
CACHE = "/tmp/cache"  # noqa: S108 - the container's
MODEL_FILES_GB, LOGS_GB = 16, 4
"""Disk of `/tmp`: what a node agent keeps of models at most, and the logs of Ray."""
_GCS_PORT, _RAYLET_PORT = 6379, 6380
_OPEN_FILES = "ulimit -n 65536"
_START_RAY = f"{_OPEN_FILES}; exec $KUBERAY_GEN_RAY_START_CMD"
_START_SERVER = (
    f'{_OPEN_FILES}; ${{KUBERAY_GEN_RAY_START_CMD/--block/}} && exec python3 -m serving "$@"'
)
"""Ray's start returns, without `--block`, once the machine is part of the cluster."""
_LIVES = (
    "grep -qsx raylet /proc/[0-9]*/comm && exec 3<>/dev/tcp/127.0.0.1/"
    f"{container.PORT} && printf 'GET /v2/health/live HTTP/1.1\\r\\nHost: localhost\\r\\n"
    "Connection: close\\r\\n\\r\\n' >&3 && read -r line <&3 && [[ $line == *' 200 '* ]]"
)
"""Whether the server lives, and Ray on its machine, without which it can place no replica."""
_VARIABLES = {
    "RAY_memory_monitor_refresh_ms": "0",
    "RAY_USAGE_STATS_ENABLED": "0",
    "XDG_CACHE_HOME": CACHE,
}
"""The kernel ends what needs too much memory; Ray's monitor would end an agent with its replicas."""


@dataclasses.dataclass(frozen=True, slots=True, kw_only=True)
class PodGroup:
    """Pods of a group: their number, what each is given, and what Ray may place on it."""

    count: int
    cpu: float
    memory_mb: int | None
    cores: int
    """Cores for replicas, of which Ray reserves what a replica asks for."""
    replica_mb: int | None = None
    """Memory for replicas; None: not reserved."""
    has_gpu: bool = False


def settings_of(subject: ExportInput) -> dict[str, Value]:
    """Return the settings of a server whose replicas are in pods of their own."""
    settings: dict[str, Value] = {"replica.spawner": "ray", "replica.ready_timeout_s": READY_S}
    if subject.is_for_gpu:  # of a replica's machine, not of the gateway's
        settings["accelerator.device"] = "cuda"
    return settings


def files(subject: ExportInput) -> Files:
    """Return the manifests in one file."""
    knobs = Knobs(subject.advice.configuration)
    server = container.describe(
        subject, knobs, settings=settings_of(subject), without=("accelerator.clock_mhz",)
    )
    kind = subject.model.kind
    server = dataclasses.replace(server, image=f"{IMAGE}-{kind}" if kind in EXTRAS else IMAGE)
    machines, machine_lines = replica_machines(subject)
    gateway, gateway_lines = gateway_machine(subject)
    remarks = [
        f"WARNING: {caution()}",
        *machine_lines,
        *gateway_lines,
        *_remarks(subject, server, machines),
    ]
    text = provenance.head(
        subject,
        "A RayCluster of KubeRay",
        use=f"kubectl apply --filename {subject.quoted(FILE_NAME)}",
        knobs=knobs,
        remarks=remarks,
    )
    annotations = {"ray.io/overwrite-container-cmd": "true", **kubernetes.facts(server)}
    cluster = kubernetes.manifest(
        "ray.io/v1",
        "RayCluster",
        server,
        annotations=annotations,
        spec=_spec(server, gateway, machines),
    )
    ports = [("http", container.PORT), ("grpc", container.GRPC_PORT)]
    service = {
        "selector": _pods_of(server, GATEWAY),
        "ports": [{"name": name, "port": port, "targetPort": name} for name, port in ports],
    }
    own = {"from": [{"podSelector": {"matchLabels": _pods_of(server)}}]}
    queries = {"from": [{"podSelector": {}}], "ports": [{"port": name} for name, _ in ports]}
    body = kubernetes.documents(
        server,
        cluster,
        kubernetes.manifest("v1", "Service", server, spec=service),
        _policy(server, "", _pods_of(server), own),
        _policy(server, "-queries", _pods_of(server, GATEWAY), queries),
    )
    return {FILE_NAME: text + body}


def caution() -> str:
    """Return how the setup differs from the measured one."""
    return (
        "the study measured one machine; here requests and responses cross the network, and the "
        "replicas of one pod share its limits. Treat the figures as an estimate until `tune confirm` "
        "has measured it."
    )


def replica_machines(subject: ExportInput) -> tuple[PodGroup, list[str]]:
    """Return the pods on which the replicas fit, and the calculation in words."""
    knobs = Knobs(subject.advice.configuration)
    count, threads = knobs.whole("replica.count"), knobs.whole("replica.threads")
    limit, replica_mb = knobs.maybe("replica.cpu"), knobs.maybe("replica.memory_mb")
    share = knobs.maybe("accelerator.share")
    if subject.is_for_gpu:
        each = int(100 // (share or 100))
        why = f"a GPU for {each} each" if each > 1 else "a GPU each"
    else:
        each = math.ceil(count / min(count, MIN_MACHINES))
        why = "two, so that the loss of one leaves the other" if count > 1 else "which has no other"
    machines = math.ceil(count / each)
    used = limit or threads
    cpu = each * used + RAY_CPU
    unlimited = "" if limit else " (a core for each thread, as the study sets no limit)"
    of = f"{machines} for {count} replica{'s' * (count > 1)} ({why})"
    lines = [
        f"Machines: {of}; change `replicas` and the count together.",
        f"Each: {each} x {used:g} cores{unlimited} + {RAY_CPU:g} of Ray = {cpu:g} cores.",
    ]
    memory_mb = None
    if replica_mb is not None:
        runtime_mb = server_resources.RUNTIME_MB.get(subject.model.kind, 0)
        memory_mb = int(each * replica_mb) + AGENT_MB + runtime_mb + RAY_MB
        lines.append(
            f"Memory: {each} x {replica_mb:g} + {AGENT_MB + runtime_mb} of the node agent and its "
            f"fork server + {RAY_MB} of Ray = {memory_mb} MiB."
        )
    else:
        lines.append("Memory: the study sets no limit, so none is set here.")
    reserved = math.ceil(each * (limit or 1.0))
    machine = PodGroup(
        count=machines,
        cpu=cpu,
        memory_mb=memory_mb,
        cores=reserved,
        replica_mb=None if replica_mb is None else int(each * replica_mb),
        has_gpu=subject.is_for_gpu,
    )
    return machine, lines


def gateway_machine(subject: ExportInput) -> tuple[PodGroup, list[str]]:
    """Return the pod of the gateway, and the calculation in words."""
    knobs = Knobs(subject.advice.configuration)
    cache_mb = int(knobs.maybe("cache.capacity_mb") or 0)
    cpu, memory_mb = server_resources.GATEWAY_CPU + RAY_CPU, None
    lines = [f"Gateway: {server_resources.GATEWAY_CPU:g} core + {RAY_CPU:g} of Ray."]
    if knobs.maybe("replica.memory_mb") is not None:
        memory_mb = server_resources.GATEWAY_MB + cache_mb + STEWARD_MB + RAY_MB
        cached = f" + {cache_mb} of its cache" if cache_mb else ""
        lines.append(
            f"Memory: {server_resources.GATEWAY_MB}{cached} + {STEWARD_MB} of its steward + {RAY_MB} of Ray "
            f"= {memory_mb} MiB."
        )
    return PodGroup(count=1, cpu=cpu, memory_mb=memory_mb, cores=0), lines


def _remarks(subject: ExportInput, server: Container, machines: PodGroup) -> list[str]:
    kind = subject.model.kind
    runtime = f" RUNTIMES={kind}" if kind in EXTRAS else ""
    pods = "kubectl delete pod --selector "
    remarks = [
        f"`make images RAY=1{runtime}` in a clone builds the image; name it as your registry does: {server.image}.",
        "Needs KubeRay 1.5.1 or newer, which makes the token that Ray asks for (authOptions).",
        "KubeRay changes no pod that runs: after another `kubectl apply`, let it make the gateway anew with",
        f"  {pods}ray.io/cluster={server.name},ray.io/group={GATEWAY}",
        "While there is no gateway nobody answers; if the head ends, the pods of the cluster are made anew.",
        *kubernetes.token_remarks(server),
        "NetworkPolicy: pods of the same namespace reach the gateway's query ports, pods of the cluster each other.",
        "A cluster that does not enforce policies lets everybody in.",
    ]
    if machines.replica_mb is None:
        remarks.append(
            "Ray places replicas by their cores alone, as the study sets no memory limit."
        )
    if server.model.source is not None:
        remarks += [
            f"The volume claim {server.name}-model must hold the content of the folder {server.model.source},",
            f"readable by the image's user, {container.USER}. The gateway alone mounts it, and sends it on.",
        ]
    if machines.has_gpu:
        remarks.append("The image must hold a runtime that uses a GPU.")
        if subject.advice.configuration.get("accelerator.share") is not None:
            remarks.append(
                "accelerator.share needs a control daemon of CUDA MPS in the pods of the machines."
            )
    return remarks


def _spec(server: Container, gateway: PodGroup, machines: PodGroup) -> dict[str, Any]:
    head = PodGroup(count=1, cpu=HEAD_CPU, memory_mb=HEAD_MB, cores=0)
    head_container = _ray_container(server, "ray-head", head, _GCS_PORT)
    machine = _ray_container(server, "machine", machines, _RAYLET_PORT)
    return {
        "rayVersion": RAY_VERSION,
        "authOptions": {"mode": "token"},
        "headGroupSpec": {
            "rayStartParams": {**_start_parameters(head), "include-dashboard": "false"},
            "template": {"spec": _pod(head_container)},
        },
        "workerGroupSpecs": [
            _group(GATEWAY, gateway, _gateway_template(server, gateway)),
            _group(MACHINES, machines, {"spec": _pod(machine, disk_gb=MODEL_FILES_GB)}),
        ],
    }


def _start_parameters(machine: PodGroup) -> dict[str, str]:
    """Return the options of `ray start`, beside those of the operator."""
    options = {
        "num-cpus": str(machine.cores),
        "object-store-memory": str(OBJECT_STORE_BYTES),
        "node-manager-port": str(_RAYLET_PORT),
    }
    if machine.replica_mb is not None:
        options["memory"] = str(machine.replica_mb << 20)
    return options


def _group(name: str, machine: PodGroup, template: dict[str, Any]) -> dict[str, Any]:
    return {
        "groupName": name,
        "replicas": machine.count,
        "minReplicas": machine.count,
        "maxReplicas": 1 if name == GATEWAY else max(kubernetes.MAX_PODS, machine.count),
        "rayStartParams": _start_parameters(machine),
        "template": template,
    }


def _gateway_template(server: Container, machine: PodGroup) -> dict[str, Any]:
    ports = [("http", container.PORT), ("grpc", container.GRPC_PORT)]
    gateway = kubernetes.pod_container(
        server,
        "server",
        [{"name": name, "containerPort": port} for name, port in ports],
        **_VARIABLES,
    )
    gateway["command"] = ["/bin/bash", "-c", _START_SERVER, "server"]
    gateway["resources"] = _resources(machine)
    gateway["startupProbe"]["failureThreshold"] = (
        READY_S // gateway["startupProbe"]["periodSeconds"]
    )
    del gateway["livenessProbe"]["httpGet"]
    gateway["livenessProbe"]["exec"] = {"command": ["/bin/bash", "-c", _LIVES]}
    settings, _ = kubernetes.volumes(server)
    spec = _pod(gateway, volumes=[settings])
    if server.model.source is not None:
        place = {"name": "model", "mountPath": server.model.target, "readOnly": True}
        gateway["volumeMounts"].append(place)
        claim = {"claimName": f"{server.name}-model", "readOnly": True}
        spec["volumes"].append({"name": "model", "persistentVolumeClaim": claim})
    annotations = kubernetes.settings_digest(server)
    return {"metadata": {"annotations": annotations}, "spec": spec}


def _ray_container(server: Container, name: str, machine: PodGroup, port: int) -> dict[str, Any]:
    """Return a container of Ray alone, which lives as long as it listens at a port."""
    model = kubernetes.pod_container(server, name, [])
    listens = {"tcpSocket": {"port": port}, "timeoutSeconds": 2}
    return {
        "name": name,
        "image": server.image,
        "command": ["/bin/bash", "-c", _START_RAY],
        "resources": _resources(machine),
        "startupProbe": {**copy.deepcopy(listens), "periodSeconds": 2, "failureThreshold": 60},
        "readinessProbe": {**copy.deepcopy(listens), "periodSeconds": 5, "failureThreshold": 2},
        "livenessProbe": {**copy.deepcopy(listens), "periodSeconds": 10, "failureThreshold": 6},
        "securityContext": model["securityContext"],
        "volumeMounts": [{"name": "tmp", "mountPath": "/tmp"}],  # noqa: S108 - the container's
        "env": [{"name": variable, "value": text} for variable, text in _VARIABLES.items()],
    }


def _resources(machine: PodGroup) -> dict[str, Any]:
    wanted = {"cpu": f"{round(1000 * machine.cpu)}m"}
    if machine.memory_mb is not None:
        wanted["memory"] = f"{machine.memory_mb}Mi"
    if machine.has_gpu:
        wanted["nvidia.com/gpu"] = "1"
    return {"requests": dict(wanted), "limits": dict(wanted)}


def _pod(
    only: dict[str, Any], *, volumes: list[dict[str, Any]] | None = None, disk_gb: int = 0
) -> dict[str, Any]:
    # On disk: Ray's sockets and logs, and files of models, which can be larger than the memory.
    temporary = {"name": "tmp", "emptyDir": {"sizeLimit": f"{LOGS_GB + disk_gb}Gi"}}
    return {
        "automountServiceAccountToken": False,
        "terminationGracePeriodSeconds": container.DRAIN_S,
        "containers": [only],
        "volumes": [*(volumes or []), temporary],
    }


def _pods_of(server: Container, group: str | None = None) -> dict[str, str]:
    """Return the labels by which KubeRay marks the cluster's pods."""
    of_group = {} if group is None else {"ray.io/group": group}
    return {"ray.io/cluster": server.name, **of_group}


def _policy(
    server: Container, suffix: str, pods: dict[str, str], rule: dict[str, Any]
) -> dict[str, Any]:
    spec = {
        "podSelector": {"matchLabels": pods},
        "policyTypes": ["Ingress"],
        "ingress": [rule],
    }
    return kubernetes.manifest(
        "networking.k8s.io/v1", "NetworkPolicy", server, suffix=suffix, spec=spec
    )
