"""JSON schemas within a Lark grammar (`%json {…}`), put into the library's terms.

Where the library allows more than a schema does, the rule that stands for it captures its text, which is checked as
soon as it is whole.
"""

from __future__ import annotations

import json
import re
from typing import Any

from inflight.execution.grammars.errors import GrammarError
from inflight.execution.grammars.json_schema.lowering import lower

# Texts, regular expressions and comments are passed over.
_PARTS = re.compile(r'"(?:\\.|[^"\\\n])*"|//[^\n]*|/(?:\\.|[^/\\\n])+/|%json(?![\w])|%lark(?![\w])')
_SPACE = re.compile(r"\s*")
_OPTIONS = "x-guidance"


def with_lowered_schemas(lark: str, is_wide: bool) -> tuple[str, dict[str, str]]:
    """Return the grammar with its schemas lowered, and those to check by the name of the capture that holds the text.

    Args:
        lark: a grammar that may hold `%json`.
        is_wide: as `lower` takes it.

    Raises:
        GrammarError: a schema is none, or would have to be checked where nothing can be captured.
    """
    written, end = list[str](), 0
    rules: dict[tuple[str, str], str] = {}  # by the lowered schema and the one to check: several may be lowered alike
    name = _unused_name(lark)
    is_nested = False
    for found in _PARTS.finditer(lark):
        is_nested |= found.group() == "%lark"
        if found.group() != "%json" or found.start() < end:
            continue
        start = _SPACE.match(lark, found.end())
        assert start is not None
        schema, after = _schema(lark, start.end())
        written.append(lark[end : found.start()])
        text, check = _lowered(schema, is_wide)
        if check is None:
            written.append(f"%json {text}")
        elif is_nested:
            raise GrammarError("has a schema within %lark that would have to be checked at its end; put it outside")
        else:
            written.append(rules.setdefault((text, check), f"{name}{len(rules)}"))
        end = after
    written.append(lark[end:])
    written += [f'\n{rule}[capture="{rule}"]: %json {text}\n' for (text, _), rule in rules.items()]
    return "".join(written), {rule: check for (_, check), rule in rules.items()}


def _unused_name(lark: str) -> str:
    name = "checked_json_"
    while name in lark:
        name += "x_"
    return name


def _schema(lark: str, at: int) -> tuple[Any, int]:
    try:
        return json.JSONDecoder().raw_decode(lark, at)
    except (ValueError, RecursionError) as error:
        raise GrammarError(f"has a %json that is not JSON that can be read: {error}") from None


def _lowered(schema: Any, is_wide: bool) -> tuple[str, str | None]:
    options = schema.get(_OPTIONS, {}) if isinstance(schema, dict) else {}
    try:
        text, check, escapes = lower(schema, is_wide)
    except GrammarError as error:
        raise GrammarError(f"has a JSON schema that {error}") from None
    options = {"json_allowed_escapes": escapes} | options if isinstance(options, dict) else options
    return json.dumps({**json.loads(text), _OPTIONS: options}), check
