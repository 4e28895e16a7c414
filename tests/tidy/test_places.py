"""Pages that say where something is are right: every file and folder they name exists."""

import re

import pytest

from tests.tidy.test_tidy import ROOT

PAGES = ("docs/design.md", "CONTRIBUTING.md")
_NAMED = re.compile(r"`((?:[\w.-]+/)+[\w.-]*|[\w-]+\.py)`")


def places(page: str) -> set[str]:
    """Paths in the text, but for those of a machine or of what is built."""
    found = _NAMED.findall((ROOT / page).read_text(encoding="utf-8"))
    return {path for path in found if not path.startswith(("build/", "dist/"))}


@pytest.mark.parametrize("page", PAGES)
def test_every_file_that_a_page_names_exists(page):
    missing = [
        path
        for path in sorted(places(page))
        if not any((top / path).exists() for top in (ROOT, ROOT / "src" / "manyhands"))
    ]

    assert not missing, f"{page} names what does not exist: {missing}"


def test_the_page_of_changes_has_twenty_or_more():
    text = (ROOT / "docs" / "design.md").read_text(encoding="utf-8")
    table = text.partition("## To change something")[2].partition("\n## ")[0]

    assert table.count("\n| ") >= 21  # with the heading
