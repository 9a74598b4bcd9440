"""Functions that write reports atomically.

They raise StorageFailed if the file cannot be written.
"""

from __future__ import annotations

import os
import pathlib

from tuner.errors import StorageFailed
from tuner.metrics.benchmark import BenchmarkRecord
from tuner.report import page
from tuner.report.benchmark import page as benchmark_page
from tuner.report.comparison import page as comparison_page
from tuner.values.sampler_comparison import ComparisonRecord
from tuner.values.study_record import StudyRecord


def write_study(study: StudyRecord, path: pathlib.Path) -> pathlib.Path:
    """Write a study's page, usually to `runs/<study>/report.html`."""
    return _write_page(page.render(study), path)


def write_comparison(record: ComparisonRecord, path: pathlib.Path) -> pathlib.Path:
    """Write a comparison's page, usually to `compare.html`."""
    return _write_page(comparison_page.render(record), path)


def write_benchmark(record: BenchmarkRecord, path: pathlib.Path) -> pathlib.Path:
    """Write a table benchmark's page, usually to `compare.html`."""
    return _write_page(benchmark_page.render(record), path)


def _write_page(text: str, path: pathlib.Path) -> pathlib.Path:
    beside = path.with_name(f".{path.name}.{os.getpid()}.part")
    try:
        path.parent.mkdir(parents=True, exist_ok=True)
        try:
            beside.write_text(text, encoding="utf-8")
            beside.replace(path)
        finally:
            beside.unlink(missing_ok=True)
    except OSError as error:
        raise StorageFailed(
            f"report {path} cannot be written: {error.strerror or error}"
        ) from error
    return path
