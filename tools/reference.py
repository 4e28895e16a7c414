"""Writes docs/python/reference.md from the docstrings of the Python client; with --check, only says
if it differs.
"""

import ast
import inspect
import re
import sys
import textwrap
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import manyhands
from manyhands.client.task import AsyncMap, Map
from manyhands.testing import job_for

PAGE = Path(__file__).parents[1] / "docs" / "python" / "reference.md"
HEAD = """\
<!-- Written by tools/reference.py from the docstrings: change those, then run `make docs`. -->

# Reference

Everything that `from manyhands import …` offers; nothing else is public. Methods whose names begin
with `a` are for coroutines and otherwise the same. Options of tasks and submits are in
[tasks](tasks.md), the fixtures for tests in [testing](../testing.md).
"""
# Sections, names, and those of their members that are for users.
PARTS: dict[str, dict[str, tuple[str, ...]]] = {
    "Tasks": {
        "App": (
            *("task", "limit", "around", "state", "batch", "handle", "client", "worker"),
            *("close", "aclose"),
        ),
        "Task": ("__call__", "submit", "asubmit", "map", "amap", "using"),
        "Backoff": (),
        "cron": (),
        "every": (),
        "embedded": (),
    },
    "Jobs that were submitted": {
        "Handle": (
            *("id", "output", "result", "aresult", "status", "astatus", "cancel", "acancel"),
            *("news", "anews"),
        ),
        "as_completed": (),
        "wait": (),
        "await_": (),
        "gather": (),
        "agather": (),
    },
    "Inside a task": {
        "current_job": (),
        "Job": (
            *("id", "task", "queue", "attempt", "headers", "why", "deadline", "log", "progress"),
            *("emit", "cancelled", "check", "shield", "release"),
        ),
        "Retry": (),
        "Fail": (),
        "Cancelled": (),
    },
    "Errors": dict.fromkeys(
        ("JobFailed", "JobCancelled", "ResultGone", "Refused", "QueueFull", "Unavailable"), ()
    ),
    "Without tasks": {
        "SyncClient": (
            *("submit_raw", "submit_many", "handle", "jobs", "queues", "schedules", "limits"),
            *("events", "cancel", "retry", "request", "close"),
        ),
        "Client": (),
        "Executor": ("submit", "map", "shutdown"),
    },
}
MADE = frozenset({"App", "Backoff", "SyncClient", "Client", "Executor", "Retry", "Fail"})
_MAPS: dict[str, Any] = {"map": Map, "amap": AsyncMap}  # how a task gets them
_CLAUSES = re.compile(r"^P\d+(, P\d+)*: (.)")


def page() -> str:
    """The text of the page."""
    parts = [HEAD]
    for title, names in PARTS.items():
        parts.append(f"## {title}")
        for name, members in names.items():
            found = getattr(manyhands, name)
            parts.append(_entry(name, found))
            if members:
                parts.append("\n".join(_members(found, members)))
    parts += ["## For tests", _entry("job_for", job_for)]
    return "\n\n".join(parts) + "\n"


def _entry(name: str, found: Any) -> str:  # noqa: ANN401 - anything that has a docstring
    shown = name + (_made(found) if inspect.isclass(found) else _parameters(found))
    return f"### `{shown}`\n\n{_said(found)}"


def _said(found: Any) -> str:  # noqa: ANN401
    """What a docstring says, without the numbers of clauses."""
    text = inspect.getdoc(found) or ""
    text = _CLAUSES.sub(lambda match: match[2].upper(), text)
    return re.sub(r"``(.*?)``", r"`\1`", text, flags=re.DOTALL).strip()


def _members(kind: type, names: tuple[str, ...]) -> Iterator[str]:
    fields = [name for name in names if not _is_described(kind, name)]
    if fields:
        yield "- " + ", ".join(f"`{name}`" for name in fields)
    for name in names:
        if name not in fields:
            found = _MAPS.get(name) if kind is manyhands.Task else None
            found = inspect.getattr_static(kind, name) if found is None else found.__call__
            shown = name if isinstance(found, property) else name + _parameters(found)
            yield f"- `{shown}`: {_line(found)}"


def _is_described(kind: type, name: str) -> bool:
    found = inspect.getattr_static(kind, name, None)
    return name in _MAPS or isinstance(found, property) or inspect.isfunction(found)


def _line(found: Any) -> str:  # noqa: ANN401
    """A docstring in one line."""
    text = " ".join(_said(found).split())
    return text[0].lower() + text[1:]


def _made(kind: type) -> str:
    """The parameters of a class that users make objects of."""
    if kind.__name__ not in MADE:
        return ""
    init = inspect.getattr_static(kind, "__init__")
    return _parameters(init) if inspect.isfunction(init) else str(inspect.signature(kind))


def _parameters(function: Any) -> str:  # noqa: ANN401
    """Parameters and what is returned, as they stand in the source."""
    source = textwrap.dedent(inspect.getsource(inspect.unwrap(function)))
    node = ast.parse(source).body[0]
    assert isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef)
    node = _Unquoted().visit(node)
    for own in (node.args.posonlyargs, node.args.args):
        own[:] = [each for each in own if each.arg not in ("self", "cls")]
    returns = node.returns
    is_init = returns is None or function.__name__ == "__init__"
    return f"({ast.unparse(node.args)})" + ("" if is_init else f" -> {ast.unparse(returns)}")


class _Unquoted(ast.NodeTransformer):
    """Annotations that are strings become what they stand for."""

    def visit_arg(self, node: ast.arg) -> ast.arg:
        node.annotation = self._plain(node.annotation)
        return node

    def visit_FunctionDef(self, node: ast.FunctionDef) -> ast.FunctionDef:
        node.returns = self._plain(node.returns)
        self.visit(node.args)
        return node

    visit_AsyncFunctionDef = visit_FunctionDef  # type: ignore[assignment]  # noqa: N815

    def _plain(self, node: ast.expr | None) -> ast.expr | None:
        if isinstance(node, ast.Constant) and isinstance(node.value, str):
            return ast.parse(node.value, mode="eval").body
        return node


def main(arguments: list[str]) -> int:
    """Writes the page, or checks it."""
    if arguments not in ([], ["--check"]):
        print("usage: reference.py [--check]", file=sys.stderr)
        return 2
    wanted = page()
    if arguments == ["--check"]:
        if PAGE.exists() and PAGE.read_text(encoding="utf-8") == wanted:
            return 0
        print("docs/python/reference.md is out of date; run tools/reference.py", file=sys.stderr)
        return 1
    PAGE.write_text(wanted, encoding="utf-8")
    return 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
