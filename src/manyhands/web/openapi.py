"""Builds the OpenAPI document from the routes and the types of their bodies and answers."""

import re
from collections.abc import Iterable, Iterator, Mapping
from types import MappingProxyType
from typing import Any, Final

import msgspec
from msgspec import Struct

from manyhands.web.envelope import Failed
from manyhands.web.routes import JSON, PARAMETER, Further, Route

Schema = dict[str, Any]

_SCHEMAS: Final = "#/components/schemas/"
# Module names inside the name of a generic type.
_MODULE: Final = re.compile(r"manyhands\.(?:[a-z_]+\.)+")
_SWITCHED: Final = 101
_GOOD: Final = "It worked, at least in part."


class Errors(Struct, frozen=True):
    """The errors that any request to an API may be answered with."""

    prefix: str  # of the names of the responses
    answer: Any  # the type of their bodies
    sentences: Mapping[int, str]  # what each status means


ENVELOPED: Final = Errors(
    "Error",
    Failed,
    {
        400: "Something in the request is wrong.",
        401: "The caller is not known; see WWW-Authenticate.",
        403: "A page of another site made the browser ask, or the caller may only look.",
        404: "There is no such thing.",
        405: "The method is not possible here; see Allow.",
        408: "The request took too long to arrive.",
        409: "It does not fit the present state.",
        413: "Too large.",
        414: "The address is too long.",
        415: "The body is not JSON.",
        421: "The Host header names another server.",
        429: "Too much; see Retry-After.",
        431: "The head is too long.",
        500: "A defect; the log has the request's id.",
        503: "Starting, stopping, or the disk is full; see Retry-After.",
    },
)


class Api(Struct, frozen=True):
    """One of the APIs on the listener."""

    heading: str
    prefix: str  # of the names of its types, because APIs use the same words for different things
    routes: tuple[Route, ...]
    tags: Mapping[str, str]  # and their names for people
    parameters: Mapping[str, Any]  # the types of its path parameters
    errors: Errors = ENVELOPED


def document(
    info: Mapping[str, str],
    apis: Iterable[Api],
    schemas: Mapping[str, Schema] = MappingProxyType({}),
) -> dict[str, Any]:
    """The whole document. ``schemas`` are those that types refer to by name."""
    paths: dict[str, Any] = {}
    tags: list[dict[str, str]] = []
    groups: list[dict[str, Any]] = []
    components: dict[str, Schema] = dict(schemas)
    responses: dict[str, Any] = {}
    for api in apis:
        writer = _Writer(api, components, responses)
        for route in api.routes:
            paths.setdefault(route.template, {})[route.method.lower()] = writer.operation(route)
        tags += [{"name": name, "description": text} for name, text in api.tags.items()]
        groups.append({"name": api.heading, "tags": list(api.tags)})
    return {
        "openapi": "3.1.0",
        "info": dict(info),
        "tags": tags,
        "x-tagGroups": groups,
        "paths": paths,
        "components": {"schemas": components, "responses": responses},
    }


def operation_id(route: Route) -> str:
    """A name for programs, made from method and path."""
    words = re.sub(r"\W+", "_", route.template).strip("_")
    return f"{route.method.lower()}_{words}"


class _Writer:
    """Writes the operations of one API, and collects the schemas they refer to."""

    def __init__(self, api: Api, components: dict[str, Schema], responses: dict[str, Any]) -> None:
        self._api = api
        self._shapes = _Shapes(api.prefix, _kinds(api), components)
        self._error_shape = _Shapes("", (api.errors.answer,), components).of(api.errors.answer)
        self._responses = responses

    def operation(self, route: Route) -> dict[str, Any]:
        found: dict[str, Any] = {
            "operationId": operation_id(route),
            "summary": route.summary,
            "tags": [route.tag],
            "parameters": list(self._parameters(route)),
            "responses": self._answers(route),
        }
        if route.body is not None:
            found["requestBody"] = {"required": True, "content": self._content(JSON, route.body)}
        return found

    def _parameters(self, route: Route) -> Iterator[dict[str, Any]]:
        for name, _ in PARAMETER.findall(route.path):
            schema = self._shapes.of(self._api.parameters[name])
            yield {"name": name, "in": "path", "required": True, "schema": schema}
        for one in route.query:
            found = {"name": one.name, "in": one.place, "schema": self._shapes.of(one.kind)}
            if one.description:
                found["description"] = one.description
            yield found

    def _answers(self, route: Route) -> dict[str, Any]:
        answers = {200: Further(_GOOD, route.answer, route.media), **route.further}
        if _SWITCHED in route.further:  # then there is no other answer
            del answers[200]
        found: dict[str, Any] = {}
        for status, answer in answers.items():
            found[str(status)] = {"description": answer.description}
            if answer.answer is not None:
                found[str(status)]["content"] = self._content(answer.media, answer.answer)
        for status, sentence in {**self._api.errors.sentences, **route.errors}.items():
            if status not in answers:
                found[str(status)] = {"$ref": self._error(status, sentence)}
        return found

    def _error(self, status: int, sentence: str) -> str:
        name = f"{self._api.errors.prefix}{status}"
        content = {JSON: {"schema": self._error_shape}}
        response = {"description": sentence, "content": content}
        known = self._responses.setdefault(name, response)
        assert known == response, f"{name} has two meanings"
        return f"#/components/responses/{name}"

    def _content(self, media: str, kind: Any) -> dict[str, Any]:  # noqa: ANN401 - any type
        return {media: {"schema": self._shapes.of(kind)}}


def _kinds(api: Api) -> Iterator[Any]:
    """All types that an API's routes use."""
    yield from api.parameters.values()
    for route in api.routes:
        yield from (one.kind for one in route.query)
        yield from (one.answer for one in route.further.values())
        yield route.body
        yield route.answer


class _Shapes:
    """Types as schemas. Named types are collected, and referred to."""

    def __init__(self, prefix: str, kinds: Iterable[Any], components: dict[str, Schema]) -> None:
        self._prefix = prefix
        # All at once, because each call walks over everything that its types consist of. By
        # identity, because not all types are hashable; the routes keep them alive.
        found = {id(one): one for kind in kinds for one in _each(kind)}
        shapes, named = msgspec.json.schema_components(found.values(), ref_template="{name}")
        self._by_kind = dict(zip(found, map(self._tidy, shapes), strict=True))
        for name, shape in named.items():
            tidy = self._tidy(shape)
            known = components.setdefault(self._name(name), tidy)
            assert known == tidy, f"two types are called {self._name(name)}"

    def of(self, kind: Any) -> Schema:  # noqa: ANN401 - any type, or several
        shapes = [self._by_kind[id(one)] for one in _each(kind)]
        return shapes[0] if len(shapes) == 1 else {"anyOf": shapes}

    def _name(self, name: str) -> str:
        """``Answer_list_manyhands.x.Job__`` becomes `AnswerListJob`."""
        words = re.split(r"\W|_", _MODULE.sub("", name))
        return self._prefix + "".join(word[:1].upper() + word[1:] for word in words)

    def _tidy(self, shape: Schema) -> Schema:
        """Removes titles, which only repeat names, and corrects references."""
        if "$ref" in shape:
            target = shape["$ref"]
            return {"$ref": target if "#" in target else _SCHEMAS + self._name(target)}
        found: Schema = {}
        for key, value in shape.items():
            if key == "properties":
                found[key] = {name: self._tidy(one) for name, one in value.items()}
            elif key in ("anyOf", "prefixItems"):
                found[key] = [self._tidy(one) for one in value]
            elif key in ("items", "additionalProperties") and isinstance(value, dict):
                found[key] = self._tidy(value)
            elif key == "description":
                found[key] = " ".join(value.split())
            elif key != "title":
                found[key] = value
        if "enum" in found and all(isinstance(one, str) for one in found["enum"]):
            found.setdefault("type", "string")
        return found


def _each(kind: Any) -> tuple[Any, ...]:  # noqa: ANN401 - any type, or several
    return kind if isinstance(kind, tuple) else (kind,)
