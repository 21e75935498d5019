"""Bodies: from bytes to their struct, or to the first mistake, in a sentence that names the field.

A body is first split into its fields, unread; then each is read by its own type, or skipped. So a body costs what its
bytes cost, whatever is in it.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Set
from typing import Any, Generic, Literal, TypeVar, get_type_hints

import msgspec
from msgspec import NODEFAULT, Raw, Struct, ValidationError
from msgspec.structs import fields as struct_fields

from inflight.counted import shortened
from inflight.server.common.aliases import AGENT_CONTEXTS, ALIAS_DECODERS, aliases_for, translated
from inflight.server.common.mistakes import UNREADABLE, not_json, without_unknown
from inflight.server.errors import ApiError, invalid

UnknownFieldPolicy = Literal["warn", "ignore", "refuse"]
MAX_NAMES = 16  # of ignored fields that one answer names
MAX_NAME_CHARS = 64  # of a name that is compared with known ones
_MIN_RATIO = 0.78  # of equal letters, where a known name was probably meant
_MAX_NESTED = 32  # objects within one field from which unknown fields are removed, which is read anew for each
_LONGEST_NEUTRAL = 256  # bytes of a value that may mean "not used"
_ANY = msgspec.json.Decoder()
_fields_of = msgspec.json.Decoder(dict[str, Raw]).decode

V = TypeVar("V")
B = TypeVar("B", bound=Struct)


class UnknownFields:
    """Paths of a body's unknown fields, such as `options.num_ctx`, in their order: the first 16, and a number."""

    def __init__(self, *, refuses: bool = False):
        """refuses: the first one is an error."""
        self._refuses = refuses
        self._names: list[str] = []
        self._more = 0

    def add(self, path: str, known: Iterable[str] = ()) -> None:
        """Add a field.

        Args:
            known: Names of which one may have been meant.

        Raises:
            ApiError: 400, where unknown fields are refused.
        """
        name = shortened(path)
        if self._refuses:
            near = nearest(path, known)
            hint = "" if near is None else f" Did you mean {near!r}?"
            raise invalid(f"Unknown field {name!r}; leave it out.{hint}", name, "unknown_field")
        if name in self._names:
            return
        if len(self._names) < MAX_NAMES:
            self._names.append(name)
        else:
            self._more += 1

    @property
    def names(self) -> tuple[str, ...]:
        """Return the names, and the number of those that are left out as a last entry."""
        return (*self._names, *((f"{self._more} more",) if self._more else ()))


def nearest(name: str, known: Iterable[str]) -> str | None:
    """Return the known name that was probably meant; None where none is close."""
    import difflib  # here, as it is for mistakes only

    return next(iter(difflib.get_close_matches(name[:MAX_NAME_CHARS], known, 1, _MIN_RATIO)), None)


def read_value(name: str, decoder: msgspec.json.Decoder[V], raw: Raw, unknown: UnknownFields | None = None) -> V:
    """Return the value of a field, or of something in it that is read by itself.

    Args:
        name: Its path in the body.
        unknown: Takes the paths of nested fields that are unknown and not null. None: they are refused.

    Raises:
        ApiError: 400, of the first mistake.
    """
    unknown = unknown or UnknownFields(refuses=True)
    for _ in range(_MAX_NESTED):
        try:
            return decoder.decode(raw)
        except ValidationError as error:
            raw, ignored = without_unknown(name, decoder.type, raw, error)
            for path in ignored:
                unknown.add(path)
        except UNREADABLE as error:
            raise not_json(error, bytes(memoryview(raw)), name) from None
    raise invalid(
        f"{shortened(name)} has unknown fields in more than {_MAX_NESTED} objects; leave them out.",
        name,
        "unknown_field",
    )


def fields_of(body: bytes | memoryview) -> dict[str, Raw]:
    """Return the fields of a JSON object, unread. Raises ApiError 400."""
    try:
        return _fields_of(body)
    except ValidationError:
        raise invalid("The body is not a JSON object; send one, with Content-Type: application/json.") from None
    except UNREADABLE as error:
        raise not_json(error, bytes(body)) from None


class BodyDecoder(Generic[B]):
    """Decode the bodies of one endpoint."""

    def __init__(
        self,
        kind: type[B],
        neutral: Mapping[str, tuple[tuple[Any, ...], str]] | None = None,
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
        self._content = content
        types = get_type_hints(kind, include_extras=True)
        self._decoders = {one.name: msgspec.json.Decoder(types[one.name]) for one in struct_fields(kind)}
        aliases = aliases_for(self._decoders.keys())
        self._hints = hints - (aliases & AGENT_CONTEXTS)
        self._aliases = aliases - self._decoders.keys() - self._neutral.keys() - self._hints
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
        """Read a field by another server's name for it. Its own name counts where both are given."""
        decoder = ALIAS_DECODERS.get(name)
        value = raw if decoder is None else read_value(name, decoder, raw, unknown)
        fields, ignored = translated(name, value, self._decoders.keys())
        for path in ignored:
            unknown.add(path)
        for target, (path, given) in fields.items():
            read = read_value(path, self._decoders[target], given, unknown)
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
        raise invalid(f"The field {name!r} is not supported: {why}", name, "unsupported_field")
