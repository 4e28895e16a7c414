"""The section about events in docs/design.md is what the source says."""

import pytest

from manyhands.model.events import Event
from manyhands.model.reasons import Outcome, Reason
from tools import vocabulary


def test_the_written_section_is_the_one_of_the_source():
    written = vocabulary.PAGE.read_text(encoding="utf-8")

    assert written == vocabulary.page(written)
    assert vocabulary.main(["--check"]) == 0


def test_every_field_and_every_outcome_is_explained():
    assert tuple(vocabulary.ABOUT_FIELDS) == Event.__struct_fields__
    assert set(vocabulary.ABOUT_OUTCOMES) == set(Outcome)


def test_every_reason_has_a_row():
    rows = [line for line in vocabulary.section().splitlines() if line.startswith("| `")]

    for reason in set(Reason) - {Reason.NONE}:
        assert sum(row.startswith(f"| `{reason}` | {reason.sentence} |") for row in rows) == 1


def test_a_page_that_is_out_of_date_is_found_and_mended(tmp_path, monkeypatch, capsys):
    page = tmp_path / "design.md"
    page.write_text(f"before\n{vocabulary.BEGIN}old{vocabulary.END}after\n")
    monkeypatch.setattr(vocabulary, "PAGE", page)

    checked = vocabulary.main(["--check"])

    assert checked == 1
    assert "out of date" in capsys.readouterr().err
    assert vocabulary.main([]) == vocabulary.main(["--check"]) == 0
    assert page.read_text().startswith("before\n")
    assert page.read_text().endswith("after\n")


def test_a_page_without_its_marks_is_refused(tmp_path, monkeypatch):
    page = tmp_path / "design.md"
    page.write_text("nothing of the kind\n")
    monkeypatch.setattr(vocabulary, "PAGE", page)

    with pytest.raises(SystemExit, match="no marks"):
        vocabulary.main([])
