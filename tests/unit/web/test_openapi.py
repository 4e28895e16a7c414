"""The OpenAPI document, made from routes and types."""

import asyncio
import json
from typing import Annotated, Any, Generic, TypeVar

import jsonschema
import pytest
from msgspec import UNSET, Meta, Struct, UnsetType
from schemathesis.specs.openapi.definitions import OPENAPI_31_VALIDATOR

from manyhands.site.document import APIS
from manyhands.site.document import document as whole_document
from manyhands.web.envelope import Time
from manyhands.web.openapi import Api, document
from manyhands.web.routes import Further, Parameter, Route, bind

T = TypeVar("T")


class Thing(Struct):
    """A thing
    of two lines.
    """

    name: Annotated[str, Meta(description="what it is called")]
    title: str = "none"
    more: int | UnsetType = UNSET


class Page(Struct, Generic[T]):
    """Some of many."""

    results: T


async def handler(owner: object, exchange: object, *names: str) -> tuple[object, ...]:
    return (owner, exchange, *names)


def described(*routes: Route, **parameters: Any) -> dict[str, Any]:
    api = Api("Things", "My", routes, {"look": "Look"}, parameters)
    return document({"title": "t", "version": "1"}, (api,))


def a_route(answer: Any = Thing, path: str = "/things", **more: Any) -> Route:
    return Route("GET", path, handler, "Look at things.", "look", answer, **more)


def answer_of(found: dict[str, Any], status: str = "200") -> dict[str, Any]:
    [operation] = (one["get"] for one in found["paths"].values())
    return operation["responses"][status]["content"]["application/json"]["schema"]


@pytest.mark.parametrize("policy", ["hexadecimal", "any"])
def test_the_document_is_a_valid_one(policy):
    found = json.loads(json.dumps(whole_document(policy)))

    OPENAPI_31_VALIDATOR.validate(found)
    for schema in found["components"]["schemas"].values():
        jsonschema.Draft202012Validator.check_schema(schema)


def test_every_endpoint_has_a_summary_and_every_type_of_ours_says_what_it_is():
    found = whole_document()
    operations = [one for methods in found["paths"].values() for one in methods.values()]

    assert len(operations) == sum(len(api.routes) for api in APIS) > 100
    assert all(one["summary"].endswith(".") for one in operations)
    assert len({one["operationId"] for one in operations}) == len(operations)
    shapes = found["components"]["schemas"]
    assert [
        n for n, one in shapes.items() if "properties" in one and "description" not in one
    ] == []


def test_a_struct_is_described_by_its_fields():
    found = described(a_route())

    assert answer_of(found) == {"$ref": "#/components/schemas/MyThing"}
    assert found["components"]["schemas"]["MyThing"] == {
        "description": "A thing of two lines.",
        "type": "object",
        "properties": {
            "name": {"type": "string", "description": "what it is called"},
            "title": {"type": "string", "default": "none"},
            "more": {"type": "integer"},
        },
        "required": ["name"],
    }


def test_a_generic_type_has_a_name_that_programs_can_use():
    found = described(a_route(Page[list[Time | None]]))

    assert answer_of(found) == {"$ref": "#/components/schemas/MyPageListTimeNone"}


def test_several_types_are_any_of_them():
    shape = answer_of(described(a_route((Thing, Page[int]))))

    assert [one["$ref"].rpartition("/")[2] for one in shape["anyOf"]] == ["MyThing", "MyPageInt"]


def test_two_types_of_one_name_are_found_out():
    class Other(Struct):
        """Another thing."""

    Other.__name__ = "Thing"
    route = a_route()
    first = Api("A", "My", (route,), {}, {})
    second = Api("B", "My", (a_route(Other, "/others"),), {}, {})

    with pytest.raises(AssertionError, match="two types are called MyThing"):
        document({"title": "t", "version": "1"}, (first, second))


def test_parameters_stand_in_path_query_and_header():
    once = Parameter("Once", str, "Only once.", "header")
    route = a_route(path="/things/{name:path}", query=(Parameter("count", int), once))

    [operation] = described(route, name=str)["paths"]["/things/{name}"].values()

    assert operation["operationId"] == "get_things_name"
    assert operation["parameters"] == [
        {"name": "name", "in": "path", "required": True, "schema": {"type": "string"}},
        {"name": "count", "in": "query", "schema": {"type": "integer"}},
        {"name": "Once", "in": "header", "schema": {"type": "string"}, "description": "Only once."},
    ]


def test_errors_are_those_of_the_api_unless_the_route_has_its_own_answer():
    further = {204: Further("Nothing."), 503: Further("Not now.", Thing)}
    route = a_route(further=further, errors={422: "Too odd."})

    found = described(route)

    answers = found["paths"]["/things"]["get"]["responses"]
    assert answers["204"] == {"description": "Nothing."}
    assert answer_of(found, "503") == {"$ref": "#/components/schemas/MyThing"}
    assert answers["404"] == {"$ref": "#/components/responses/Error404"}
    error = found["components"]["responses"]["Error422"]
    assert error["description"] == "Too odd."
    assert error["content"]["application/json"]["schema"]["$ref"].endswith("/Failed")


def test_a_route_is_bound_to_the_object_that_answers_it():
    [route] = bind((a_route(),), "owner")

    assert asyncio.run(route.handler("exchange", "name")) == ("owner", "exchange", "name")
