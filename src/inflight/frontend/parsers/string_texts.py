"""Convert a schema of strings (length, pattern, format) to terminals of a grammar, for strings without quotes."""

from __future__ import annotations

import re
from collections.abc import Mapping

from inflight.counted import quoted
from inflight.frontend.parsers.lark import ANY_TEXT, regex
from inflight.frontend.parsers.tool_schema import Schema, SchemaError, count_of

_DATE = "[0-9]{4}-(0[1-9]|1[0-2])-(0[1-9]|1[0-9]|2[0-8])"
_TIME = r"([01][0-9]|2[0-3]):[0-5][0-9]:[0-5][0-9](\.[0-9]{1,6})?(Z|[+-]([01][0-9]|2[0-3]):[0-5][0-9])"
_HOST = "[a-z0-9]([a-z0-9-]{0,30}[a-z0-9])?"
_FORMATS: Mapping[str, str] = {
    "date": _DATE,
    "time": _TIME,
    "date-time": f"{_DATE}T{_TIME}",
    "uuid": "[0-9a-f]{8}-[0-9a-f]{4}-[0-9a-f]{4}-[0-9a-f]{4}-[0-9a-f]{12}",
    "ipv4": "((25[0-5]|2[0-4][0-9]|1[0-9][0-9]|[1-9]?[0-9])[.]){3}(25[0-5]|2[0-4][0-9]|1[0-9][0-9]|[1-9]?[0-9])",
    "hostname": rf"{_HOST}([.]{_HOST}){{0,3}}",
    "email": rf"[A-Za-z0-9_+-]{{1,32}}([.][A-Za-z0-9_+-]{{1,32}}){{0,3}}@{_HOST}([.]{_HOST}){{1,3}}",
    "uri": rf"https?://{_HOST}([.]{_HOST}){{0,3}}(:[1-9][0-9]{{1,3}})?(/[A-Za-z0-9._~-]*){{0,8}}(\?[A-Za-z0-9._~=&-]*)?",
}
_PIECES = re.compile(r"\\.|\[\^?\]?(?:\\.|[^\]\\])*\]|[()|^$]|.", re.DOTALL)


def string_texts(schema: Schema) -> str:
    """Return an expression of terminals that match the strings a schema allows. Raises SchemaError."""
    lowest, highest = count_of(schema, "minLength") or 0, count_of(schema, "maxLength")
    parts = []
    if lowest or highest is not None:
        parts.append(regex(f"(?s:.{{{lowest},{'' if highest is None else highest}}})"))
    if "pattern" in schema:
        parts.append(regex(_anchored(str(schema["pattern"]))))
    if "format" in schema:
        if schema["format"] not in [*_FORMATS]:
            known = ", ".join(_FORMATS)
            raise SchemaError(
                f"says the format {quoted(schema['format'])}, which cannot be enforced in calls like these; "
                f"known are {known}"
            )
        parts.append(regex(_FORMATS[schema["format"]]))
    return " & ".join(parts) or ANY_TEXT


def _anchored(pattern: str) -> str:
    """Convert a schema's pattern, which matches anywhere in a string, to one that matches the whole string."""
    branches, depth = [""], 0
    for piece in _PIECES.findall(pattern):
        if piece == "|" and depth == 0:
            branches.append("")
            continue
        depth += {"(": 1, ")": -1}.get(piece, 0)
        branches[-1] += piece
    return "|".join(map(_anchored_branch, branches))


def _anchored_branch(branch: str) -> str:
    pieces = _PIECES.findall(branch)
    begins, ends = bool(pieces) and pieces[0] == "^", len(pieces) > 1 and pieces[-1] == "$"
    inside = pieces[begins : len(pieces) - ends]
    if any(piece in ("^", "$") for piece in inside):
        raise SchemaError(f"has a pattern with ^ or $ inside ({branch[:60]}), which cannot be enforced in this format")
    return ("" if begins else "(?s:.*)") + "(" + "".join(inside) + ")" + ("" if ends else "(?s:.*)")
