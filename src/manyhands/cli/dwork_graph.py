"""A task graph as a file: lines of a name and the names that come before it."""

import sys
from pathlib import Path

import typer

from manyhands.cli.storing import fail
from manyhands.wire.dwork import Dep, Task


def read_graph(file: Path, origin: str) -> list[Task]:
    """All tasks, each behind those that it names; otherwise in the order of the lines. They are
    sent in several messages, and the server takes what it does not know yet as finished.
    """
    try:
        data = sys.stdin.buffer.read() if str(file) == "-" else file.read_bytes()
        text = data.decode("utf-8-sig")
    except OSError as error:
        fail(f"{file}: {error.strerror}.")
    except UnicodeDecodeError:
        fail(f"{file} is not UTF-8 text.")
    graph: dict[str, dict[str, None]] = {}  # a name twice: one task that waits for all
    for number, line in enumerate(text.splitlines(), start=1):
        if not line.strip():
            continue
        name, *deps = [part.strip() for part in line.split(",")]
        if not name or not all(deps):
            fail(f"{file} line {number}: a name is empty.")
        graph.setdefault(name, {}).update(dict.fromkeys(deps))
    foreign = [dep for deps in graph.values() for dep in deps if dep not in graph]
    if foreign:
        typer.echo(
            f"manyhands: {file} names {len(set(foreign))} predecessors that it has no line for, "
            f"such as {foreign[0]!r}; if the server does not know them they count as finished.",
            err=True,
        )
    return [
        Task(name=name, origin=origin, preds=tuple(map(Dep, graph[name])))
        for name in _in_order(graph, file)
    ]


def _in_order(graph: dict[str, dict[str, None]], file: Path) -> list[str]:
    placed: dict[str, None] = {}
    for root in graph:
        path: dict[str, None] = {}  # from the root to what is looked at, each waiting for the next
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
