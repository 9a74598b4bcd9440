"""Export as a KServe InferenceService with the server as its predictor.

A pod gets at most the measured concurrency; Knative adds pods. Source: the KServe API,
serving.kserve.io/v1beta1.
"""

from __future__ import annotations

import pathlib

from tuner.export import container, kubernetes, provenance
from tuner.export.export_input import ExportInput, Files, Knobs

FILE_NAME = "kserve.yaml"
MODELS = pathlib.PurePosixPath("/mnt/models")


def files(subject: ExportInput) -> Files:
    """Return the manifests in one file."""
    knobs = Knobs(subject.advice.configuration)
    server = container.describe(subject, knobs, MODELS)
    concurrency = provenance.in_flight(subject)
    remarks = [
        *server.remarks,
        f"Name the image as your registry does: {server.image} is what `make images` builds.",
        f"containerConcurrency: a pod gets at most the {concurrency} requests at a time that were measured, and",
        "pods are added beyond (in KServe's serverless mode).",
        *kubernetes.token_remarks(server),
        (
            "No NetworkPolicy: requests come through KServe's gateway, whose namespace "
            "differs between clusters."
        ),
    ]
    # http1: Knative reads the port's protocol from this name.
    ports = [{"name": "http1", "containerPort": container.PORT, "protocol": "TCP"}]
    pod = kubernetes.pod_container(server, "kserve-container", ports, PROTOCOL="v2")
    if server.model.source is not None:
        place = pathlib.PurePosixPath(server.model.target).relative_to(MODELS)
        remarks += [
            f"STORAGE_URI must name a place, of any kind that KServe knows, that holds as {place}/",
            f"the content of the folder {server.model.source}.",
        ]
        pod["env"].append({"name": "STORAGE_URI", "value": f"pvc://{server.name}-model"})
    predictor = {
        "minReplicas": 1,
        "maxReplicas": kubernetes.MAX_PODS,
        "scaleMetric": "concurrency",
        "scaleTarget": concurrency,
        "containerConcurrency": concurrency,
        "containers": [pod],
        "volumes": kubernetes.volumes(server),
    }
    service = kubernetes.manifest(
        "serving.kserve.io/v1beta1",
        "InferenceService",
        server,
        annotations=kubernetes.facts(server) | kubernetes.settings_digest(server),
        spec={"predictor": predictor},
    )
    head = provenance.head(
        subject,
        "An InferenceService of KServe",
        use=f"kubectl apply --filename {subject.quoted(FILE_NAME)}",
        knobs=knobs,
        remarks=remarks,
    )
    return {FILE_NAME: head + kubernetes.documents(server, service)}
