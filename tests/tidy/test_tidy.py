"""Rules that linters cannot say: dead modules, loose ends, and words that belong elsewhere."""

import ast
import re
from collections.abc import Iterator
from pathlib import Path

import pytest

from manyhands.cli import COMMANDS

ROOT = Path(__file__).parents[2]
SOURCE = ROOT / "src"
MODULES = sorted((SOURCE / "manyhands").rglob("*.py"))
SCRIPTS = sorted((ROOT / "tools").rglob("*.py"))
WRITTEN_BY_HAND = [
    *MODULES,
    *SCRIPTS,
    # Whoever has run a benchmark has other people's packages below it.
    *sorted(set((ROOT / "bench").rglob("*.py")) - set((ROOT / "bench").glob("*/.*/**/*.py"))),
    *sorted((ROOT / "tests").rglob("*.py")),
    *sorted(ROOT.glob("*.md")),
    *sorted((ROOT / "docs").rglob("*.md")),
    ROOT / "Makefile",
    ROOT / "pyproject.toml",
]

# Started by name from outside, so nothing needs to import them.
PIN = r"[a-z0-9-]+==[A-Za-z0-9.]+(; python_version (<|>=) \"3\.\d+\")?"
ENTRY_POINTS = frozenset(
    {
        "manyhands",
        "manyhands.__main__",
        "manyhands.cli",
        "manyhands.client.worker.entry",  # started by name, in each child of a supervisor
        "manyhands.contrib",
        "manyhands.contrib.django",  # named in the settings of a project
        "manyhands.testing.plugin",  # loaded by pytest
        "manyhands.store.sqlite.writer.process",  # started by name, as a process of its own
    }
)

# Each means something different in each protocol, so below `protocols/` none of them is used.
FOREIGN_WORDS = frozenset(
    [
        "task",
        "stage",
        "handle",
        "location",
        "meta",
        "status",
        "steal",
        "heartbeat",
        "done",
        "pending",
        "waiting",
        "running",
    ]
)
OUR_WORDS_ONLY = ("model", "engine", "store")
# (file below src/manyhands, identifier): names that others prescribe, each with its reason.
FOREIGN_WORDS_ALLOWED: frozenset[tuple[str, str]] = frozenset()

# Reading the environment is the command's business, and that of programs which are no command, and
# of tests, which start commands: everything else gets arguments.
ENVIRONMENT_READERS = frozenset({"cli", "client", "testing"})


def module_name(file: Path) -> str:
    parts = file.relative_to(SOURCE).with_suffix("").parts
    return ".".join(parts[:-1] if parts[-1] == "__init__" else parts)


def tree(file: Path) -> ast.Module:
    return ast.parse(file.read_text(encoding="utf-8"), str(file))


def imported_names(file: Path) -> Iterator[str]:
    """Every dotted name that an import in the file may load, wherever in the file it stands."""
    for node in ast.walk(tree(file)):
        if isinstance(node, ast.Import):
            yield from (alias.name for alias in node.names)
        elif isinstance(node, ast.ImportFrom) and node.module is not None:
            yield node.module
            yield from (f"{node.module}.{alias.name}" for alias in node.names)


def defined_names(file: Path) -> Iterator[tuple[str, int]]:
    """Every name that the file gives to something, with its line."""
    for node in ast.walk(tree(file)):
        match node:
            case ast.FunctionDef() | ast.AsyncFunctionDef() | ast.ClassDef():
                yield node.name, node.lineno
            case ast.arg():
                yield node.arg, node.lineno
            case ast.Name(ctx=ast.Store()):
                yield node.id, node.lineno
            case ast.Attribute(ctx=ast.Store()):
                yield node.attr, node.lineno
            case ast.alias(asname=str(name)):
                yield name, node.lineno
            case ast.MatchAs(name=str(name)) | ast.MatchStar(name=str(name)):
                yield name, node.lineno


def words(identifier: str) -> set[str]:
    spaced = re.sub(r"([a-z0-9])([A-Z])", r"\1_\2", identifier)
    return set(spaced.lower().split("_"))


@pytest.mark.parametrize("file", MODULES, ids=module_name)
def test_every_module_says_what_it_holds(file):
    assert ast.get_docstring(tree(file)), f"{file} has no docstring"


def test_every_module_is_imported_by_another():
    # Commands are loaded by their names in a table.
    imported = {command.place.partition(":")[0] for command in COMMANDS}
    for file in [*MODULES, *SCRIPTS]:
        own = module_name(file) if file in MODULES else ""
        for name in imported_names(file):
            # Loading a module loads the packages above it, except that none loads itself.
            parts = name.split(".")
            imported |= {".".join(parts[: end + 1]) for end in range(len(parts))} - {own}

    unused = {module_name(file) for file in MODULES} - imported - ENTRY_POINTS

    assert not unused, f"imported by nobody: {sorted(unused)}"


def test_every_loose_end_names_its_issue():
    loose = re.compile(r"\b(?:TO" + r"DO|FIX" + r"ME|BU" + r"G)\b(?=[:(\s])(?!\(#\d+\))")

    found = [
        f"{file.relative_to(ROOT)}:{number}"
        for file in WRITTEN_BY_HAND
        if file.exists()
        for number, line in enumerate(file.read_text(encoding="utf-8").splitlines(), start=1)
        if loose.search(line)
    ]

    assert not found, f"a loose end without (#issue): {found}"


def test_constraints_pin_versions_and_name_no_place_to_fetch_them_from():
    lines = (ROOT / "constraints.txt").read_text(encoding="utf-8").splitlines()

    wrong = [line for line in lines if not line.startswith("#") and not re.fullmatch(PIN, line)]

    assert not wrong
    assert not any("://" in line for line in lines)


def test_words_of_a_protocol_stay_out_of_model_engine_and_store():
    found = [
        f"{file.relative_to(SOURCE)}:{line} {name}"
        for folder in OUR_WORDS_ONLY
        for file in sorted((SOURCE / "manyhands" / folder).rglob("*.py"))
        for name, line in defined_names(file)
        if words(name) & FOREIGN_WORDS
        and (str(file.relative_to(SOURCE / "manyhands")), name) not in FOREIGN_WORDS_ALLOWED
    ]

    assert not found, f"a word that means something else in some protocol: {found}"


def test_only_the_command_reads_the_environment():
    found = [
        f"{file.relative_to(SOURCE)}:{node.lineno}"
        for file in MODULES
        if not ENVIRONMENT_READERS.intersection(file.relative_to(SOURCE).parts)
        for node in ast.walk(tree(file))
        if isinstance(node, ast.Attribute) and node.attr in ("environ", "getenv")
    ]

    assert not found, f"an option belongs into config.py and comes in as an argument: {found}"


def texts_for_reasons(file: Path) -> Iterator[int]:
    """Lines where a reason is compared with a text, or a job is given a text as its reason: the
    type checker sees neither, since a reason is a text, too, and `replace` takes anything.
    """
    for node in ast.walk(tree(file)):
        match node:
            case ast.Compare():
                sides = [node.left, *node.comparators]
                parts = [part for side in sides for part in (side, *getattr(side, "elts", ()))]
                if any(isinstance(part, ast.Attribute) and part.attr == "reason" for part in parts):
                    yield from (
                        part.lineno
                        for part in parts
                        if isinstance(part, ast.Constant) and isinstance(part.value, str)
                    )
            case ast.Call(func=ast.Name(id="replace" | "advance" | "place" | "Job" | "Event")):
                yield from (
                    keyword.value.lineno
                    for keyword in node.keywords
                    if keyword.arg == "reason" and isinstance(keyword.value, ast.Constant)
                )


def test_a_reason_is_never_a_bare_text():
    found = [
        f"{file.relative_to(SOURCE)}:{line}" for file in MODULES for line in texts_for_reasons(file)
    ]

    assert not found, f"use Reason, or better what it means: {found}"


def test_a_bare_text_for_a_reason_is_found(tmp_path):
    file = tmp_path / "wrong.py"
    file.write_text(
        'job.reason == "retry"\n'
        'event.reason in ("lost", Reason.CUTOFF)\n'
        'job = replace(job, reason="")\n'
        "job.reason is Reason.RETRY\n"
        "job = replace(job, reason=Reason.NONE)\n"
    )

    assert list(texts_for_reasons(file)) == [1, 2, 3]
