"""The document for programs."""

import re
from collections.abc import Iterator
from functools import cache
from typing import Any, Final

from manyhands import __version__
from manyhands.server.openapi import native, qless, server, taskcluster
from manyhands.server.openapi.qless_schemas import ID_KINDS
from manyhands.server.openapi.words import FAILED, SHARED, Api, Operation

APIS: Final[tuple[Api, ...]] = (qless.API, native.API, taskcluster.API, server.API)
DESCRIPTION: Final = (
    "Every answer of the qless API and of the native API is one JSON object with `results`; "
    "with `error`, if there was one. Items of a batch that were refused are listed in `errors`, "
    "beside the results of the others. The qless API has durations in seconds and instants in "
    "seconds since 1970, the native API (`/api`) has both in milliseconds where their names say "
    "so. The Taskcluster queue's API (`/0.2.0`) answers bare JSON."
)
_PARAMETER: Final = re.compile(r"{(\w+)}")


@cache
def document(id_policy: str = "hexadecimal") -> dict[str, Any]:
    """The whole of it, for a server that takes such ids."""
    paths: dict[str, Any] = {}
    schemas = dict(SHARED)
    responses: dict[str, Any] = {}  # errors, which many operations share
    tags = []
    for api in APIS:
        for one in api.operations:
            paths.setdefault(one.path, {})[one.method] = _operation(one, api, responses)
        schemas |= api.schemas
        tags += [{"name": name, "description": text} for name, text in api.tags.items()]
    schemas["Id"] = ID_KINDS[id_policy]
    return {
        "openapi": "3.1.0",
        "info": {"title": "Manyhands", "version": __version__, "description": DESCRIPTION},
        "tags": tags,
        "paths": paths,
        "components": {"schemas": schemas, "responses": responses},
    }


def _operation(one: Operation, api: Api, responses: dict[str, Any]) -> dict[str, Any]:
    words = re.sub(r"\W+", "_", one.path).strip("_")
    found: dict[str, Any] = {
        "operationId": f"{one.method}_{words}",
        "summary": one.summary,
        "tags": [one.tag],
        "parameters": list(_parameters(one, api)),
        "responses": _responses(one, responses),
    }
    if one.body is not None:
        content = {"application/json": {"schema": one.body}}
        found["requestBody"] = {"required": True, "content": content}
    return found


def _parameters(one: Operation, api: Api) -> Iterator[dict[str, Any]]:
    for name in _PARAMETER.findall(one.path):
        schema = api.parameters[name]
        yield {"name": name, "in": "path", "required": True, "schema": schema}
    for name in one.query.split():
        place = "header" if name[0].isupper() else "query"
        # Some have one name in a path and in a query and mean two things.
        schema = api.parameters.get(f"?{name}") or api.parameters[name]
        yield {"name": name.partition("@")[0], "in": place, "schema": schema}


def _responses(one: Operation, responses: dict[str, Any]) -> dict[str, Any]:
    good: dict[str, Any] = {"description": "It worked, at least in part."}
    good["content"] = {one.kind: {"schema": one.answer}}
    found = {"200": good}
    for status, sentence in one.further.items():
        found[str(status)] = {"description": sentence}
    kind = "Error" if one.error is FAILED else "TaskError"
    for status, sentence in one.errors.items():
        name = f"{kind}{status}"
        content = {"application/json": {"schema": one.error}}
        responses[name] = {"description": sentence, "content": content}
        found[str(status)] = {"$ref": f"#/components/responses/{name}"}
    return found
