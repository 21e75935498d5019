"""Read a model's JSON files, which may come from anywhere, with bounds; broken ones are reported in a sentence.

Refused, too, are what Python's parser lets through (NaN, infinities) and what it raises other errors for (nesting too
deep, numbers of thousands of digits). Each caller has its own error for the sentence. Standard library only.
"""

from __future__ import annotations

import json
import math
from pathlib import Path
from typing import Any, NoReturn, TypeVar

LONGEST_FILE = 16 * 1024**2  # bytes; the index of a checkpoint of a hundred thousand tensors has ten million
_AGAIN = "download or export the model's files again."
_LONGEST_SHOWN = 120  # characters of a value that a sentence quotes
K = TypeVar("K", dict[str, Any], list[Any])


class JsonFileError(ValueError):
    """A file that is no JSON object which can be used; the sentence names the file and the place."""


def read_json_object(path: Path, max_bytes: int = LONGEST_FILE) -> dict[str, Any]:
    """The object in a file. Raises JsonFileError; FileNotFoundError where there is none."""
    return parse_json_object(_content(path, max_bytes), str(path))


def read_json_list(path: Path) -> list[Any]:
    """The list in a file. Errors as there."""
    return _of_kind(list, "a list", _content(path, LONGEST_FILE), str(path))


def _content(path: Path, max_bytes: int) -> bytes:
    try:
        with path.open("rb") as file:
            content = file.read(max_bytes + 1)
    except FileNotFoundError:
        raise
    except OSError as error:
        cause = error.strerror or str(error)
        raise JsonFileError(f"{path} cannot be read: {cause}; check the file and its permissions.") from None
    if len(content) > max_bytes:
        raise JsonFileError(f"{path} has more than {max_bytes:,} bytes, which no model's settings need; {_AGAIN}")
    return content


def parse_json_object(content: bytes, name: str) -> dict[str, Any]:
    """The object that bytes spell. name: what the sentence says of where they come from. Raises JsonFileError."""
    return _of_kind(dict, "an object", content, name)


def _of_kind(kind: type[K], wanted: str, content: bytes, name: str) -> K:
    try:
        data = json.loads(content.decode("utf-8"), parse_constant=_refuse, parse_float=_finite)
    except UnicodeDecodeError as error:
        raise JsonFileError(f"{name} cannot be read: it is not UTF-8 at byte {error.start}; {_AGAIN}") from None
    except json.JSONDecodeError as error:
        raise JsonFileError(
            f"{name} is not valid JSON: {error.msg} at line {error.lineno}, column {error.colno}; {_AGAIN}"
        ) from None
    except _NotFinite as error:
        raise JsonFileError(f"{name} holds {error}, which is no JSON number; write a finite one or null.") from None
    except RecursionError:
        raise JsonFileError(f"{name} is not usable: its JSON is nested too deeply; {_AGAIN}") from None
    except ValueError:  # Python reads no longer ones
        raise JsonFileError(f"{name} is not usable: it holds a number of thousands of digits; {_AGAIN}") from None
    if not isinstance(data, kind):
        raise JsonFileError(f"{name} holds a JSON {type(data).__name__} where {wanted} is expected; {_AGAIN}")
    return data


def shown(value: object) -> str:
    """A value as a sentence quotes it: its beginning, where it is long."""
    if isinstance(value, list | tuple | dict) and len(value) > _LONGEST_SHOWN:
        return f"a {type(value).__name__} of {len(value):,} entries"
    try:
        text = repr(value)
    except (ValueError, RecursionError):  # thousands of digits; nested without end
        return f"a {type(value).__name__}"
    return text if len(text) <= _LONGEST_SHOWN else text[:_LONGEST_SHOWN] + "…"


class _NotFinite(Exception):
    pass


def _refuse(constant: str) -> NoReturn:
    raise _NotFinite(constant)


def _finite(digits: str) -> float:
    value = float(digits)
    if not math.isfinite(value):
        raise _NotFinite(digits[:_LONGEST_SHOWN])
    return value
