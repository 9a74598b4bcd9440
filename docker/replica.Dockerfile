# One replica: a process that speaks the replica wire with its gateway over a Unix socket.
#
# Built by `make images` from a wheelhouse, without network. BASE is any image with `python3` (3.11 or newer) and
# glibc; it needs no pip. The gateway starts it with a read-only root, no network, no capabilities, and its limits.
ARG BASE=python:3.12-slim

FROM ${BASE} AS build
ARG REQUIREMENTS=replica-onnx.txt
COPY wheelhouse /wheelhouse
COPY requirements /requirements
RUN set -eu; pip="$(echo /wheelhouse/pip-*.whl)/pip"; \
    python3 "$pip" install --no-index --find-links /wheelhouse --no-cache-dir --root-user-action ignore \
        --target /opt/luthier --requirement "/requirements/${REQUIREMENTS}"; \
    python3 "$pip" install --no-index --find-links /wheelhouse --no-cache-dir --root-user-action ignore \
        --no-deps --target /opt/luthier luthier; \
    find /opt/luthier -depth -type d -name tests -exec rm -rf {} +

FROM ${BASE}
COPY --from=build /opt/luthier /opt/luthier
ENV PYTHONPATH=/opt/luthier PYTHONDONTWRITEBYTECODE=1
USER 65532:65532
WORKDIR /
ENTRYPOINT ["python3", "-m", "serving.replica.container_entrypoint"]
