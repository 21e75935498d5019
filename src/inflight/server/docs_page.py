"""The page at /docs: the OpenAPI document as HTML that needs no script and nothing from elsewhere."""

from __future__ import annotations

import re
from collections.abc import Iterable, Mapping
from html import escape
from typing import Any

Json = Mapping[str, Any]
_HEAD = """<!doctype html>
<html lang="en">
<meta charset="utf-8">
<meta name="viewport" content="width=device-width,initial-scale=1">
<title>{title}: HTTP API</title>
<style>
:root{{color-scheme:light dark}}
body{{font:15px/1.5 system-ui,sans-serif;max-width:70rem;margin:0 auto;padding:1rem 1.5rem 4rem}}
h1{{font-size:1.5rem}}h2{{font-size:1.1rem;margin-top:2rem}}
details{{border:1px solid #8885;border-radius:6px;margin:.4rem 0;padding:.4rem .8rem}}
summary{{cursor:pointer}}
nav{{display:flex;gap:1.2rem;font-size:14px}}[aria-current]{{color:inherit;font-weight:600;text-decoration:none}}
summary span:last-child{{color:color-mix(in srgb,currentColor 78%,transparent)}}
code{{font:13px/1.5 ui-monospace,monospace}}
table{{border-collapse:collapse;width:100%;margin:.5rem 0}}
th,td{{text-align:left;vertical-align:top;padding:.2rem .8rem .2rem 0;border-top:1px solid #8883}}
.method{{display:inline-block;min-width:4rem;font-weight:700}}
</style>
{nav}<main>
<h1>{title} {version}</h1>
<p>{description} This page is made of <a href="openapi.json">openapi.json</a>.</p>
"""


_NAV = """<nav aria-label="Pages"><a href="./">Live</a><a href="playground">Playground</a>\
<a href="docs" aria-current="page">API</a></nav>
"""


def docs_page(document: Json, has_ui: bool = True) -> bytes:
    """Return the page of a document: its operations by groups, then its schemas. has_ui: link to the other pages."""
    operations: dict[str, list[str]] = {}
    for path, methods in document["paths"].items():
        for method, operation in methods.items():
            operations.setdefault(operation["tags"][0], []).append(_operation(method, path, operation))
    info = {name: escape(value) for name, value in document["info"].items()}
    parts = [_HEAD.format(nav=_NAV if has_ui else "", **info)]
    for tag, shown in operations.items():
        parts += [f"<h2>{escape(tag)}</h2>", *shown]
    schemas = document["components"]["schemas"]
    parts += ["<h2>schemas</h2>", *(_schema(name, schemas[name]) for name in sorted(schemas))]
    return "\n".join([*parts, "</main>"]).encode()


def _operation(method: str, path: str, operation: Json) -> str:
    about = _words(operation)
    parts = [f"<p>{about}</p>"] if about else []
    if parameters := operation.get("parameters"):
        rows = [(_code(one["name"]), one["in"], _type(one["schema"])) for one in parameters]
        parts.append(_table(("parameter", "in", "type"), rows))
    for media_type, content in operation.get("requestBody", {}).get("content", {}).items():
        parts.append(f"<p>Body ({escape(media_type)}): {_type(content['schema'])}</p>")
    rows = [
        (_code(status), escape(one["description"]), ", ".join(_content(*of) for of in one["content"].items()))
        for status, one in operation["responses"].items()
    ]
    parts.append(_table(("status", "meaning", "answer"), rows))
    title = f'<span class="method">{method.upper()}</span>{_code(path)} <span>{escape(operation["summary"])}</span>'
    return _folded(operation["operationId"], title, "".join(parts))


def _schema(name: str, schema: Json) -> str:
    required = set(schema.get("required", ()))
    rows = [
        (_code(field), _type(one), "yes" if field in required else "", _words(one))
        for field, one in schema.get("properties", {}).items()
    ]
    about = _words(schema)
    table = _table(("field", "type", "required", "meaning"), rows) if rows else f"<p>{_type(schema)}</p>"
    return _folded(f"schema-{name}", _code(name), (f"<p>{about}</p>" if about else "") + table)


def _folded(identifier: str, title: str, content: str) -> str:
    """Return a folded part. A link opens it, since the identifier is that of its content."""
    return f'<details><summary>{title}</summary><div id="{escape(identifier)}">{content}</div></details>'


def _content(media_type: str, content: Json) -> str:
    return _type(content["schema"]) if media_type == "application/json" else escape(media_type)


def _type(schema: Json) -> str:
    """Return a type in a few words, with its bounds; a named one as a link to it."""
    if "$ref" in schema:
        name = escape(schema["$ref"].rpartition("/")[2])
        return f'<a href="#schema-{name}">{name}</a>'
    if "anyOf" in schema:
        return " or ".join(dict.fromkeys(_type(one) for one in schema["anyOf"]))
    if "enum" in schema:
        return ", ".join(_code(str(one)) for one in schema["enum"])
    kind = escape(str(schema.get("type", "any JSON")))
    if "items" in schema:
        kind = f"list of ({_type(schema['items'])})"
    bounds = [f"{escape(_BOUNDS[name])} {escape(str(schema[name]))}" for name in _BOUNDS if name in schema]
    return f"{kind} ({', '.join(bounds)})" if bounds else kind


_BOUNDS = {
    "minimum": "≥",
    "maximum": "≤",
    "exclusiveMinimum": ">",
    "exclusiveMaximum": "<",
    "minLength": "characters ≥",
    "maxLength": "characters ≤",
    "minItems": "entries ≥",
    "maxItems": "entries ≤",
    "maxProperties": "fields ≤",
    "pattern": "like",
    "default": "default",
}


def _words(described: Json) -> str:
    return re.sub(r"\s+", " ", escape(str(described.get("description", "")))).strip()


def _code(text: str) -> str:
    return f"<code>{escape(text)}</code>"


def _table(head: Iterable[str], rows: Iterable[Iterable[str]]) -> str:
    first = "".join(f"<th>{one}</th>" for one in head)
    rest = "".join(f"<tr>{''.join(f'<td>{cell}</td>' for cell in row)}</tr>" for row in rows)
    return f"<table><tr>{first}</tr>{rest}</table>"
