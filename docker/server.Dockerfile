# The serving core: `python -m serving`, with its replicas as processes of the same container.
#
# Built by `make images` from a wheelhouse, without network. BASE is any image with `python3` (3.11 or newer) and
# glibc; it needs no pip.
#
#     docker run --rm --publish 127.0.0.1:8000:8000 --publish 127.0.0.1:8001:8001 luthier-server:VERSION --model resnet
ARG BASE=python:3.12-slim

FROM ${BASE} AS build
ARG REQUIREMENTS=server-onnx.txt
COPY wheelhouse /wheelhouse
COPY requirements /requirements
RUN set -eu; pip="$(echo /wheelhouse/pip-*.whl)/pip"; \
    python3 "$pip" install --no-index --find-links /wheelhouse --no-cache-dir --root-user-action ignore \
        --target /opt/luthier $(printf -- '--requirement /requirements/%s ' ${REQUIREMENTS}); \
    python3 "$pip" install --no-index --find-links /wheelhouse --no-cache-dir --root-user-action ignore \
        --no-deps --target /opt/luthier luthier; \
    find /opt/luthier -depth -type d -name tests -exec rm -rf {} +

FROM ${BASE}
COPY --from=build /opt/luthier /opt/luthier
# Inside a container the query ports (REST 8000, gRPC 8001) listen on all of its addresses: which of them is reached from
# where is decided by what is published. The admin port stays on the container's own loopback.
ENV PYTHONPATH=/opt/luthier PATH=/opt/luthier/bin:$PATH PYTHONDONTWRITEBYTECODE=1 LUTHIER_SERVER__HOST=0.0.0.0
USER 65532:65532
WORKDIR /tmp
EXPOSE 8000 8001
STOPSIGNAL SIGTERM
HEALTHCHECK --interval=10s --timeout=3s --start-period=60s --retries=3 \
    CMD ["python3", "-c", "import urllib.request; urllib.request.urlopen('http://127.0.0.1:8000/v2/health/ready', timeout=2)"]
ENTRYPOINT ["python3", "-m", "serving"]
CMD ["--model", "resnet"]
