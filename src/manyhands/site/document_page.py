"""The OpenAPI document for people: one page, without scripts or external resources."""

import html
import re
from collections.abc import Iterator
from typing import Any, Final

from manyhands.web.openapi import Schema

# The look of the operators' pages, without a file of theirs: the policy allows none.
_STYLE: Final = (
    ":root{color-scheme:light dark;--ground:light-dark(#f6f5f2,#131519);"
    "--surface:light-dark(#fff,#1b1e24);--raised:light-dark(#efede8,#262a32);"
    "--line:light-dark(#dedbd3,#31363f);--ink:light-dark(#1c1d20,#e8e9ec);"
    "--dim:light-dark(#5b5d63,#a3a8b2);--accent:light-dark(#98296a,#f0a3cd)}"
    "body{font:15px/1.45 system-ui,sans-serif;background:var(--ground);color:var(--ink);"
    "max-width:70rem;margin:0 auto;padding:24px 20px 48px}"
    "a{color:var(--accent)}h1{font-size:1.5rem}h2{margin:2rem 0 .5rem;font-size:1.2rem}"
    "h3{font-size:1rem;margin:1.2rem 0 .4rem;color:var(--dim)}"
    "code,pre{font-family:ui-monospace,monospace;font-size:.9em}"
    "p code,td:last-child code{background:var(--raised);border-radius:4px;padding:1px 5px}"
    "nav{display:flex;flex-wrap:wrap;gap:4px 18px}"
    "table{border-collapse:collapse;width:100%;background:var(--surface);"
    "border:1px solid var(--line);border-radius:10px}"
    "td{border-top:1px solid var(--line);padding:7px 12px;vertical-align:top;"
    "overflow-wrap:anywhere}tr:first-child td{border-top:0}td:first-child{width:38%}"
    "summary{cursor:pointer;color:var(--dim)}"
    "pre{overflow:auto;background:var(--raised);border-radius:8px;padding:10px 12px}"
)
_CODE: Final = re.compile(r"`([^`]+)`")
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
        f"<main><h1>Manyhands {html.escape(info['version'])} over HTTP</h1>",
        f"<p>{_prose(info['description'])}</p>",
        '<nav aria-label="Parts of the API"><a href="/ui/">Pages for operators</a>',
        '<a href="/openapi.json">openapi.json</a>',
        *(
            f'<a href="#{_anchor(group["name"])}">{html.escape(group["name"])}</a>'
            for group in document["x-tagGroups"]
        ),
        "</nav>",
    ]
    for group in document["x-tagGroups"]:
        parts.append(f'<h2 id="{_anchor(group["name"])}">{html.escape(group["name"])}</h2>')
        for tag in group["tags"]:
            parts.append(f"<h3>{_prose(headings[tag])}</h3><table>")
            parts += _rows(document, tag)
            parts.append("</table>")
    parts.append("</main>")
    return "".join(parts)


def _prose(text: str) -> str:
    """A text whose words in backticks are code."""
    return _CODE.sub(r"<code>\1</code>", html.escape(text))


def _anchor(text: str) -> str:
    return re.sub(r"[^a-z0-9]+", "-", text.lower())


def _rows(document: dict[str, Any], tag: str) -> Iterator[str]:
    schemas = document["components"]["schemas"]
    for path, methods in document["paths"].items():
        for method, operation in methods.items():
            if tag in operation["tags"]:
                route = html.escape(f"{method.upper()} {path}")
                yield f"<tr><td><code>{route}</code><td>{_row(operation, schemas)}"


def _row(operation: dict[str, Any], schemas: dict[str, Schema]) -> str:
    parts = [_prose(operation["summary"])]
    for one in operation["parameters"]:
        if one["in"] != "path":
            title = html.escape(one.get("description", "").replace("`", ""))
            mark = "?" if one["in"] == "query" else ""
            parts.append(f' <code title="{title}">{mark}{one["name"]}</code>')
    for name, found in (
        ("body", operation.get("requestBody", {})),
        ("answer", operation["responses"].get("200", {})),
    ):
        if _JSON in found.get("content", {}):
            shape = html.escape(
                _shape(found["content"][_JSON]["schema"], schemas, 0).replace("`", "")
            )
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
