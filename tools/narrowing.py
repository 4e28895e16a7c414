"""Finds places where compiled code relies on a type that may have changed.

mypy keeps what it learned about an attribute (`if self.fault is None: …`) across calls that may set
the attribute, and mypyc compiles that in: when the attribute is read again and has another type,
the compiled code raises a TypeError, where the interpreter would just continue. Such places are
found in the operations that mypyc writes beside its C code, function by function.
"""

import itertools
import re
from collections.abc import Collection, Iterator
from pathlib import Path
from typing import Final

_LABEL: Final = re.compile(r"(L\d+):$")
_GOTO: Final = re.compile(r"goto (L\d+)")
_ENDS: Final = re.compile(r"if |goto |return |unreachable")
_READ: Final = re.compile(r"(\w+) = (?:borrow )?(\w+)\.(\w+)$")
_WRITE: Final = re.compile(r"(\w+)\.(\w+) = ")
_CAST: Final = re.compile(r"(\w+) = (?:borrow )?(?:cast|unbox)\((.*), (\w+)\)$")
_CALL: Final = re.compile(r"(?:\w+ = )?([\w.<>]+)\(")
_ASSIGNED: Final = re.compile(r"(\w+) = ")
_WHERE: Final = re.compile(r"\(error at (.*?)\)")
# Of the C functions for Python's own types, only these call back into our code.
_BUILT_IN: Final = re.compile(r"_?C?Py|(cast|unbox|box|load_address|fabs)$")
_CALLS_BACK: Final = re.compile(r"[Cc]all|PyObject_GetIter|PyIter_Next|Iter_Send")
# Where functions and generators keep their own variables, which no other code changes.
_FRAME: Final = re.compile(r"_(env|gen|obj)$")

Fact = tuple[str, str]


class _Function:
    """The operations of one function, and what is known before each block of them."""

    def __init__(self, text: str, values: Collection[str]) -> None:
        lines = [line.strip() for line in text.split("\n")]
        self._values = values
        self._kinds: dict[str, str] = {}
        self._blocks: dict[str, list[str]] = {}
        self._name = lines[0].partition("(")[0]
        goals = _GOTO.findall(text)
        block: list[str] | None = None
        for before, line in itertools.pairwise(lines):
            label = _LABEL.match(line)
            if label is None:
                if block is not None:
                    block.append(line)
                elif " :: " in line:
                    names, kind = line.split(" :: ", 1)
                    self._kinds.update(dict.fromkeys(names.split(", "), kind))
            elif f"else goto {label[1]}" not in before or goals.count(label[1]) > 1:
                if block is not None and not _ENDS.match(before):
                    block.append(f"goto {label[1]}")
                block = self._blocks[label[1]] = []

    def findings(self) -> Iterator[str]:
        """Sentences about what is wrong with the function."""
        known: dict[str, frozenset[Fact]] = {}
        found: dict[str, None] = {}
        ahead = [(label, frozenset[Fact]()) for label in list(self._blocks)[:1]]
        while ahead:
            label, facts = ahead.pop()
            new = known[label] & facts if label in known else facts
            if label not in self._blocks or known.get(label) == new:
                continue
            known[label] = new
            ahead += self._walk(label, new, {})
        for label, facts in known.items():
            list(self._walk(label, facts, found))
        yield from found

    def _walk(
        self, label: str, facts: frozenset[Fact], found: dict[str, None]
    ) -> Iterator[tuple[str, frozenset[Fact]]]:
        """Walks over a block; yields the blocks it leads to, with what is known there: which
        attributes cannot have changed since they were checked, and which of them a register holds.
        """
        paths = {name: path for name, path in facts if name}
        fresh = {path for name, path in facts if not name}
        stale = ""  # the register that the previous operation has read an attribute into
        operations = self._blocks[label]
        for place, line in enumerate(operations):
            if line.startswith(("inc_ref", "dec_ref")):
                continue
            for goal in _GOTO.findall(line):
                yield goal, frozenset(paths.items()) | {("", path) for path in fresh}
            if line.startswith("if "):
                stale = stale if line.startswith("if is_error") else ""
            elif (read := _READ.match(line)) and read[2] in self._kinds:
                path = f"{paths.get(read[2], read[2])}.{read[3]}"
                stale = "" if path in fresh or not self._may_change(read[2]) else read[1]
                paths[read[1]] = path
                fresh.add(path)
            elif cast := _CAST.match(line):
                if cast[3] == stale and self._is_narrower(cast[2], stale):
                    where = _WHERE.search(" ".join(operations[place:]))
                    line_number = where[1].rpartition(":")[2] if where else "?"
                    said = f"{self._name} (line {line_number}): {paths[stale]} was looked at"
                    found[f"{said} before a call, and is taken for {cast[2]} after it"] = None
                paths[cast[1]] = paths.get(cast[3], cast[3])
                stale = ""
            else:
                stale = ""
                self._go_on(line, paths, fresh)

    def _go_on(self, line: str, paths: dict[str, str], fresh: set[str]) -> None:
        """Updates what is known after an operation."""
        if (write := _WRITE.match(line)) and write[1] in self._kinds:
            for path in [path for path in fresh if write[2] in path.split(".")]:
                fresh.discard(path)
            fresh.add(f"{paths.get(write[1], write[1])}.{write[2]}")
            return
        call = _CALL.match(line)
        if call and (not _BUILT_IN.match(call[1]) or _CALLS_BACK.search(call[1])):
            fresh.clear()
        if assigned := _ASSIGNED.match(line):
            paths.pop(assigned[1], None)
            for path in [path for path in fresh if path.startswith(f"{assigned[1]}.")]:
                fresh.discard(path)

    def _may_change(self, register: str) -> bool:
        kind = self._kinds[register]
        return kind not in self._values and not _FRAME.search(kind)

    def _is_narrower(self, kind: str, register: str) -> bool:
        return self._kinds[register] not in (kind, "object") and kind != "object"


def find_narrowings(operations: Path, values: Collection[str]) -> list[str]:
    """What is wrong with the compiled functions. ``values`` are classes whose fields never
    change.
    """
    functions = re.split(r"(?m)^def ", operations.read_text())[1:]
    return [said for text in functions for said in _Function(text, values).findings()]
