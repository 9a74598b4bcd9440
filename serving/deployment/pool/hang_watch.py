"""Watch over replicas that hang."""

from __future__ import annotations

import asyncio
import time
from collections.abc import Mapping

from serving.deployment.dispatch import Dispatcher
from serving.deployment.pool.member import Member

_WATCH_PERIOD_S = 0.25


async def watch_hangs(members: Mapping[int, Member], dispatcher: Dispatcher) -> None:
    """Kill replicas that hold one batch for too long."""
    while True:
        await asyncio.sleep(_WATCH_PERIOD_S)
        now_s = time.monotonic()
        for member in list(members.values()):
            limits = member.limits
            is_loading = dispatcher.is_loading(member.worker)
            limit_s = limits.ready_timeout_s if is_loading else limits.hang_timeout_s
            sent_s = dispatcher.oldest_sent_s(member.worker)
            if (
                member.state == "ready"
                and member.replica is not None
                and sent_s is not None
                and now_s - sent_s > limit_s
            ):
                text = f"a batch ran for over {limit_s:g} s (replica.hang_timeout_s)"
                if is_loading:
                    text = f"a load took over {limit_s:g} s (replica.ready_timeout_s)"
                member.failure = ("hang", text)
                member.replica.kill()
