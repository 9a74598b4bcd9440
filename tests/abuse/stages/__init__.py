"""All stages of the campaign in their order, and what tries a stored case again."""

from __future__ import annotations

from collections.abc import Callable

from tests.abuse.cases import Case
from tests.abuse.stage import Stage
from tests.abuse.stages import (
    admin,
    browsers,
    fairness,
    faults,
    files,
    fuzzing,
    http2_floods,
    http2_table,
    http_table,
    injection,
    memory,
    network,
    readers,
    replicas,
    schedulers,
    second_user,
    slow_clients,
    soak,
    static,
    transport_security,
)
from tests.abuse.subject import Subject, SubjectSpec

STAGES: tuple[Stage, ...] = (
    readers.STAGE,
    fuzzing.STAGE,
    http_table.STAGE,
    http2_table.STAGE,
    http2_floods.STAGE,
    slow_clients.STAGE,
    fairness.STAGE,
    memory.STAGE,
    admin.STAGE,
    replicas.STAGE,
    faults.STAGE,
    network.STAGE,
    transport_security.STAGE,
    browsers.STAGE,
    injection.STAGE,
    files.STAGE,
    second_user.STAGE,
    soak.STAGE,
    static.STAGE,
    schedulers.STAGE,
)

REPLAYS: dict[str, Callable[[Case, Subject], str | None]] = {
    "A": readers.replay,
    "B": fuzzing.replay,
    "C": http_table.replay,
    "D1": http2_table.replay,
    "G": memory.replay,
    "M": browsers.replay,
    "N": injection.replay,
    "O": files.replay,
}
"""Stage -> what is wrong with a stored case, against a server that was started as the stage's is."""

SPECS: dict[str, SubjectSpec] = {stage.name: stage.spec or SubjectSpec() for stage in STAGES}
