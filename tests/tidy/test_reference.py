"""The reference of the Python client is written from its docstrings, and has every public name."""

import importlib.util
import inspect
from pathlib import Path

import manyhands

_SPEC = importlib.util.spec_from_file_location(
    "reference", Path(__file__).parents[2] / "tools" / "reference.py"
)
assert _SPEC is not None
assert _SPEC.loader is not None
reference = importlib.util.module_from_spec(_SPEC)
_SPEC.loader.exec_module(reference)


def test_every_public_name_is_in_the_reference():
    named = {name for names in reference.PARTS.values() for name in names}

    assert named == {
        name
        for name in dir(manyhands)
        if name[0].isalpha() and not inspect.ismodule(getattr(manyhands, name))
    } - {"TYPE_CHECKING"}


def test_the_reference_is_that_of_this_source():
    assert reference.main(["--check"]) == 0
