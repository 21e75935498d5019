"""A stored response with the items of its input, from which a conversation continues.

The items are those of the whole conversation, so that no response needs another: others may be deleted, or grow old.
"""

from __future__ import annotations

import sqlite3
from dataclasses import dataclass
from typing import Any, Self, TypeVar

import msgspec
from msgspec import Raw, Struct

PREFIX = "resp_"  # of ids
T = TypeVar("T")
_ITEM_PREFIXES = {"message": "msg", "function_call": "fc", "function_call_output": "fco", "reasoning": "rs"}
_ROW_BYTES = 512  # that a row takes beside its JSON, with its entries in indexes


class _Output(Struct):
    id: str
    output: list[Raw]


_ITEMS = msgspec.json.Decoder(list[dict[str, Any]])
_OUTPUT = msgspec.json.Decoder(_Output)
_encode = msgspec.json.Encoder().encode


@dataclass(frozen=True, slots=True, kw_only=True)
class StoredResponse:
    """response, input_items: JSON text. due: seconds of the clock when it is removed."""

    tenant: str
    id: str
    due: float
    response: str
    input_items: str

    @classmethod
    def of(cls, row: sqlite3.Row) -> Self:
        """Raises ValueError or TypeError where a value is of another kind."""
        return msgspec.convert({name: row[name] for name in cls.__dataclass_fields__}, cls)

    @property
    def size(self) -> int:
        """Bytes that it takes of what its tenant may store."""
        return _ROW_BYTES + len(self.response.encode()) + len(self.input_items.encode())

    def check(self) -> None:
        """Raises ValueError where its JSON is not what was stored."""
        if self._output().id != self.id:
            raise ValueError("the id of a response")
        self._items()

    def listed(self) -> list[dict[str, Any]]:
        """The items of its input, each with an id. Raises ValueError."""
        own = self.id.removeprefix(PREFIX)
        return [
            {"id": f"{_ITEM_PREFIXES.get(item['type'], 'item')}_{own}_input{number}", **item}
            for number, item in enumerate(self._items())
        ]

    def history(self) -> bytes:
        """The items before the input of a response that continues it: JSON, a list. Raises ValueError."""
        return _encode([*self.listed(), *self._output().output])

    def _items(self) -> list[dict[str, Any]]:
        return _read(_ITEMS, self.input_items)

    def _output(self) -> _Output:
        return _read(_OUTPUT, self.response)


def _read(decoder: msgspec.json.Decoder[T], text: str) -> T:
    try:
        return decoder.decode(text)
    except msgspec.MsgspecError as error:  # some of them are no ValueErrors
        raise ValueError(str(error)) from None
