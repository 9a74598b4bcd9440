"""Export as a KServe InferenceService with the server as its predictor.

A pod gets at most the measured concurrency; Knative adds pods. Source: KServe's API,
serving.kserve.io/v1beta1.
"""

from __future__ import annotations

import pathlib
from typing import Any

from tuner.export import container, manifests, provenance
from tuner.export.export_input import ExportInput, Files, Knobs
from tuner.export.kubernetes import MAX_PODS

FILE_NAME = "kserve.yaml"
CONTAINER = "kserve-container"
MODELS = pathlib.PurePosixPath("/mnt/models")


def files(subject: ExportInput) -> Files:
    """Return the manifest of an export."""
    knobs = Knobs(subject.advice.configuration)
    needed = container.needs(subject)
    settings = container.settings_text(subject, knobs)
    mount = container.mount(subject, MODELS)
    concurrency = provenance.in_flight(subject)
    remarks = [
        *container.remarks(subject, needed),
        f"Name the image as your registry does: {container.image(subject)} is what `make images` builds.",
        f"containerConcurrency: a pod gets at most the {concurrency} requests at a time that were measured, and",
        "pods are added beyond (in KServe's serverless mode).",
        *manifests.remarks(subject),
        (
            "No NetworkPolicy: requests come through KServe's gateway, whose namespace "
            "differs between clusters."
        ),
    ]
    if mount is not None:
        place = pathlib.PurePosixPath(mount.target).relative_to(MODELS)
        remarks += [
            f"STORAGE_URI must name a place, of any kind that KServe knows, that holds as {place}/",
            f"the content of the folder {mount.source}.",
        ]
    told = provenance.lines(
        subject,
        "An InferenceService of KServe",
        use=f"kubectl apply --filename {provenance.shell_quote(subject.place.with_name(FILE_NAME))}",
        knobs=knobs,
        reasons={},
        otherwise="not a setting of the server",
        remarks=remarks,
    )
    service = _service(subject, needed, settings, has_model=mount is not None)
    body = manifests.documents(manifests.config_map(subject, settings), service)
    return {FILE_NAME: f"{provenance.comments(told)}\n{body}"}


def _service(
    subject: ExportInput, needed: container.ResourceRequirements, settings: str, *, has_model: bool
) -> dict[str, Any]:
    server = manifests.server(subject, CONTAINER, needed, container.arguments(subject, MODELS))
    # http1: Knative reads the port's protocol from this name.
    server["ports"] = [{"name": "http1", "containerPort": container.PORT, "protocol": "TCP"}]
    server["env"] = manifests.environment(
        subject, {"PROTOCOL": "v2", **container.environment(subject, MODELS)}
    )
    if has_model:
        claim = f"pvc://{container.name_of(subject)}-model"
        server["env"].append({"name": "STORAGE_URI", "value": claim})
    return {
        "apiVersion": "serving.kserve.io/v1beta1",
        "kind": "InferenceService",
        "metadata": manifests.metadata(subject, **manifests.settings_digest(settings)),
        "spec": {
            "predictor": {
                "minReplicas": 1,
                "maxReplicas": MAX_PODS,
                "scaleMetric": "concurrency",
                "scaleTarget": provenance.in_flight(subject),
                "containerConcurrency": provenance.in_flight(subject),
                "containers": [server],
                "volumes": manifests.volumes(subject),
            }
        },
    }
