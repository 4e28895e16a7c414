"""Prepares a copy of the source for the compiler.

Most values are msgspec structs, whose fields compiled code can reach only through the interpreter.
So those that every job passes through become classes with typed fields, and copies with changes
(`replace`) become a method of theirs. All of this is done to a copy.
"""

import ast
import re
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Final, NamedTuple

# In the copy, the struct of a job has a module of its own, which can be compiled; the other structs
# of its module are stored as they are.
JOB: Final = "Job"
JOB_MODULE: Final = "model/job.py"
MOVED_JOB_MODULE: Final = "model/native_job.py"
# The struct of a job, as it is encoded, and the conversions to it and from it.
STORED_MODULE: Final = "model/stored.py"
STORED_JOB_MODULE: Final = "model/stored_job.py"
# All structs of these modules become classes.
VALUE_MODULES: Final = (
    "model/commands.py",
    "model/replies.py",
    "engine/effects.py",
    "protocols/dwork/session.py",
    "protocols/dwork/turns.py",
    "protocols/dwork/codec.py",
)
# The interface that the engine reads, and its implementation.
VIEW_MODULE: Final = "engine/view.py"
INDEX_MODULE: Final = "store/index/live.py"
# Structs that are copied with changes.
COPIED: Final = (JOB, "NewJob")
# Classes that tests replace by subclasses, which are not compiled.
INHERITED: Final = ("Clock", "Ids")

HEADER: Final = """
from typing import Any, ClassVar, Final
from mypy_extensions import mypyc_attr, trait
from manyhands.native import are_alike, shown
_SAME: Final = object()
"""

# What the copy uses instead of msgspec's own functions.
NATIVE_MODULE: Final = '''"""What msgspec does for structs, for compiled values as well."""

from typing import Any, TypeVar

from msgspec import Struct, structs

Value = TypeVar("Value")


def replace(value: Value, **changes: Any) -> Value:
    if isinstance(value, Struct):
        return structs.replace(value, **changes)
    return value.changed(**changes)  # type: ignore[attr-defined, no-any-return]


def force_setattr(value: Any, name: str, item: Any) -> None:
    setattr(value, name, item)


def shown(value: Any, names: tuple[str, ...]) -> str:
    fields = ", ".join(f"{name}={getattr(value, name)!r}" for name in names)
    return f"{type(value).__name__}({fields})"


def are_alike(value: Any, other: object, names: tuple[str, ...]) -> bool:
    return type(value) is type(other) and all(
        getattr(value, name) == getattr(other, name) for name in names
    )
'''


class _Field(NamedTuple):
    """One field of a struct."""

    name: str
    kind: str
    default: str | None

    def parameter(self) -> str:
        """The field as an argument of the constructor."""
        return f"{self.name}: {self.kind}" + ("" if self.default is None else f" = {self.default}")

    def is_made_anew(self) -> bool:
        """Whether every value gets a new object as its default."""
        return self.default in ("{}", "[]")


def _fields_of(node: ast.ClassDef) -> list[_Field]:
    """The fields of a struct, those without a default first."""
    found = [
        _Field(
            item.target.id,
            ast.unparse(item.annotation),
            None if item.value is None else ast.unparse(item.value),
        )
        for item in node.body
        if isinstance(item, ast.AnnAssign) and isinstance(item.target, ast.Name)
    ]
    return sorted(found, key=lambda field: field.default is not None)


def _as_class(node: ast.ClassDef, source: str) -> str:
    """A struct as a class with typed fields, which the compiler stores without a dict."""
    fields = _fields_of(node)
    given = [field for field in fields if not field.is_made_anew()]
    all_names = tuple(field.name for field in fields)
    options = {keyword.arg: ast.unparse(keyword.value) for keyword in node.keywords}
    match_names = () if "kw_only" in options else all_names
    kept = [item for item in node.body if not isinstance(item, ast.AnnAssign)]
    lines = [
        f"@mypyc_attr(acyclic={options.get('gc') == 'False'})",
        f"class {node.name}:",
        f"    __match_args__: ClassVar[tuple[str, ...]] = {match_names!r}",
        "",
        f"    def __init__(self, {', '.join(field.parameter() for field in given)}) -> None:",
        *(
            f"        self.{field.name}: {field.kind} ="
            f" {field.default if field.is_made_anew() else field.name}"
            for field in fields
        ),
        "",
        "    def __repr__(self) -> str:",
        f"        return shown(self, {all_names!r})",
        "",
    ]
    if options.get("eq") != "False":
        lines += [
            "    def __eq__(self, other: object) -> bool:",
            f"        return are_alike(self, other, {all_names!r})",
            "",
            "    def __hash__(self) -> int:",
            f"        return hash(({', '.join('self.' + name for name in all_names)},))",
            "",
        ]
    if node.name in COPIED:
        lines += [
            "    def changed(",
            "        self, *, " + ", ".join(f"{field.name}: Any = _SAME" for field in given),
            f"    ) -> {node.name!r}:",
            f"        new = {node.name}({', '.join('self.' + field.name for field in given)})",
        ]
        for field in given:
            lines += [
                f"        if {field.name} is not _SAME:",
                f"            new.{field.name} = {field.name}",
            ]
        lines += ["        return new", ""]
    text = source.split("\n")
    for item in kept[1:]:  # after the docstring
        lines += [*text[_first_line(item) - 1 : item.end_lineno], ""]
    return "\n".join(lines)


def _first_line(node: ast.stmt) -> int:
    decorators = getattr(node, "decorator_list", [])
    return min([node.lineno, *(decorator.lineno for decorator in decorators)])


def _last_line(node: ast.stmt) -> int:
    assert node.end_lineno is not None
    return node.end_lineno


def _is_struct(node: ast.stmt) -> bool:
    """Whether this statement defines a struct."""
    return isinstance(node, ast.ClassDef) and any(
        isinstance(base, ast.Name) and base.id == "Struct" for base in node.bases
    )


def _replace_lines(source: str, changes: Sequence[tuple[int, int, str]]) -> str:
    """Replaces lines, which are counted from 1, by other text."""
    lines = source.split("\n")
    for first, last, text in sorted(changes, reverse=True):
        lines[first - 1 : last] = text.split("\n")
    return "\n".join(lines)


def _after_imports(source: str, text: str) -> str:
    """Adds text after the last import at the top, once."""
    if text in source:
        return source
    last = max(
        _last_line(node)
        for node in ast.parse(source).body
        if isinstance(node, ast.Import | ast.ImportFrom)
    )
    return _replace_lines(source, [(last + 1, last, text)])


def _mark_classes(path: Path) -> None:
    """Marks classes for the compiler: errors derived from other errors cannot be native classes,
    and interpreted subclasses have to be allowed.
    """
    source = path.read_text()
    changes = []
    for node in ast.parse(source).body:
        if not isinstance(node, ast.ClassDef):
            continue
        if any(isinstance(base, ast.Name) and base.id.endswith("Error") for base in node.bases):
            mark = "native_class=False"
        elif node.name in INHERITED:
            mark = "allow_interpreted_subclasses=True"
        else:
            continue
        changes.append((node.lineno, node.lineno - 1, f"@mypyc_attr({mark})"))
    if changes:
        path.write_text(_after_imports(_replace_lines(source, changes), HEADER))


def _make_classes(package: Path) -> None:
    """Turns structs into classes."""
    for name in VALUE_MODULES:
        path = package / name
        source = path.read_text()
        changes = [
            (_first_line(node), _last_line(node), _as_class(node, source))
            for node in ast.parse(source).body
            if isinstance(node, ast.ClassDef) and _is_struct(node)
        ]
        path.write_text(_after_imports(_replace_lines(source, changes), HEADER))


def _move_job(package: Path) -> set[str]:
    """Moves the job to a module of its own; returns its fields."""
    path = package / JOB_MODULE
    source = path.read_text()
    tree = ast.parse(source)
    job = next(node for node in tree.body if isinstance(node, ast.ClassDef) and node.name == JOB)
    others = [node.name for node in tree.body if isinstance(node, ast.ClassDef) and node is not job]
    others += ["UNKNOWN_ORIGIN"]
    header = [
        "from collections.abc import Mapping",
        "from manyhands.model.payload import Encoding",
        "from manyhands.model.policy import TERMS, Terms",
        "from manyhands.model.reasons import Reason",
        f"from manyhands.model.job import {', '.join(others)}",
        "",
    ]
    moved = "\n".join([*header, HEADER, _as_class(job, source)])
    (package / MOVED_JOB_MODULE).write_text(moved)
    rest = _replace_lines(source, [(_first_line(job), _last_line(job), "")])
    path.write_text(rest + f"\n\nfrom manyhands.model.native_job import {JOB} as {JOB}\n")
    fields = _fields_of(job)
    (package / STORED_JOB_MODULE).write_text("\n".join([*header, _as_struct(fields)]))
    (package / STORED_MODULE).write_text(_ways_there_and_back(fields))
    return {field.name for field in _fields_of(job)}


def _as_struct(fields: Sequence[_Field]) -> str:
    """A struct with the fields of a job."""
    return "\n".join(
        [
            "from msgspec import Struct",
            "",
            "class StoredJob(Struct, frozen=True, gc=False, omit_defaults=True):",
            *(f"    {field.parameter()}" for field in fields),
            "",
        ]
    )


def _ways_there_and_back(fields: Sequence[_Field]) -> str:
    values = ", ".join(f"job.{field.name}" for field in fields)
    return f"""
from manyhands.model.job import Job
from manyhands.model.stored_job import StoredJob as StoredJob

def stored(job: Job) -> StoredJob:
    return StoredJob({values})

def restored(job: StoredJob) -> Job:
    return Job({values})
"""


def _declare_view(package: Path) -> None:
    """Makes the engine's queries direct calls of the index, without a lookup by name."""
    path = package / VIEW_MODULE
    source = path.read_text()
    changes = []
    for node in ast.parse(source).body:
        if isinstance(node, ast.ClassDef):
            changes.append((node.lineno, node.lineno, f"@trait\nclass {node.name}:"))
            changes += [
                (
                    (item.end_lineno or 0) + 1,
                    item.end_lineno or 0,
                    "        raise NotImplementedError",
                )
                for item in node.body
                if isinstance(item, ast.FunctionDef)
            ]
    path.write_text(_after_imports(_replace_lines(source, changes), HEADER))
    path = package / INDEX_MODULE
    path.write_text(path.read_text().replace("class Index:", "class Index(View):"))


def _calls_of_replace(source: str, fields: set[str]) -> Iterator[ast.Call]:
    """The calls that copy a job with changes given by keyword."""
    for node in ast.walk(ast.parse(source)):
        if (
            isinstance(node, ast.Call)
            and isinstance(node.func, ast.Name)
            and node.func.id == "replace"
            and len(node.args) == 1
            and isinstance(node.args[0], ast.Name)
            and node.keywords
            and all(keyword.arg in fields for keyword in node.keywords)
        ):
            yield node


_STRUCT_IMPORT: Final = re.compile(
    "from msgspec.structs import(?= (replace|force_setattr)$)", re.MULTILINE
)


def _rewrite_copies(package: Path, modules: set[Path], fields: set[str]) -> None:
    """Rewrites `replace(job, …)` to `job.changed(…)`."""
    for path in package.rglob("*.py"):
        source = path.read_text()
        if not _STRUCT_IMPORT.search(source):
            continue
        source = _STRUCT_IMPORT.sub("from manyhands.native import", source)
        while path in modules:
            calls = list(_calls_of_replace(source, fields))
            if not calls:
                break
            call = max(calls, key=lambda call: (call.lineno, call.col_offset))
            source = _as_method(source, call)
        path.write_text(source)


def _as_method(source: str, call: ast.Call) -> str:
    """One call, rewritten. Columns count bytes."""
    lines = source.encode().split(b"\n")
    starts = [0]
    for line in lines:
        starts.append(starts[-1] + len(line) + 1)
    raw = source.encode()
    first, after = call.args[0], call.keywords[0]
    begin = starts[call.lineno - 1] + call.col_offset
    argument = ast.unparse(first).encode()
    behind = starts[after.lineno - 1] + after.col_offset
    return (raw[:begin] + argument + b".changed(" + raw[behind:]).decode()


def value_names(package: Path) -> set[str]:
    """The full names of the classes in the copy whose fields never change."""
    names = {(MOVED_JOB_MODULE, JOB)}
    for module in VALUE_MODULES:
        names |= {
            (module, node.name)
            for node in ast.parse((package / module).read_text()).body
            if isinstance(node, ast.ClassDef)
            and _is_struct(node)
            and any(keyword.arg == "frozen" for keyword in node.keywords)
        }
    return {
        f"{package.name}.{module.removesuffix('.py').replace('/', '.')}.{name}"
        for module, name in names
    }


def prepare(package: Path, modules: Sequence[str]) -> list[Path]:
    """Changes a copy of the source so that these modules can be compiled; returns their files."""
    fields = _move_job(package)
    _make_classes(package)
    _declare_view(package)
    (package / "native.py").write_text(NATIVE_MODULE)
    found = {path for pattern in modules for path in package.glob(pattern)}
    files = sorted(path for path in found if path.name != "__init__.py")
    for path in files:
        _mark_classes(path)
    _rewrite_copies(package, set(files), fields)
    return files
