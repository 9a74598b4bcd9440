"""What Clipper's management commands need of a hub: applications, models, replicas, as plain values.

Pure: values, and the Protocol that a hub implements.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any, NamedTuple, Protocol

DEFAULT_BATCH_SIZE = -1
"""Stands for a batch size that is found while serving."""
SINGLE_MODEL_POLICY = "fixed"
"""The policy of Clipper's own applications, which link one model at most."""


class Application(Protocol):
    """What the commands need to know of an application."""

    @property
    def name(self) -> str:
        """As it stands in the path of a query."""
        ...

    @property
    def input_type(self) -> str:
        """A readable name of `clipper_inputs.INPUT_TYPES`."""
        ...

    @property
    def default_output(self) -> str:
        """The answer where no model gives one."""
        ...

    @property
    def latency_slo_s(self) -> float:
        """Seconds within which a query is answered."""
        ...

    @property
    def models(self) -> Sequence[str]:
        """Names of the linked models."""
        ...

    @property
    def policy(self) -> str:
        """Name of the policy that chooses among them."""
        ...


class Model(NamedTuple):
    """One version of a model as it was registered."""

    name: str
    version: str
    input_type: str
    """A readable name of `clipper_inputs.INPUT_TYPES`."""
    labels: tuple[str, ...] = ()
    container_name: str = ""
    model_data_path: str = ""
    batch_size: int = DEFAULT_BATCH_SIZE
    is_valid: bool = True
    """Not deleted; a deleted one stays in the lists."""


class Container(NamedTuple):
    """One replica of a model's version."""

    model_name: str
    model_version: str
    replica_id: int
    input_type: str


class Catalogue(Protocol):
    """What the commands need of a hub. None of these is asked for what does not exist."""

    def applications(self) -> Sequence[Application]:
        """All of them."""
        ...

    def add_application(
        self,
        name: str,
        *,
        input_type: str,
        default_output: str,
        latency_slo_s: float,
        selection: Mapping[str, Any],
    ) -> None:
        """A new one without links; raises ServingError with what is wrong.

        Args:
            name: in the path of its queries.
            input_type: a readable name of `clipper_inputs.INPUT_TYPES`.
            default_output: the answer where no model gives one.
            latency_slo_s: seconds within which a query is answered.
            selection: how its models are chosen and combined, members of `selection.Application`.
        """
        ...

    def delete_application(self, name: str) -> None:
        """Its queries are not answered any more."""
        ...

    def link(self, application: str, models: Sequence[str]) -> None:
        """Queries go to these models, too."""
        ...

    def unlink(self, application: str, models: Sequence[str]) -> None:
        """Queries go to these models no more."""
        ...

    def models(self) -> Sequence[Model]:
        """All versions of all models, deleted ones among them."""
        ...

    def current_version(self, name: str) -> str | None:
        """The version of a registered model that answers queries without one; None: no such model."""
        ...

    def served_input_types(self, name: str) -> Sequence[str] | None:
        """Input types that a model takes which is served, registered or not; None: it is not served."""
        ...

    def add_model(self, model: Model) -> None:
        """A new version, which becomes the current one."""
        ...

    def set_current_version(self, name: str, version: str) -> None:
        """Another version answers from now on."""
        ...

    def delete_model(self, name: str, version: str) -> None:
        """Mark a version as invalid."""
        ...

    def containers(self) -> Sequence[Container]:
        """The replicas that run."""
        ...

    def selection_state(self, application: str, user: str) -> str:
        """What an application's policy has learnt, as JSON."""
        ...
