import pytest

from tests.fakes import studies
from tuner.errors import StorageFailed
from tuner.report import files, page
from tuner.report.comparison import page as comparison_page


def test_reports_are_written_whole(tmp_path):
    """The file holds the page, its folder is made, and nothing else is left beside it."""
    study, record = studies.all_failed(trials=2), studies.comparison(repeats=1, trials=2)
    first = files.write_study(study, tmp_path / "runs" / "report.html")
    second = files.write_comparison(record, tmp_path / "runs" / "compare.html")
    assert first.read_text(encoding="utf-8") == page.render(study)
    assert second.read_text(encoding="utf-8") == comparison_page.render(record)
    assert sorted(path.name for path in first.parent.iterdir()) == ["compare.html", "report.html"]


def test_a_path_that_cannot_be_written_is_a_storage_error(tmp_path):
    """The error names the file and the reason."""
    (tmp_path / "runs").write_text("a file where a folder should be")
    with pytest.raises(StorageFailed, match=r"report\.html cannot be written"):
        files.write_study(studies.study(trials=1), tmp_path / "runs" / "report.html")
