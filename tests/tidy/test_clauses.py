"""Every clause of a page is held by a test, and no test cites one that is not there.

A clause is defined where its id stands in bold at the start of a line or of a table's row. A test
cites it in its docstring, or in its name: ``test_a14_…``.
"""

import ast
import re
from collections.abc import Iterator
from pathlib import Path

ROOT = Path(__file__).parents[2]
PAGES = sorted((ROOT / "docs").rglob("*.md"))
TESTS = sorted((ROOT / "tests").rglob("test_*.py"))
DEFINITION = re.compile(r"^(?:\| )?\*\*([A-Z]{1,2}[0-9]+)\*\* ", re.MULTILINE)
CITATION = re.compile(r"\b[A-Z]{1,2}[0-9]+\b")
CITATION_IN_NAME = re.compile(r"^test_([a-z]{1,2}[0-9]+)(?=_)")


def defined_clauses() -> list[str]:
    return [found for page in PAGES for found in DEFINITION.findall(page.read_text("utf-8"))]


def cited_clauses() -> Iterator[tuple[str, str]]:
    """Each citation, with where it stands."""
    for file in TESTS:
        for node in ast.walk(ast.parse(file.read_text("utf-8"))):
            if isinstance(node, ast.FunctionDef) and node.name.startswith("test_"):
                where = f"{file.relative_to(ROOT)}:{node.lineno}"
                if named := CITATION_IN_NAME.match(node.name):
                    yield named[1].upper(), where
                for clause in CITATION.findall(ast.get_docstring(node) or ""):
                    yield clause, where


def letters(clause: str) -> str:
    return clause.rstrip("0123456789")


def test_no_clause_is_defined_twice():
    clauses = defined_clauses()

    assert clauses
    assert len(clauses) == len(set(clauses))


def test_clauses_are_numbered_without_gaps():
    numbers: dict[str, list[int]] = {}
    for clause in defined_clauses():
        numbers.setdefault(letters(clause), []).append(int(clause[len(letters(clause)) :]))

    for series, found in numbers.items():
        assert found == list(range(1, len(found) + 1)), f"the series {series} is out of order"


def test_every_clause_is_cited_by_a_test():
    uncited = set(defined_clauses()) - {clause for clause, _ in cited_clauses()}

    assert not uncited, f"no test holds {sorted(uncited)}"


def test_every_cited_clause_exists():
    clauses = set(defined_clauses())
    series = {letters(clause) for clause in clauses}

    unknown = [
        f"{where} cites {clause}"
        for clause, where in cited_clauses()
        if letters(clause) in series and clause not in clauses
    ]

    assert not unknown
