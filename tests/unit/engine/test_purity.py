"""The engine decides and nothing else: every command has a decision, and nothing does I/O."""

import subprocess
import sys
import typing
from enum import Enum

from manyhands.engine import decide as decide_module
from manyhands.model import commands

# Loading one of these would mean that a decision could depend on more than its arguments.
IO_MODULES = (
    "asyncio",
    "logging",
    "random",
    "secrets",
    "select",
    "socket",
    "sqlite3",
    "ssl",
    "subprocess",
    "threading",
    "uuid",
)
PROGRAM = """
import sys
import msgspec, msgspec.structs, hashlib, base64, math, enum, typing, collections.abc
before = set(sys.modules)
import manyhands.engine.decide, manyhands.engine.invariants
print("\\n".join(sorted(set(sys.modules) - before)))
"""


def test_every_command_has_a_decision_and_every_decision_a_command():
    union = set(typing.get_args(commands.Command))

    decided = set(decide_module._DECISIONS)

    assert decided == union


def test_every_value_of_the_commands_module_that_can_be_asked_is_in_the_union():
    union = set(typing.get_args(commands.Command))
    parts = {commands.NewJob, commands.Only, *typing.get_args(commands.Proof)}

    defined = {
        value
        for value in vars(commands).values()
        if isinstance(value, type)
        and value.__module__ == commands.__name__
        and not issubclass(value, Enum)
    }

    assert defined == union | parts


def test_importing_the_engine_loads_no_module_that_does_io():
    finished = subprocess.run(
        [sys.executable, "-c", PROGRAM], capture_output=True, text=True, check=True
    )

    loaded = finished.stdout.split()

    assert "manyhands.engine.decide" in loaded
    assert not [name for name in loaded if name.split(".")[0] in IO_MODULES]
    assert "manyhands.store" not in loaded
    assert "manyhands.dispatch" not in loaded
