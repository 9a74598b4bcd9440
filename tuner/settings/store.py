"""Settings for storage."""

from __future__ import annotations

import dataclasses
import re

from tuner.settings.option import option_field, require


@dataclasses.dataclass(frozen=True, slots=True, kw_only=True)
class StoreSettings:
    """Settings for storing results."""

    study: str | None = option_field(
        None,
        "NAME",
        "name of the study and its folder; default: model, concurrency and time",
    )
    runs_dir: str = option_field("runs", "DIR", "folder of the study folders; default runs")
    storage: str | None = option_field(
        None,
        "URL",
        "SQLAlchemy URL of the Optuna storage; default: study.db in the study folder",
    )

    def __post_init__(self) -> None:
        is_plain = (
            self.study is None
            or re.fullmatch(r"[A-Za-z0-9][A-Za-z0-9._+-]*", self.study) is not None
        )
        require(
            is_plain,
            "--study",
            self.study,
            "letters, digits, '.', '_', '+' and '-', as it names a folder",
        )
        is_url = self.storage is None or "://" in self.storage
        require(is_url, "--storage", self.storage, "an Optuna storage URL such as sqlite:///all.db")
