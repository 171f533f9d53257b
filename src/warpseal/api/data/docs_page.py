"""`/docs`: the OpenAPI document as one HTML page without scripts or external files."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from html import escape
from typing import Any, Final

POLICY: Final = "default-src 'none'; style-src 'unsafe-inline'; base-uri 'none'; form-action 'none'"
"""The Content-Security-Policy of the page."""

_STYLE: Final = """
:root { color-scheme: light dark; --line: #8884; --soft: #8881; }
body { font: 16px/1.5 system-ui, sans-serif; max-width: 62rem; margin: 2rem auto; padding: 0 1rem; }
h1, h2, h3 { line-height: 1.2; } h2 { margin-top: 3rem; border-bottom: 1px solid var(--line); }
code { font: 0.9em ui-monospace, monospace; overflow-wrap: anywhere; }
section { margin: 1.5rem 0; } nav li { margin: 0.2rem 0; }
table { border-collapse: collapse; width: 100%; } td, th { text-align: left; vertical-align: top;
  padding: 0.3rem 0.8rem 0.3rem 0; border-bottom: 1px solid var(--line); }
.method { text-transform: uppercase; font-weight: 700; } details { background: var(--soft); padding: 0.5rem 1rem; }
"""


def page(document: Mapping[str, Any]) -> bytes:
    """Return the page, UTF-8."""
    return "".join(_lines(document)).encode()


def _lines(document: Mapping[str, Any]) -> Iterator[str]:
    info = document["info"]
    yield "<!doctype html><html lang=en><head><meta charset=utf-8><meta name=viewport content='width=device-width'>"
    yield f"<title>{escape(info['title'])} API</title><style>{_STYLE}</style></head><body>"
    yield f"<h1>{escape(info['title'])} API <small>{escape(info['version'])}</small></h1>"
    yield f"<p>{escape(info['description'])}</p><p>For programs: <a href='/openapi.json'>openapi.json</a>.</p>"
    operations = [
        (method, path, operation)
        for path, methods in document["paths"].items()
        for method, operation in methods.items()
    ]
    yield "<nav><ul>"
    for method, path, operation in operations:
        yield f"<li><a href='#{escape(operation['operationId'])}'>{_call(method, path)}</a></li>"
    yield "</ul></nav>"
    for method, path, operation in operations:
        yield from _operation(method, path, operation)
    yield "<h2>Schemas</h2>"
    for name, schema in document["components"]["schemas"].items():
        yield from _schema(name, schema)
    yield "</body></html>"


def _call(method: str, path: str) -> str:
    return f"<code><span class=method>{escape(method)}</span> {escape(path)}</code>"


def _operation(method: str, path: str, operation: Mapping[str, Any]) -> Iterator[str]:
    yield f"<section id='{escape(operation['operationId'])}'><h3>{_call(method, path)}</h3>"
    yield f"<p>{escape(operation['summary'])}"
    if "x-compute-units" in operation:
        yield f" Costs {operation['x-compute-units']} compute units."
    yield "</p>"
    body = operation.get("requestBody")
    if body is not None:
        yield f"<p>Body: {_type(body['content']['application/json']['schema'])}</p>"
    if operation["parameters"]:
        yield "<table><tr><th>Parameter<th>Type<th>Meaning</tr>"
        for parameter in operation["parameters"]:
            required = " (required)" if parameter.get("required") else ""
            yield f"<tr><td><code>{escape(parameter['name'])}</code><br>{escape(parameter['in'])}{required}"
            yield f"<td>{_type(parameter['schema'])}<td>{escape(parameter['description'])}</tr>"
        yield "</table>"
    yield "<details><summary>Answers</summary><table>"
    for status, answer in operation["responses"].items():
        types = [_type(content["schema"]) for content in answer.get("content", {}).values()]
        yield f"<tr><td>{escape(status)}<td>{escape(answer['description'])}<td>{', '.join(types)}</tr>"
    yield "</table></details></section>"


def _schema(name: str, schema: Mapping[str, Any]) -> Iterator[str]:
    yield f"<details id='schema-{escape(name)}'><summary><code>{escape(name)}</code></summary>"
    yield f"<p>{escape(schema.get('description', ''))}</p>"
    if "enum" in schema:
        yield f"<p>{_type(schema)}</p>"
    if "properties" in schema:
        required = schema.get("required", ())
        yield "<table>"
        for key, value in schema["properties"].items():
            always = "" if key in required else " (may be absent)"
            meaning = escape(value.get("description", ""))
            yield f"<tr><td><code>{escape(key)}</code>{always}<td>{_type(value)}<td>{meaning}</tr>"
        yield "</table>"
    yield "</details>"


def _type(schema: Mapping[str, Any]) -> str:
    """Return the type of a value as HTML."""
    if "$ref" in schema:
        name = escape(schema["$ref"].rpartition("/")[2])
        return f"<a href='#schema-{name}'>{name}</a>"
    if "anyOf" in schema:
        return " or ".join(map(_type, schema["anyOf"]))
    if "enum" in schema:
        return ", ".join(f"<code>{escape(str(value))}</code>" for value in schema["enum"])
    if schema.get("type") == "array":
        return f"list of {_type(schema.get('items', {}))}"
    if isinstance(schema.get("additionalProperties"), dict):
        return f"map to {_type(schema['additionalProperties'])}"
    return escape(str(schema.get("type", "anything"))) + _range(schema)


def _range(schema: Mapping[str, Any]) -> str:
    low, high = schema.get("minimum"), schema.get("maximum")
    shown = f" {low}..{high}" if low is not None and high is not None else f" from {low}" if low is not None else ""
    default = f", default {escape(str(schema['default']))}" if "default" in schema else ""
    return shown + default
