"""The OpenAPI document of the server's operations, made of the structs that bodies are read with."""

from __future__ import annotations

import re
from collections.abc import Collection, Iterable, Mapping, Sequence
from typing import Any, get_type_hints

import msgspec
from msgspec import NODEFAULT, UNSET, Struct
from msgspec.structs import fields

from inflight.server.errors import Error
from inflight.server.routes import Operation

Document = dict[str, Any]  # as OpenAPI has it
_REF = "#/components/schemas/{name}"
_SCHEMES = {
    "HTTPBearer": {"type": "http", "description": "The key that names the tenant.", "scheme": "bearer"},
    "APIKeyHeader": {
        "type": "apiKey",
        "description": "The same key, as Anthropic's clients send it.",
        "in": "header",
        "name": "x-api-key",
    },
}
_WRONG_PARAMETER = {"400": (Error, "A parameter is wrong; `param` names it.")}


def openapi_document(
    operations: Sequence[Operation],
    info: Mapping[str, str],
    needs_keys: bool,
    open_bodies: Collection[type[Struct]] = (),
) -> Document:
    """Return the document.

    Args:
        operations: Of which those are left out that are not documented.
        info: Title, version, description.
        needs_keys: The server has API keys.
        open_bodies: Whose unknown fields are ignored, in objects within them, too.
    """
    shown = [one for one in operations if one.is_documented]
    schemas, components = _schemas(shown)
    _allow_unknown([schemas[body] for body in open_bodies if body in schemas], components)
    paths: dict[str, Document] = {}
    for one in shown:
        path = re.sub(r":\w+}", "}", one.path)
        paths.setdefault(path, {})[one.method.lower()] = _operation(one, path, schemas, needs_keys)
    secured = {"securitySchemes": _SCHEMES} if needs_keys else {}
    return {"openapi": "3.1.0", "info": dict(info), "paths": paths, "components": {"schemas": components, **secured}}


def _schemas(operations: Iterable[Operation]) -> tuple[dict[Any, Document], Document]:
    """Return the schema of each type that operations name, and the components that these refer to."""
    types: dict[Any, None] = {}
    for one in operations:
        of_errors = [kind for kind, _ in {**one.errors, **_WRONG_PARAMETER}.values()]
        of_query = [] if one.query is None else list(get_type_hints(one.query, include_extras=True).values())
        types |= dict.fromkeys([kind for kind in (one.result, one.body, *of_errors, *of_query) if kind is not None])
    schemas, components = msgspec.json.schema_components(types, ref_template=_REF)
    return dict(zip(types, schemas, strict=True)), components


def _allow_unknown(schemas: Iterable[Any], components: Document) -> None:
    """Allow other properties in the objects of these schemas, and in all that they refer to."""
    waiting, seen = list(schemas), set[str]()
    while waiting:
        one = waiting.pop()
        if isinstance(one, list):
            waiting += one
        elif isinstance(one, dict):
            if one.get("additionalProperties") is False:
                del one["additionalProperties"]
            name = str(one.get("$ref")).removeprefix(_REF.format(name=""))
            if name in components and name not in seen:
                seen.add(name)
                waiting.append(components[name])
            waiting += one.values()


def _operation(one: Operation, path: str, schemas: Mapping[Any, Document], needs_keys: bool) -> Document:
    identifier = re.sub(r"\W", "_", f"{one.name}{path}")
    parameters = [*_path_parameters(path), *_query_parameters(one.query, schemas)]
    described: Document = {
        "tags": [one.tag],
        "summary": _first_sentence(one.about) or one.name.replace("_", " ").title(),
        **({"description": one.about} if one.about else {}),
        "operationId": f"{identifier}_{one.method.lower()}",
        **({"parameters": parameters} if parameters else {}),
    }
    if one.body is not None:
        described["requestBody"] = _required("application/json", schemas[one.body])
    if one.form is not None:
        described["requestBody"] = _required("multipart/form-data", one.form)
    described["responses"] = _responses(one, schemas, bool(parameters))
    if needs_keys and one.needs_key:
        described["security"] = [{name: []} for name in _SCHEMES]
    return described


def _first_sentence(about: str) -> str:
    return re.split(r"(?<=[.:;])\s", " ".join(about.split()), maxsplit=1)[0].rstrip(".:;")


def _required(media_type: str, schema: Mapping[str, Any]) -> Document:
    return {"content": {media_type: {"schema": schema}}, "required": True}


def _responses(one: Operation, schemas: Mapping[Any, Document], has_parameters: bool) -> Document:
    content = {} if one.result is None else {"application/json": {"schema": schemas[one.result]}}
    content |= {media_type: {"schema": schema} for media_type, schema in one.content.items()}
    errors = dict(one.errors)
    if has_parameters and not {"400", "4XX"} & errors.keys():
        errors |= _WRONG_PARAMETER
    return {
        "200": {"description": one.result_is, "content": content},
        **{
            status: {"description": about, "content": {"application/json": {"schema": schemas[kind]}}}
            for status, (kind, about) in errors.items()
        },
    }


def _path_parameters(path: str) -> list[Document]:
    return [
        {"name": name, "in": "path", "required": True, "schema": {"type": "string"}}
        for name in re.findall(r"{(\w+)}", path)
    ]


def _query_parameters(query: type[Struct] | None, schemas: Mapping[Any, Document]) -> list[Document]:
    if query is None:
        return []
    types = get_type_hints(query, include_extras=True)
    parameters = []
    for one in fields(query):
        schema = dict(schemas[types[one.name]])
        if one.default not in (NODEFAULT, UNSET, None):
            schema["default"] = one.default
        parameters.append(
            {"name": one.encode_name, "in": "query", "required": one.default is NODEFAULT, "schema": schema}
        )
    return parameters
