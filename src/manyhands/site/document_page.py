"""The OpenAPI document for people: one page, without scripts or external resources."""

import html
from collections.abc import Iterator
from typing import Any, Final

from manyhands.web.openapi import Schema

_STYLE: Final = (
    "body{font:16px/1.5 system-ui,sans-serif;max-width:60rem;margin:2rem auto;padding:0 1rem}"
    "code,pre{font-family:ui-monospace,monospace;font-size:.9em}"
    "table{border-collapse:collapse;width:100%}td{border-top:1px solid #8886;padding:.4rem .6rem;"
    "vertical-align:top}td:first-child{white-space:nowrap}pre{overflow:auto}"
    ":root{color-scheme:light dark}"
)
_DEPTH_MAX: Final = 6
_JSON: Final = "application/json"


def page(document: dict[str, Any]) -> str:
    """Every route: what it takes, does and answers."""
    info = document["info"]
    headings = {tag["name"]: tag["description"] for tag in document["tags"]}
    parts = [
        '<!doctype html><html lang="en"><meta charset="utf-8">',
        '<meta name="viewport" content="width=device-width">',
        f"<title>Manyhands: HTTP</title><style>{_STYLE}</style>",
        f"<h1>Manyhands {html.escape(info['version'])} over HTTP</h1>",
        f"<p>{html.escape(info['description'])}</p>",
        '<p>For programs: <a href="/openapi.json">openapi.json</a>.</p>',
    ]
    for group in document["x-tagGroups"]:
        parts.append(f"<h2>{html.escape(group['name'])}</h2>")
        for tag in group["tags"]:
            parts.append(f"<h3>{html.escape(headings[tag])}</h3><table>")
            parts += _rows(document, tag)
            parts.append("</table>")
    return "".join(parts)


def _rows(document: dict[str, Any], tag: str) -> Iterator[str]:
    schemas = document["components"]["schemas"]
    for path, methods in document["paths"].items():
        for method, operation in methods.items():
            if tag in operation["tags"]:
                route = html.escape(f"{method.upper()} {path}")
                yield f"<tr><td><code>{route}</code><td>{_row(operation, schemas)}"


def _row(operation: dict[str, Any], schemas: dict[str, Schema]) -> str:
    parts = [html.escape(operation["summary"])]
    for one in operation["parameters"]:
        if one["in"] != "path":
            title = html.escape(one.get("description", ""))
            mark = "?" if one["in"] == "query" else ""
            parts.append(f' <code title="{title}">{mark}{one["name"]}</code>')
    for name, found in (
        ("body", operation.get("requestBody", {})),
        ("answer", operation["responses"].get("200", {})),
    ):
        if _JSON in found.get("content", {}):
            shape = html.escape(_shape(found["content"][_JSON]["schema"], schemas, 0))
            parts.append(f"<details><summary>{name}</summary><pre>{shape}</pre></details>")
    return "".join(parts)


def _shape(schema: Schema, schemas: dict[str, Schema], depth: int) -> str:
    """A schema in a few words."""
    if depth > _DEPTH_MAX:
        return "…"
    if "$ref" in schema:
        return _shape(schemas[schema["$ref"].rpartition("/")[2]], schemas, depth)
    if "anyOf" in schema:
        return " or ".join(_shape(one, schemas, depth) for one in schema["anyOf"])
    if "const" in schema:
        return str(schema["const"]).lower()
    if "enum" in schema:
        return " or ".join(str(one) for one in schema["enum"])
    if schema.get("type") == "array":
        return f"[{_shape(schema.get('items', {}), schemas, depth)}, …]"
    if "properties" in schema:
        return _properties(schema, schemas, depth)
    return str(schema.get("type", "any JSON value"))


def _properties(schema: Schema, schemas: dict[str, Schema], depth: int) -> str:
    indent = "  " * (depth + 1)
    required = schema.get("required", ())
    lines = []
    for key, one in schema["properties"].items():
        mark = "" if key in required else "?"
        notes = [
            part["description"] for part in (one, *one.get("anyOf", ())) if "description" in part
        ]
        note = f"  ({'; '.join(notes)})" if notes else ""
        lines.append(f"{indent}{mark}{key}: {_shape(one, schemas, depth + 1)}{note}")
    return "{\n" + "\n".join(lines) + "\n" + "  " * depth + "}"
