# The tuner's load generator: `tune load` beside a server, as in the Job that `tune confirm --job` prints. It holds what
# that command imports; `tune confirm` needs the study, where its whole installation is.
#
# Built by `make images RUNTIMES=tune` from a wheelhouse, without network. BASE is any image with `python3` (3.11 or
# newer) and glibc; it needs no pip. Studies of a server need the machine, and are not run in a container.
ARG BASE=python:3.12-slim

FROM ${BASE} AS build
ARG REQUIREMENTS=tune.txt
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
WORKDIR /tmp
ENTRYPOINT ["python3", "-m", "tuner"]
CMD ["--help"]
