"""Put patterns, formats and lengths of texts as the library can follow them."""

from __future__ import annotations

import json
import re
from collections.abc import Iterable
from functools import lru_cache
from typing import Any

from llguidance import LLMatcher

_KEYWORDS = ("pattern", "format", "minLength", "maxLength")
_LOOK_AROUND = re.compile(r"\(\?(?:=|!|<=|<!)")
# Escapes (ECMA's of control characters by their letter), classes, beginnings of assertions, and single characters.
_PIECES = re.compile(r"\\c([A-Za-z])|\\.?|\[(?:\\.|[^\]\\])*\]?|\(\?(?:=|!|<=|<!)|.", re.DOTALL)
_COUNTED = re.compile(r"\{\d*,?\d+\}")
LENGTHS = ("minLength", "maxLength")
_IN_CLASS = re.compile(r"([\\\]\[^&~\-])")
MAX_LENGTH = 2**16  # a text that is longer ends nearly any answer by its tokens
MANY = 64  # characters, which a pattern that counts has as many states for each of; the library abandons it in silence
MAX_EXCLUDED = 400  # characters of texts that a pattern excludes
MAX_NAMES = 256  # texts of a pattern that are listed


def writable(schema: dict[str, Any], types: frozenset[str]) -> tuple[dict[str, Any], list[str]]:
    """Return the schema with what the library follows of a text, and the keywords that it leaves to the check.

    The library knows no look-around, and abandons some patterns together with a length. What it does not take is left
    out step by step.
    """
    given = {name: schema[name] for name in _KEYWORDS if name in schema}
    if not given:
        return schema, []
    if "string" not in types:
        return {name: value for name, value in schema.items() if name not in given}, []
    left: list[str] = []
    if given.get("maxLength", 0) > MAX_LENGTH:
        left.append("maxLength")
        del given["maxLength"]
    if given.get("minLength", 0) > MAX_LENGTH:
        left.append("minLength")
        given["minLength"] = MAX_LENGTH
    if "pattern" in given:
        wider = without_look_around(given["pattern"])
        if wider != given["pattern"]:
            left.append("pattern")
            given["pattern"] = wider
        is_large = given.get("maxLength", 0) >= MANY and _COUNTED.search(wider) is not None
        for dropped in (LENGTHS if is_large else (), LENGTHS, ("pattern",)):
            for name in dropped:
                if given.pop(name, None) is not None and name not in left:
                    left.append(name)
            if is_followed({"type": "string", **given}):
                break
    kept = {name: given.get(name, value) for name, value in schema.items() if name not in _KEYWORDS or name in given}
    return kept, left


def is_followed(schema: dict[str, Any]) -> bool:
    """Return whether the library takes a schema, or finds that nothing satisfies it, which it may."""
    return _is_followed(json.dumps(schema))


@lru_cache(512)
def _is_followed(schema: str) -> bool:
    error = LLMatcher.validate_grammar(LLMatcher.grammar_from_json_schema(schema))
    return not error or "Unsatisfiable" in error


def without_look_around(pattern: str) -> str:
    """Return a pattern that matches more: without assertions about the text before or behind, and with control
    characters as the library reads them."""
    kept, depth, is_skipped = list[str](), 0, False  # depth: of groups, within an assertion
    for found in _PIECES.finditer(pattern):
        piece = found[0]
        if depth:
            depth += piece.startswith("(") - (piece == ")")
            is_skipped = not depth
        elif _LOOK_AROUND.match(piece):
            depth = 1
        elif not (is_skipped and piece in ("?", "*", "+")):  # of an assertion
            is_skipped = False
            kept.append(f"\\x{ord(found[1]) % 32:02x}" if found[1] else piece)
    return "".join(kept)


def other_than(texts: Iterable[str]) -> str | None:
    """Return a pattern of every text but these; None where they are long."""
    texts = sorted(set(texts))
    if sum(map(len, texts)) > MAX_EXCLUDED or max(map(len, texts), default=0) > 60:
        return None
    return f"^(?:{_others(texts)})$"


def _others(rests: list[str]) -> str:
    """Return a pattern of what may follow, given the rests of texts that begin alike."""
    by_first: dict[str, list[str]] = {}
    for rest in rests:
        if rest:
            by_first.setdefault(rest[0], []).append(rest[1:])
    ways = [] if "" in rests else [""]
    if by_first:
        ways.append(rf"[^{''.join(map(_of_class, by_first))}][\s\S]*")
        ways += [f"{literal(first)}(?:{_others(more)})" for first, more in by_first.items()]
    else:
        ways.append(r"[\s\S]+" if "" in rests else r"[\s\S]*")
    return "|".join(ways)


def literal(text: str) -> str:
    """Return a pattern that matches this text and no other, unanchored."""
    return re.sub(r"([\\.+*?()|\[\]{}^$\-/&~#])", r"\\\1", text)


def _of_class(character: str) -> str:
    return _IN_CLASS.sub(r"\\\1", character)


@lru_cache(256)
def listed(pattern: str) -> tuple[str, ...] | None:
    """Return all texts that a pattern matches, where they are few and it is seen quickly; None otherwise."""
    if not (pattern.startswith("^") and pattern.endswith("$")):
        return None
    from llguidance import LLTokenizer

    source = LLMatcher.grammar_from_json_schema(json.dumps({"type": "string", "pattern": pattern}))
    left = [(b"", LLMatcher(LLTokenizer("byte"), source, log_level=0))]
    if left[0][1].is_error():
        return None
    found: list[str] = []
    for _ in range(MAX_NAMES * 8):
        if not left:
            return tuple(found)
        text, matcher = left.pop()
        if matcher.is_accepting():
            found.append(json.loads(text))
            continue
        allowed = _bytes(matcher.compute_bitmask())
        if len(allowed) + len(left) + len(found) > MAX_NAMES:
            return None
        for one in allowed:
            longer = matcher.deep_copy()
            longer.consume_token(one)
            left.append((text + bytes([one]), longer))
    return None


def _bytes(mask: bytes) -> list[int]:
    return [one for one in range(256) if mask[one >> 3] >> (one & 7) & 1]
