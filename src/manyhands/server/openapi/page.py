"""The document for people: one page, without scripts, with nothing from elsewhere."""

import html
from functools import cache
from typing import Final

from manyhands import __version__
from manyhands.server.openapi.document import APIS, DESCRIPTION, document
from manyhands.server.openapi.words import Operation, Schema

_STYLE: Final = (
    "body{font:16px/1.5 system-ui,sans-serif;max-width:60rem;margin:2rem auto;padding:0 1rem}"
    "code,pre{font-family:ui-monospace,monospace;font-size:.9em}"
    "table{border-collapse:collapse;width:100%}td{border-top:1px solid #8886;padding:.4rem .6rem;"
    "vertical-align:top}td:first-child{white-space:nowrap}pre{overflow:auto}"
    ":root{color-scheme:light dark}"
)
_DEPTH_MAX: Final = 6


@cache
def page() -> str:
    """Every route, what it takes, what it does."""
    parts = [
        '<!doctype html><html lang="en"><meta charset="utf-8">',
        '<meta name="viewport" content="width=device-width">',
        f"<title>Manyhands: HTTP</title><style>{_STYLE}</style>",
        f"<h1>Manyhands {html.escape(__version__)} over HTTP</h1>",
        f"<p>{html.escape(DESCRIPTION)}</p>",
        '<p>For programs: <a href="/openapi.json">openapi.json</a>.</p>',
    ]
    for api in APIS:
        parts.append(f"<h2>{html.escape(api.heading)}</h2>")
        for tag, heading in api.tags.items():
            parts.append(f"<h3>{html.escape(heading)}</h3><table>")
            parts += [_row(one) for one in api.operations if one.tag == tag]
            parts.append("</table>")
    return "".join(parts)


def _row(one: Operation) -> str:
    route = html.escape(f"{one.method.upper()} {one.path}")
    query = "".join(f" <code>?{name.partition('@')[0]}</code>" for name in one.query.split())
    body = ""
    if one.body is not None:
        shape = html.escape(_shape(one.body, 0))
        body = f"<details><summary>body</summary><pre>{shape}</pre></details>"
    return f"<tr><td><code>{route}</code><td>{html.escape(one.summary)}{query}{body}"


def _shape(schema: Schema, depth: int) -> str:
    """A schema in few words."""
    if depth > _DEPTH_MAX:
        return "…"
    if "$ref" in schema:
        name = schema["$ref"].rpartition("/")[2]
        return _shape(document()["components"]["schemas"][name], depth)
    if "anyOf" in schema:
        return " or ".join(_shape(one, depth) for one in schema["anyOf"])
    if "const" in schema:
        return str(schema["const"]).lower()
    if "enum" in schema:
        return " or ".join(str(one) for one in schema["enum"])
    if schema.get("type") == "array":
        return f"[{_shape(schema.get('items', {}), depth)}, …]"
    if "properties" in schema:
        indent = "  " * (depth + 1)
        required = schema.get("required", ())
        lines = [
            f"{indent}{'' if key in required else '?'}{key}: {_shape(one, depth + 1)}"
            for key, one in schema["properties"].items()
        ]
        return "{\n" + "\n".join(lines) + "\n" + "  " * depth + "}"
    return str(schema.get("type", "any JSON value"))
