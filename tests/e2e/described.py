"""Every JSON answer that a test receives is checked against the OpenAPI document: the shape of its
route and status, to the last key.
"""

import functools
import json
import re
from urllib.parse import urlsplit

import httpx
import jsonschema_rs

from manyhands.protocols.qless.paths import RESERVED
from manyhands.site.document import APIS, document
from manyhands.web.routes import PARAMETER

_DIGITS_MAX = 300  # more are not read


@functools.cache
def closed_document() -> dict:
    """The document with every described object closed: an answer has nothing else in it."""
    return _closed(document())


def _closed(shape):
    if isinstance(shape, list):
        return [_closed(one) for one in shape]
    if not isinstance(shape, dict):
        return shape
    found = {key: _closed(one) for key, one in shape.items()}
    if shape.get("type") == "object" and "properties" in shape:
        found.setdefault("additionalProperties", False)
    return found


@functools.cache
def patterns() -> list[tuple[re.Pattern[str], str, str]]:
    """Method and template of every route, those that name most of their path first."""
    routes = sorted(
        (route for api in APIS for route in api.routes), key=lambda route: route.path.count("{")
    )
    return [(_pattern(route.path), route.method.lower(), route.template) for route in routes]


def _pattern(path: str) -> re.Pattern[str]:
    parts = re.split(PARAMETER, path)  # text, name, ":path" or nothing, text …
    words = [re.escape(part) for part in parts[::3]]
    kinds = [".+" if whole else "[^/]+" for whole in parts[2::3]] + [""]
    return re.compile("".join(map("".join, zip(words, kinds, strict=True))) + "/?", re.DOTALL)


@functools.lru_cache(maxsize=4096)
def template_of(method: str, path: str) -> str | None:
    is_ours = path.removeprefix("/").partition("/")[0] in RESERVED
    for pattern, of_method, template in patterns():
        if of_method == method and pattern.fullmatch(path):
            if template.startswith("/{") and is_ours:
                continue
            return template
    return None


@functools.cache
def validator(template: str, method: str, status: int) -> jsonschema_rs.Draft202012Validator | None:
    """None: it is described as an answer without JSON."""
    whole = closed_document()
    answers = whole["paths"][template][method]["responses"]
    assert str(status) in answers, f"{method} {template} gives {status}, which is not described"
    found = answers[str(status)]
    if "$ref" in found:
        found = whole["components"]["responses"][found["$ref"].rpartition("/")[2]]
    content = found.get("content", {}).get("application/json")
    return None if content is None else _validator(content["schema"])


@functools.cache
def error_validator(name: str) -> jsonschema_rs.Draft202012Validator:
    return _validator({"$ref": f"#/components/schemas/{name}"})


def _validator(schema: dict) -> jsonschema_rs.Draft202012Validator:
    components = closed_document()["components"]
    return jsonschema_rs.Draft202012Validator({**schema, "components": components})


def check(method: str, target: str, status: int, body: bytes) -> None:
    """Raises an error if the answer, which is JSON, is not as it is described."""
    path = urlsplit(target).path or "/"
    method = method.lower()
    if method == "head" or path.startswith("/ui"):
        return
    template = template_of(method, path)
    if template is not None:
        known = validator(template, method, status)
    else:
        assert status >= 400, f"{method} {path} is not described, and gives {status}"
        known = error_validator("TaskError" if path.startswith("/0.2.0/") else "Failed")
    if known is not None:
        known.validate(json.loads(body, parse_int=lambda text: int(text[:_DIGITS_MAX])))


def check_response(response: httpx.Response) -> None:
    """The same for an answer whose content was read."""
    request = response.request
    target = request.url.raw_path.decode("ascii")
    check(request.method, target, response.status_code, response.content)


def is_json(response: httpx.Response) -> bool:
    return response.headers.get("content-type", "").startswith("application/json")


def install() -> None:
    """Check all answers that clients of httpx receive, in every test."""
    send, send_async = httpx.Client.send, httpx.AsyncClient.send

    @functools.wraps(send)
    def checked(client, request, **options):
        response = send(client, request, **options)
        if is_json(response):
            response.read()
            check_response(response)
        return response

    @functools.wraps(send_async)
    async def checked_async(client, request, **options):
        response = await send_async(client, request, **options)
        if is_json(response):
            await response.aread()
            check_response(response)
        return response

    httpx.Client.send, httpx.AsyncClient.send = checked, checked_async
