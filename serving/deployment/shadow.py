"""Shadowing, which copies requests to a second deployment; its responses only count in metrics."""

from __future__ import annotations

import time
from typing import Any

from serving.deployment.deployment import Deployment, InferRequest
from serving.errors import ServingError
from serving.response_handler import RequestHandle, ResponseHandler
from serving.scheduling.interface import BACKGROUND
from serving.values import ModelId, Signature


class _ShadowResponseHandler:
    __slots__ = ("_served", "_started_s")

    def __init__(self, served: Deployment) -> None:
        self._served = served
        self._started_s = time.monotonic()

    def on_result(self, _frame: memoryview) -> None:
        self._served.count_response(200, time.monotonic() - self._started_s)

    def on_error(self, error: ServingError) -> None:
        self._served.count_response(error.status, time.monotonic() - self._started_s)


class _Copy:
    __slots__ = ("encoding", "frame", "frame_bytes", "items", "priority", "timeout_s")

    def __init__(self, query: InferRequest) -> None:
        self.frame = query.frame
        self.frame_bytes = query.frame_bytes
        self.encoding = query.encoding
        self.items = query.items
        self.timeout_s = query.timeout_s
        self.priority = BACKGROUND


class ShadowedDeployment:
    """A deployment whose requests are copied to a shadow."""

    __slots__ = ("_first", "_shadow")

    def __init__(self, first: Deployment, shadow: Deployment) -> None:
        self._first = first
        self._shadow = shadow

    @property
    def id(self) -> ModelId:
        """Name and version of the shadowed deployment."""
        return self._first.id

    @property
    def signature(self) -> Signature:
        """Signature of the shadowed deployment."""
        return self._first.signature

    @property
    def codecs(self) -> dict[str, Any]:
        """Codecs of the shadowed deployment."""
        return self._first.codecs

    def submit(
        self, query: InferRequest, handler: ResponseHandler, flow: str = ""
    ) -> RequestHandle:
        """Submit a request, and copy it to the shadow if both models have the same inputs."""
        ticket = self._first.submit(query, handler, flow)
        if self._shadow.signature.inputs == self._first.signature.inputs:
            self._shadow.submit(_Copy(query), _ShadowResponseHandler(self._shadow), flow)
        return ticket

    def count_response(self, status: int, seconds: float) -> None:
        """Count a response by the shadowed deployment."""
        self._first.count_response(status, seconds)
