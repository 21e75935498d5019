"""Check whole answers under the schema that was asked for, where its grammar allows more."""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Any

from inflight.execution.grammars.compiling import GrammarError
from inflight.execution.grammars.json_schema.dialect import escaped

if TYPE_CHECKING:
    from jsonschema_rs import Draft202012Validator

MAX_BYTES = 2**20  # of an answer
_BACKTRACKS = 100_000  # steps of a pattern with look-around; others take a time that is linear in the text's length
_REGEX_BYTES = 2**23  # compiled
_LONGEST = 200  # characters of what is wrong


def validator(schema: Mapping[str, Any]) -> Draft202012Validator:
    """Return what finds whether a value is valid under a schema in one dialect. Raises GrammarError."""
    from jsonschema_rs import Draft202012Validator, FancyRegexOptions, ReferencingError, ValidationError

    patterns = FancyRegexOptions(backtrack_limit=_BACKTRACKS, size_limit=_REGEX_BYTES)
    try:
        return Draft202012Validator(dict(schema), validate_formats=True, offline=True, pattern_options=patterns)
    except ValidationError as error:
        raise GrammarError(f"cannot be checked at {_pointer('#', error.instance_path)}: {_said(error)}") from None
    except (ReferencingError, ValueError) as error:
        raise GrammarError(f"cannot be checked: {_said(error)}") from None


class AnswerChecks:
    """The checks of one grammar's texts, in the engine's process: patterns end within a number of steps, nesting and
    size are bounded, and nothing is fetched.

    Attributes:
        has_whole: whether the whole output is one of them, known by the name "".
    """

    def __init__(self, schemas: Mapping[str, str]) -> None:
        """Make them of schemas as `lower` gave them, by the names of texts. Raises GrammarError."""
        self._validators = {name: validator(json.loads(schema)) for name, schema in schemas.items()}
        self.has_whole = "" in schemas

    def fault(self, name: str, text: bytes) -> str | None:
        """Return why a text is not valid, by keyword and place; None where it is, or where none is asked for."""
        from jsonschema_rs import ValidationError

        if name not in self._validators:
            return None
        if len(text) > MAX_BYTES:
            return f"it has {len(text):,} bytes, and at most {MAX_BYTES:,} are checked"
        try:
            self._validators[name].validate(json.loads(text))
        except ValidationError as error:
            return f"{error.kind.name} at {_pointer('', error.instance_path) or 'its root'}: {_said(error)}"
        except (ValueError, RecursionError) as error:
            return f"it cannot be read: {_said(error)}"
        return None


def _pointer(root: str, path: Sequence[str | int]) -> str:
    return "/".join([root, *(escaped(str(one)) for one in path)])


def _said(error: Exception) -> str:
    return str(getattr(error, "message", error)).split("\n")[0][:_LONGEST]
