"""The addresses of a schema's parts: what a `$ref` names within its document.

Nothing is fetched: a reference to another document is refused.
"""

from __future__ import annotations

from collections import Counter
from typing import Any
from urllib.parse import unquote, urldefrag, urljoin

from inflight.execution.grammars.errors import GrammarError

_VALUES = frozenset({"const", "enum", "default", "examples", "example"})  # hold values, no schemas
_ANCHORS = ("$anchor", "$dynamicAnchor")


class References:
    """Resolve references of one document by `$id`, anchor and JSON pointer."""

    def __init__(self, document: Any, old_ids: bool) -> None:
        """Index the document.

        Args:
            document: the whole schema.
            old_ids: whether `id` is an address, as in draft 4.
        """
        self._document = document
        self._id_names = ("$id", "id") if old_ids else ("$id",)
        self._resources: dict[str, Any] = {"": document}
        self._anchors: dict[tuple[str, str], Any] = {}
        self._bases: dict[int, str] = {}  # by the identity of an object
        self._dynamic: Counter[str] = Counter()  # how often a name is a dynamic anchor; "" of the whole
        self._index()

    def resolve(self, keyword: str, reference: str, within: Any, place: str) -> Any:
        """Return the part that `reference`, read at the object `within`, names. Raises GrammarError."""
        found = self._found(keyword, reference, within, place)
        name = found.get("$dynamicAnchor", "") if isinstance(found, dict) else None
        if keyword != "$ref" and isinstance(name, str) and self._dynamic[name] > 1:
            raise GrammarError(
                f"has {keyword} {reference[:100]!r} at {place}, which names another part by the way it is reached; "
                "give $ref"
            )
        return found

    def _found(self, keyword: str, reference: str, within: Any, place: str) -> Any:
        base = self._bases.get(id(within), "")
        url, fragment = _without_fragment(base + reference if reference.startswith("#") else _joined(base, reference))
        if url not in self._resources:
            raise GrammarError(
                f"refers to {reference[:100]!r} ({keyword} at {place}), and schemas are not fetched; put it into "
                "$defs and refer to it as #/$defs/…"
            )
        fragment = unquote(fragment)
        found = self._at_pointer(self._resources[url], fragment) if _is_pointer(fragment) else None
        if found is None:
            found = self._anchors.get((url, fragment))
        if found is None:
            raise GrammarError(f"refers to {reference[:100]!r} ({keyword} at {place}), which is not in it; define it")
        return found

    def _at_pointer(self, value: Any, pointer: str) -> Any:
        for step in pointer.split("/")[1:]:
            step = step.replace("~1", "/").replace("~0", "~")
            if isinstance(value, dict) and step in value:
                value = value[step]
            elif isinstance(value, list) and step.isdecimal() and int(step) < len(value):
                value = value[int(step)]
            else:
                return None
        return value

    def _index(self) -> None:
        left: list[tuple[Any, str]] = [(self._document, "")]
        while left:
            value, base = left.pop()
            if isinstance(value, list):
                left += [(one, base) for one in value]
            elif isinstance(value, dict):
                base = self._own_base(value, base)
                self._bases[id(value)] = base
                left += [(one, base) for name, one in value.items() if name not in _VALUES]

    def _own_base(self, schema: dict[str, Any], base: str) -> str:
        for name in self._id_names:
            own = schema.get(name)
            if isinstance(own, str) and own.startswith("#"):
                self._anchors.setdefault((base, own[1:]), schema)
            elif isinstance(own, str) and own:
                base = _without_fragment(_joined(base, own))[0]
                self._resources.setdefault(base, schema)
        dynamic = "" if schema.get("$recursiveAnchor") is True else schema.get("$dynamicAnchor")
        if isinstance(dynamic, str):
            self._dynamic[dynamic] += 1
        for name in _ANCHORS:
            if isinstance(own := schema.get(name), str):
                self._anchors.setdefault((base, own), schema)
        return base


def _joined(base: str, address: str) -> str:
    try:
        return urljoin(base, address)
    except ValueError:  # it is no address
        return address


def _without_fragment(address: str) -> tuple[str, str]:
    """Return an address and its fragment, as they are written where it is no address."""
    try:
        before, fragment = urldefrag(address)
    except ValueError:
        before, _, fragment = address.partition("#")
    return before, fragment


def _is_pointer(fragment: str) -> bool:
    return not fragment or fragment.startswith("/")
