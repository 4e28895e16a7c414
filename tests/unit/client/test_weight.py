"""What importing the client brings along."""

import ast
import subprocess
import sys
from pathlib import Path

import pytest

import manyhands

_SHOW = """
import sys, threading
before = set(sys.modules)
import manyhands
{use}
new = set(sys.modules) - before
names = {{name.partition(".")[0] for name in new}} - set(sys.stdlib_module_names)
print(*sorted(names), threading.active_count(), sep=",")
server = [name for name in new if name.startswith("manyhands.")]
print(*sorted(server), sep=",")
"""
_SERVER = (
    "manyhands.app",
    "manyhands.dispatch",
    "manyhands.engine",
    "manyhands.model",
    "manyhands.store",
    "manyhands.observe",
    "manyhands.ui",
    "manyhands.net.http",
    "manyhands.net.tcp",
)
_EVERYTHING = "for name in dir(manyhands): getattr(manyhands, name)\nmanyhands.App()"


def loaded(use: str) -> tuple[list[str], list[str]]:
    """Packages of others, with the number of threads, and modules of ours."""
    found = subprocess.run(
        [sys.executable, "-I", "-c", _SHOW.format(use=use)],
        capture_output=True,
        text=True,
        check=True,
        timeout=120,
    )
    others, ours = found.stdout.splitlines()
    return others.split(","), ours.split(",")


def test_p1_importing_the_package_loads_nothing():
    others, ours = loaded("")

    assert others == ["manyhands", "1"]
    assert ours == [""]


def test_p1_the_whole_client_loads_nothing_but_msgspec():
    """And starts no thread, although an app is made."""
    others, ours = loaded(_EVERYTHING)

    assert others[-1] == "1"
    # The last one is what msgspec itself takes, where it is installed.
    assert set(others[:-1]) <= {"manyhands", "msgspec", "typing_extensions"}
    assert not [name for name in ours if name.startswith(_SERVER)]


@pytest.mark.parametrize("name", [name for name in dir(manyhands) if name[0].isalpha()])
def test_p1_every_public_name_is_there(name):
    assert getattr(manyhands, name) is not None


def test_p1_a_star_imports_the_public_names_and_no_others():
    found: dict[str, object] = {}
    exec("from manyhands import *", found)

    assert found["App"] is manyhands.App
    assert {name for names in manyhands._PLACES.values() for name in names} == (
        found.keys() - {"__builtins__"}
    )


def test_p1_other_names_are_not():
    with pytest.raises(AttributeError, match="nothing"):
        _ = manyhands.nothing


def test_p8_nothing_of_the_client_pickles():
    """P8: but for the module of P72, which both sides have to ask for."""
    folder = Path(manyhands.__file__).parent / "client"
    found = [
        f"{file.name}:{node.lineno}"
        for file in folder.rglob("*.py")
        for node in ast.walk(ast.parse(file.read_text(encoding="utf-8")))
        if isinstance(node, ast.Import | ast.ImportFrom)
        for name in (getattr(node, "module", None) or "", *(each.name for each in node.names))
        if name.partition(".")[0] in ("pickle", "cloudpickle", "marshal", "shelve", "dill")
    ]

    assert not found
