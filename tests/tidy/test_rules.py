"""Every rule on the page of rules is held by a test, and every cited rule is on the page."""

import re
from pathlib import Path

ROOT = Path(__file__).parents[2]
PAGE = ROOT / "docs" / "rules.md"
DEFINITION = re.compile(r"^\*\*Rule ([0-9]+)\. ", re.MULTILINE)
CITATION = re.compile(r"\b[Rr]ules? ([0-9]+)(?:(?: to |, | and )([0-9]+))*")
TEST_NAME = re.compile(r"\bdef test_rule_([0-9]+)_")
CITING = [
    *sorted((ROOT / "src").rglob("*.py")),
    *sorted((ROOT / "tests").rglob("*.py")),
    *sorted((ROOT / "docs").rglob("*.md")),
]


def defined_rules() -> list[int]:
    return [int(number) for number in DEFINITION.findall(PAGE.read_text("utf-8"))]


def test_rules_are_numbered_without_gaps():
    rules = defined_rules()

    assert rules
    assert rules == list(range(1, len(rules) + 1))


def test_every_rule_is_held_by_a_test():
    tested = {
        int(number)
        for file in (ROOT / "tests" / "unit").rglob("test_*.py")
        for number in TEST_NAME.findall(file.read_text("utf-8"))
    }

    assert set(defined_rules()) <= tested, "a rule without a test of its name"
    assert tested <= set(defined_rules()), "a test of a rule that is not on the page"


def test_every_cited_rule_is_on_the_page():
    rules = set(defined_rules())

    unknown = [
        f"{file.relative_to(ROOT)} cites rule {number}"
        for file in CITING
        for found in CITATION.finditer(file.read_text("utf-8"))
        for number in re.findall(r"[0-9]+", found[0])
        if int(number) not in rules
    ]

    assert not unknown


def test_every_file_that_the_page_links_to_exists():
    links = re.findall(r"\]\(([^)#]+)\)", PAGE.read_text("utf-8"))

    assert links
    assert [link for link in links if not (PAGE.parent / link).exists()] == []
