"""Decode the bytes of a body into its struct, or raise the first mistake in a sentence that names the field.

A body is first split into its fields, unread; then each is read by its own type (`values`), or skipped. So a body costs
what its bytes cost, whatever is in it.
"""

from __future__ import annotations

from collections.abc import Set
from typing import Any, Generic, TypeVar, get_type_hints

import msgspec
from msgspec import NODEFAULT, Raw, Struct
from msgspec.structs import fields as struct_fields

from inflight.server.common.aliases import aliases_for, translated
from inflight.server.common.values import UnknownFields, fields_of, read_value
from inflight.server.errors import ApiError, invalid

B = TypeVar("B", bound=Struct)

_LONGEST_NEUTRAL = 256  # bytes of a value that may mean "not used"
_ANY = msgspec.json.Decoder()


class BodyDecoder(Generic[B]):
    """Decode the bodies of one endpoint."""

    def __init__(
        self,
        kind: type[B],
        neutral: dict[str, tuple[tuple[Any, ...], str]] | None = None,
        hints: Set[str] = frozenset(),
        content: Set[str] = frozenset(),
    ):
        """Prepare decoders of the fields.

        Args:
            neutral: Fields of other servers, with the values that mean "not used" and why any other is refused.
            hints: Fields whose value changes no token, skipped unread.
            content: Fields of blocks or tools, of which some types are not served: `unsupported_value`.
        """
        self.kind = kind
        self._neutral = neutral or {}
        self._hints, self._content = hints, content
        types = get_type_hints(kind, include_extras=True)
        self._decoders = {one.name: msgspec.json.Decoder(types[one.name]) for one in struct_fields(kind)}
        self._aliases = aliases_for(self._decoders.keys()) - self._decoders.keys() - self._neutral.keys() - self._hints
        self._required = [
            one.name for one in struct_fields(kind) if one.default is NODEFAULT and one.default_factory is NODEFAULT
        ]

    @property
    def names(self) -> Set[str]:
        """Return all fields that are known here: those that are refused and other servers' names among them."""
        return self._decoders.keys() | self._neutral.keys() | self._hints | self._aliases

    def decode(self, body: bytes | memoryview, unknown: UnknownFields | None = None) -> B:
        """Return the body's fields.

        Args:
            unknown: Takes the paths of unknown fields that are not null; None: they are refused.

        Raises:
            ApiError: 400, of the first mistake.
        """
        unknown, aliases = unknown or UnknownFields(refuses=True), dict[str, Raw]()
        values: dict[str, Any] = {}
        for name, raw in fields_of(body).items():
            decoder = self._decoders.get(name)
            if decoder is not None:
                values[name] = self._value(name, decoder, raw, unknown)
            elif name in self._neutral:
                self._check_neutral(name, raw)
            elif bytes(memoryview(raw)[:5]) == b"null" or name in self._hints:
                continue
            elif name in self._aliases:
                aliases[name] = raw
            else:
                unknown.add(name, self._decoders)
        for name, raw in aliases.items():
            self._read_alias(name, raw, values, unknown)
        for name in self._required:
            if name not in values:
                raise invalid(f"The field {name!r} is missing.", name, "missing_field")
        return self.kind(**values)

    def _value(self, name: str, decoder: msgspec.json.Decoder[Any], raw: Raw, unknown: UnknownFields) -> Any:
        try:
            return read_value(name, decoder, raw, unknown)
        except ApiError as error:
            if name in self._content and (error.param or "").endswith(".type") and error.code == "invalid_value":
                error.code = "unsupported_value"
            raise

    def _read_alias(self, name: str, raw: Raw, values: dict[str, Any], unknown: UnknownFields) -> None:
        """Another server's name for a field of this one, whose own name counts where both are given."""
        for target, (path, value) in translated(name, raw, self._decoders.keys(), unknown).items():
            read = read_value(path, self._decoders[target], value, unknown)
            if values.get(target) is None:
                values[target] = read
            elif read not in (None, values[target]):
                unknown.add(path)

    def _check_neutral(self, name: str, raw: Raw) -> None:
        unused, why = self._neutral[name]
        if len(memoryview(raw)) <= _LONGEST_NEUTRAL:
            value = read_value(name, _ANY, raw)
            if value is None or any(value == one and (type(value) is bool) == (type(one) is bool) for one in unused):
                return
        raise invalid(f"The field {name!r} is not served: {why}", name, "unsupported_field")
