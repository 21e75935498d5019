"""What is wrong with a body, in a sentence that names the field. Knows how pydantic tells it."""

from __future__ import annotations

import difflib
from collections.abc import Mapping, Sequence
from typing import Any

from inflight.server.bodies.chat import ChatBody
from inflight.server.bodies.completions import CompletionBody
from inflight.server.errors import ApiError, invalid


def mistake(errors: Sequence[Mapping[str, Any]]) -> ApiError:
    """The first mistake of a body, in a sentence, with the field to blame."""
    error = errors[0]
    place = [str(part) for part in error["loc"] if part not in ("body", "query", "path")]
    kind, given = error["type"], error.get("input")
    if kind == "json_invalid":
        return invalid(f"The body is not JSON: {error.get('ctx', {}).get('error', error['msg'])}.", code="invalid_json")
    if kind == "string_unicode" and not place:  # pydantic blames the object for the name of one of its fields
        return invalid(
            f"The name of the field {given!r} holds half a character (a lone surrogate); leave it out.",
            str(given),
            "unknown_field",
        )
    if not place:
        return invalid("The body is not a JSON object; send one, with Content-Type: application/json.")
    # Of a union, pydantic names each member that did not fit; what a client knows is the field.
    field = ".".join(part for part in place if not _names_a_type(part)) or place[0]
    if kind == "extra_forbidden":
        return invalid(f"The field {field!r} is unknown here; leave it out.{_near(place[-1])}", field, "unknown_field")
    if kind == "missing":
        return invalid(f"The field {field!r} is missing.", field, "missing_field")
    if kind == "string_unicode":
        return invalid(
            f"{field} holds half a character (a lone surrogate); send whole characters.", field, "invalid_value"
        )
    shown = repr(given)
    if len(shown) > 60:
        shown = shown[:57] + "…"
    return invalid(f"{field} is {shown}; {_lowered(error['msg'])}.", field, "invalid_value")


def _names_a_type(part: str) -> bool:
    return (
        part in ("str", "int", "float", "bool") or part[:5] in ("list[", "const") or "[" in part or part[:1].isupper()
    )


def _near(name: str) -> str:
    known = {*ChatBody.model_fields, *CompletionBody.model_fields}
    near = difflib.get_close_matches(name, known, 1)
    return f" Did you mean {near[0]!r}?" if near else ""


def _lowered(message: str) -> str:
    return message[:1].lower() + message[1:]
