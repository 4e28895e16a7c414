"""The words in which the document is written: shapes of JSON, and operations."""

from collections.abc import Iterable, Mapping
from types import MappingProxyType
from typing import Any, Final, NamedTuple

import msgspec
from msgspec import UNSET

Schema = dict[str, Any]


def text(**more: Any) -> Schema:  # noqa: ANN401 - keys of JSON Schema
    """A string."""
    return {"type": "string", **more}


def number(**more: Any) -> Schema:  # noqa: ANN401
    """Any number."""
    return {"type": "number", **more}


def whole(**more: Any) -> Schema:  # noqa: ANN401
    """A whole number."""
    return {"type": "integer", **more}


def array(of: Schema) -> Schema:
    """A list."""
    return {"type": "array", "items": of}


def maybe(schema: Schema) -> Schema:
    """This, or null."""
    return {"anyOf": [schema, {"type": "null"}]}


def record(required: str, **properties: Schema) -> Schema:
    """An object; the required keys are named with spaces between them."""
    return {"type": "object", "required": required.split(), "properties": properties}


def closed(**properties: Schema) -> Schema:
    """An object with exactly these keys."""
    return {**record(" ".join(properties), **properties), "additionalProperties": False}


def ref(name: str) -> Schema:
    """A shape that has a name."""
    return {"$ref": f"#/components/schemas/{name}"}


ANY: Final[Schema] = {}
FLAG: Final[Schema] = {"type": "boolean"}
OBJECT: Final[Schema] = {"type": "object"}
SECONDS: Final = number(minimum=0, maximum=1_000_000)

_NOTHING: Final[Mapping[int, str]] = MappingProxyType({})

SHARED: Final[dict[str, Schema]] = {
    "Error": record("code message", code=text(), message=text(), detail=OBJECT),
    "Time": record("total", total=number(minimum=0)),
    "Load": record("cpu memory", cpu=number(minimum=0), memory=number(minimum=0)),
    "Failed": record(
        "results error time", results={"type": "null"}, error=ref("Error"), time=ref("Time")
    ),
}
FAILED: Final = ref("Failed")
# What any request may be answered, whatever it asks for.
ERRORS: Final[Mapping[int, str]] = {
    400: "Something in the request is wrong.",
    401: "Who asks is not known; see WWW-Authenticate.",
    403: "A page of another site made the browser ask, or whoever asks may only look.",
    404: "There is no such thing.",
    405: "The method is not possible here; see Allow.",
    408: "The request took too long to arrive.",
    409: "It does not fit what is so now.",
    413: "Too large.",
    414: "The address is too long.",
    415: "The body is not JSON.",
    421: "The Host header names another server.",
    429: "Too much; see Retry-After.",
    431: "The head is too long.",
    500: "A defect; the log has the request's id.",
    503: "Starting, stopping, or the disk is full; see Retry-After.",
}


def envelope(results: Schema, **beside: Schema) -> Schema:
    """A success: the results, and how long it took."""
    return record("results time", results=results, time=ref("Time"), **beside)


def read_shapes(kinds: Iterable[Any], prefix: str) -> dict[str, Schema]:
    """The shapes of structures that our code reads and writes, by name."""
    _, found = msgspec.json.schema_components(
        [_plain(kind) for kind in kinds], ref_template=f"#/components/schemas/{prefix}{{name}}"
    )
    return {f"{prefix}{name}": shape for name, shape in found.items()}


def _plain(kind: Any) -> Any:  # noqa: ANN401 - structures
    """The same with any value where the text of one is kept, which the library cannot describe."""
    fields = msgspec.structs.fields(kind)
    if not any(field.type is msgspec.Raw for field in fields):
        return kind
    told: list[tuple[Any, ...]] = []
    for field in fields:
        if field.type is msgspec.Raw:
            told.append((field.name, Any) if field.required else (field.name, Any, UNSET))
        else:
            told.append((field.name, field.type, field.default))
    return msgspec.defstruct(kind.__name__, told, kw_only=True, forbid_unknown_fields=True)


class Operation(NamedTuple):
    """One route with one method. A kind other than JSON has no shape."""

    method: str
    path: str
    summary: str
    answer: Schema  # the whole of it
    tag: str
    body: Schema | None = None  # likewise
    query: str = ""
    kind: str = "application/json"
    error: Schema = FAILED
    errors: Mapping[int, str] = ERRORS
    further: Mapping[int, str] = _NOTHING  # other statuses that are no errors


class Api(NamedTuple):
    """One of the APIs that share the listener."""

    heading: str
    operations: tuple[Operation, ...]
    parameters: dict[str, Schema]
    schemas: dict[str, Schema]
    tags: dict[str, str]  # and what people call them
