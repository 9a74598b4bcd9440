"""Traffic split: each version's share of the requests that do not name a version.

If the shares sum to less than 1, the current version gets the rest.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping

from serving.errors import InvalidRequest


def check_shares(
    model: str, shares: Mapping[str, float], resolve_version: Callable[[str], str]
) -> dict[str, float]:
    """Return the shares above 0 by version, adding up those of a version and its labels.

    Raises:
        UnknownModel: `resolve_version` does not know a version or label.
        InvalidRequest: a share is outside [0, 1], or the sum exceeds 1.
    """
    wanted: dict[str, float] = {}
    for version, share in shares.items():
        if not 0.0 <= share <= 1.0:  # also rejects NaN and huge integers
            raise InvalidRequest(f"the share of {version!r} is {share!r:.40}, expected 0 to 1")
        known = resolve_version(version)
        wanted[known] = wanted.get(known, 0.0) + share
    if sum(wanted.values()) > 1.0 + 1e-9:
        raise InvalidRequest(
            f"the shares of model {model!r} are {sum(wanted.values()):g} together, expected at most 1"
        )
    return {version: share for version, share in wanted.items() if share > 0.0}


def draw_version(shares: Mapping[str, float], draw: float) -> str | None:
    """Return the version for a draw in [0, 1), or None for the current version."""
    for version, share in shares.items():
        draw -= share
        if draw < 0.0:
            return version
    return None
