"""JSON schemas of bodies: bounded in length and depth, and without references to other documents."""

from __future__ import annotations

from typing import Any

import msgspec

from inflight.core.types.sampling import MAX_SOURCE_CHARS
from inflight.counted import shortened
from inflight.server.errors import invalid

MAX_SCHEMA_DEPTH = 64  # values within one another


def schema_text(schema: dict[str, Any] | str, place: str) -> str:
    """Return a JSON schema as text. Raises ApiError where it is too long, too deep, or refers to other documents."""
    if isinstance(schema, str):
        check_length(schema, place)
        try:
            schema = msgspec.json.decode(schema, type=dict[str, Any])
        except (msgspec.MsgspecError, RecursionError) as error:
            raise invalid(f"{place} is not a schema in JSON: {shortened(str(error))}.", place) from None
    check_schema(schema, place)
    text = msgspec.json.encode(schema).decode()
    check_length(text, place)
    return text


def check_schema(schema: Any, place: str) -> None:
    """Bound the depth, and refuse references to other documents, since nothing is fetched. Whether a reference by `$id`
    names a part of this one is known where schemas are compiled."""
    left: list[tuple[Any, str, int]] = [(schema, place, 1)]
    has_addresses = False
    remote: tuple[str, str] | None = None
    while left:
        value, where, depth = left.pop()
        if depth > MAX_SCHEMA_DEPTH:
            raise invalid(
                f"{place} is nested {depth} deep at {shortened(where)}, and a schema may be {MAX_SCHEMA_DEPTH}; make "
                "it flatter.",
                place,
            )
        if isinstance(value, list):
            left += [(one, f"{where}[{number}]", depth + 1) for number, one in enumerate(value)]
        elif isinstance(value, dict):
            reference = value.get("$ref")
            if isinstance(reference, str) and not reference.startswith("#"):
                remote = remote or (reference, where)
            has_addresses |= any(isinstance(value.get(name), str) for name in ("$id", "id"))
            left += [(one, f"{where}.{name}", depth + 1) for name, one in value.items()]
    if remote is not None and not has_addresses:
        reference, where = remote
        raise invalid(
            f"{place} refers to {shortened(reference)!r} ($ref at {shortened(where)}), and schemas are not fetched; "
            "put it into $defs and refer to it as #/$defs/….",
            place,
        )


def check_length(source: str, place: str, most: int = MAX_SOURCE_CHARS) -> None:
    if len(source) > most:
        raise invalid(f"{place} has {len(source):,} characters, and at most {most:,} are read; shorten it.", place)
