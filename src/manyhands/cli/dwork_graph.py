"""A task graph as a file: each line has a name and its predecessors, or a JSON object."""

import sys
from pathlib import Path
from typing import Annotated

import msgspec
import typer
from msgspec import Meta, Struct

from manyhands.cli.stores import fail
from manyhands.protocols.dwork.codec import Dep, Task


def read_graph(file: Path, origin: str) -> list[Task]:
    """All tasks, each after its predecessors, otherwise in the order of the lines.

    They are sent in several messages, and a predecessor that the server does not know yet counts as
    finished.
    """
    try:
        data = sys.stdin.buffer.read() if str(file) == "-" else file.read_bytes()
        text = data.decode("utf-8-sig")
    except OSError as error:
        fail(f"{file}: {error.strerror}.")
    except UnicodeDecodeError:
        fail(f"{file} is not UTF-8 text.")
    if text.lstrip().startswith('{"'):
        tasks = _read_objects(text, file, origin)
    else:
        tasks = _read_lines(text, file, origin)
    graph = {name: dict.fromkeys(dep.name for dep in task.preds) for name, task in tasks.items()}
    foreign = [dep for deps in graph.values() for dep in deps if dep not in graph]
    if foreign:
        typer.echo(
            f"manyhands: {file} names {len(set(foreign))} predecessors that have no line, "
            f"such as {foreign[0]!r}; they count as finished unless the server knows them.",
            err=True,
        )
    return [tasks[name] for name in _in_order(graph, file)]


def _read_lines(text: str, file: Path, origin: str) -> dict[str, Task]:
    """NAME,DEP,DEP…"""
    graph: dict[str, dict[str, None]] = {}  # a repeated name is one task that waits for all
    for number, line in enumerate(text.splitlines(), start=1):
        if not line.strip():
            continue
        name, *deps = [part.strip() for part in line.split(",")]
        if not name or not all(deps):
            fail(f"{file} line {number}: a name is empty.")
        graph.setdefault(name, {}).update(dict.fromkeys(deps))
    return {
        name: Task(name=name, origin=origin, preds=tuple(map(Dep, deps)))
        for name, deps in graph.items()
    }


class _Line(Struct, forbid_unknown_fields=True):
    """A task as a line of JSON."""

    name: Annotated[str, Meta(min_length=1)]
    after: list[Annotated[str, Meta(min_length=1)]] = []
    payload: str | None = None
    command: str | None = None  # a payload to be run as a command
    priority: float | None = None
    attempts: Annotated[int, Meta(ge=1)] | None = None
    cancel_on_failure: bool = False


def _read_objects(text: str, file: Path, origin: str) -> dict[str, Task]:
    """A JSON object per line: names may contain commas, and tasks have more than predecessors."""
    decode = msgspec.json.Decoder(_Line).decode
    tasks: dict[str, Task] = {}
    for number, line in enumerate(text.splitlines(), start=1):
        if not line.strip():
            continue
        try:
            found = decode(line)
        except msgspec.DecodeError as error:
            fail(f"{file} line {number}: {error}.")
        if found.command is not None and found.payload is not None:
            fail(f"{file} line {number}: a task has a command or a payload, not both.")
        if found.name in tasks:
            fail(f"{file} line {number}: task {found.name!r} already has a line.")
        data = found.payload if found.command is None else found.command
        tasks[found.name] = Task(
            name=found.name,
            origin=origin,
            preds=tuple(map(Dep, dict.fromkeys(found.after))),
            payload=data.encode() if data is not None else None,
            priority=found.priority,
            attempts_max=found.attempts,
            cancel_on_failure=found.cancel_on_failure,
        )
    return tasks


def _in_order(graph: dict[str, dict[str, None]], file: Path) -> list[str]:
    placed: dict[str, None] = {}
    for root in graph:
        path: dict[str, None] = {}  # from the root to the current task, each waiting for the next
        stack = [root]
        while stack:
            name = stack[-1]
            missing = [dep for dep in graph[name] if dep in graph and dep not in placed]
            if name in placed or not missing:
                stack.pop()
                path.pop(name, None)
                placed[name] = None
                continue
            path[name] = None
            looped = next((dep for dep in missing if dep in path), None)
            if looped is not None:
                fail(f"{file}: task {looped!r} would depend on itself.")
            stack += reversed(missing)
    return list(placed)
