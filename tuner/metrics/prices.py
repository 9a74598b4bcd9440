"""Cost of a configuration: resources held, or their price, per 1,000 responses.

The larger of reserved and used resources counts as held. Without a price file, a core-second costs
1 and a GiB-second 1/8, about the ratio that large clouds' container services charged in 2025.
"""

from __future__ import annotations

import dataclasses
import math
from collections.abc import Mapping

from serving.error_text import one_line
from serving.system import user_files
from tuner import document
from tuner.errors import InvalidPrices, UsageError
from tuner.metrics.server_resources import ServerResources
from tuner.values.configuration import Value
from tuner.values.measurement import Cost, Measurement

COPY = "prices.yaml"
KEYS = ("core_hour", "gib_hour", "gpu_hour", "currency")
_HOUR_S = 3600.0


@dataclasses.dataclass(frozen=True, slots=True, kw_only=True)
class Prices:
    """Prices per hour."""

    core_hour: float
    gib_hour: float
    gpu_hour: float = 0.0
    currency: str = ""
    text: str = ""

    def of(self, *, cpu_s: float, memory_mib_s: float, gpu_s: float) -> float:
        """Return the price of resources."""
        hours = cpu_s * self.core_hour + memory_mib_s / 1024 * self.gib_hour + gpu_s * self.gpu_hour
        return hours / _HOUR_S

    @property
    def in_words(self) -> str:
        """Prices in words."""
        if not self.text:
            return (
                "cost counts core-seconds for 1,000 requests, a GiB-second as an eighth of one "
                "(--prices gives others)"
            )
        money = f" {self.currency}" if self.currency else ""
        gpu = f", of a GPU {self.gpu_hour:g}{money}" if self.gpu_hour else ""
        return (
            f"cost is the price of 1,000 requests: an hour of a core costs {self.core_hour:g}{money}, "
            f"of a GiB {self.gib_hour:g}{money}{gpu} (--prices)"
        )


DEFAULT = Prices(core_hour=_HOUR_S, gib_hour=_HOUR_S / 8)


def read(path: str | None) -> Prices:
    """Read the price file if one is given, or return the default prices.

    Raises:
        UsageError: the file is unreadable.
        InvalidPrices: a key or price is invalid or missing.
    """
    if path is None:
        return DEFAULT
    try:
        text = user_files.text(path)
    except (OSError, UnicodeDecodeError) as error:
        reason = getattr(error, "strerror", None) or "it is not UTF-8 text"
        raise UsageError(f"--prices {path}: {reason}; expected a YAML file of prices") from error
    return parse(text, file=path)


def parse(text: str, *, file: str) -> Prices:
    """Parse a price file, or raise InvalidPrices."""
    found = document.read(text, file, fault=InvalidPrices)
    given = found.mapping(found.value, ())
    for key in given:
        found.reject_unknown(key, KEYS, (key,), "key")
    for key in ("core_hour", "gib_hour"):
        if key not in given:
            raise found.error((key,), "missing; expected the price of an hour, such as 0.04")
    hours = {key: found.number(given[key], (key,)) for key in KEYS[:3] if key in given}
    for key, price in hours.items():
        if price < 0:
            raise found.error((key,), f"{price:g}, expected a price from 0")
    if not hours["core_hour"] and not hours["gib_hour"]:
        raise found.error(("core_hour",), "0 like gib_hour, so everything would be free")
    currency = found.text(given["currency"], ("currency",)) if "currency" in given else ""
    return Prices(**hours, currency=one_line(currency), text=text)


@dataclasses.dataclass(frozen=True, slots=True, kw_only=True)
class AllocatedResources:
    """Reserved resources; 0 for those without a limit."""

    cores: float
    memory_mib: float
    replicas: int
    gpus: float


def allocated_by(
    configuration: Mapping[str, Value],
    *,
    cores: int,
    has_gpu: bool = False,
    whole: ServerResources | None = None,
) -> AllocatedResources:
    """Return the resources that a configuration reserves, those of the `whole` server if limited so."""
    count = int(configuration.get("replica.count", 1))
    limits = ("replica.cpu", count), ("engine.cpu", 1)
    reserved = sum(float(configuration.get(name) or 0) * times for name, times in limits)
    memory = float(configuration.get("replica.memory_mb") or 0) * count
    memory += float(configuration.get("engine.memory_mb") or 0)
    if whole is not None:
        reserved, memory = whole.cpu, float(whole.memory_mb or 0)
    share = float(configuration.get("accelerator.share") or 1.0)
    return AllocatedResources(
        cores=min(float(cores), reserved),
        memory_mib=memory,
        replicas=count,
        gpus=min(1.0, count * share) if has_gpu else 0.0,
    )


def cost_of(
    measurement: Measurement, reserved: AllocatedResources, *, loaded_s: float, prices: Prices
) -> Cost | None:
    """Return the cost of 1,000 responses, or None if unknown; CPU time covers `loaded_s`."""
    noise = measurement.noise
    used = (noise.server_cpu_s or 0.0) / loaded_s if loaded_s > 0 else 0.0
    cores = max(reserved.cores, used)
    memory = max(reserved.memory_mib, (noise.peak_memory_mb or 0.0) * reserved.replicas)
    if not cores or not math.isfinite(cores):
        return None
    each_s = 1e3 * measurement.seconds / measurement.requests
    parts = {
        "cpu_s": cores * each_s,
        "memory_mib_s": memory * each_s,
        "gpu_s": reserved.gpus * each_s,
    }
    return Cost(**parts, price=prices.of(**parts))
