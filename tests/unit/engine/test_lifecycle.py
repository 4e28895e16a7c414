"""The drawn life of a job is the one that the engine knows."""

import itertools

from manyhands.engine.transitions import TABLE, Trigger
from manyhands.model.job import State
from tools import lifecycle


def test_the_page_in_the_docs_is_the_one_that_the_table_gives():
    written = lifecycle.PAGE.read_text(encoding="utf-8")

    assert written == lifecycle.page()
    assert lifecycle.main(["--check"]) == 0


def test_every_state_and_every_trigger_has_its_sentence():
    assert set(lifecycle.ABOUT_STATES) == set(State)
    assert set(lifecycle.ABOUT_TRIGGERS) == set(Trigger)


def test_the_table_on_the_page_has_all_pairs():
    rows = lifecycle.table().splitlines()[2:]

    cells = [row.strip("| ").split(" | ")[1:] for row in rows]

    shown = dict(zip(itertools.product(State, Trigger), itertools.chain(*cells), strict=True))
    assert {pair: State(cell) for pair, cell in shown.items() if cell != "-"} == TABLE


def test_an_outdated_page_is_found_and_nothing_is_written(tmp_path, monkeypatch, capsys):
    page = tmp_path / "docs" / "lifecycle.md"
    monkeypatch.setattr(lifecycle, "PAGE", page)

    checked = lifecycle.main(["--check"])
    missing = not page.exists()
    written = lifecycle.main([])

    assert (checked, missing, written) == (1, True, 0)
    assert lifecycle.main(["--check"]) == 0
    assert "out of date" in capsys.readouterr().err
