"""Convert structured-output parameters, named as in vLLM's Python API, to a grammar.

The engine checks schemas when it gets the request.
"""

from __future__ import annotations

import json as json_text
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, fields
from typing import Any

from inflight.core.types.sampling import Grammar, InvalidSampling
from inflight.core.types.sampling import SamplingParams as EngineParams
from inflight.counted import quoted

_FORMS = ("json", "regex", "choice", "grammar", "json_object", "structural_tag")


@dataclass(frozen=True, slots=True, kw_only=True)
class StructuredOutputsParams:
    """The form of an output; exactly one attribute is set.

    Attributes:
        json: A JSON schema, as an object or its text.
        regex: Matches the whole output.
        choice: The output is one of these texts.
        grammar: In Lark or GBNF.
        json_object: True: any JSON object.
        structural_tag: Free text with structures in it, as {"structures": [{"begin": …, "schema": …, "end": …}],
            "triggers": […]} or its text.
    """

    json: str | Mapping[str, Any] | None = None
    regex: str | None = None
    choice: Sequence[str] | None = None
    grammar: str | None = None
    json_object: bool | None = None
    structural_tag: str | Mapping[str, Any] | None = None

    def __post_init__(self) -> None:
        given = [name for name in _FORMS if getattr(self, name) not in (None, False)]
        if len(given) != 1:
            names = ", ".join(given) or "nothing"
            raise InvalidSampling(f"structured_outputs says {names}; give one of {', '.join(_FORMS)}.")
        if isinstance(self.choice, str):
            raise InvalidSampling(f"choice is {quoted(self.choice)}; give a list of texts.")

    def to_grammar(self) -> Grammar:
        if self.json is not None:
            return Grammar("json_schema", _text(self.json))
        if self.regex is not None:
            return Grammar("regex", self.regex)
        if self.choice is not None:
            return Grammar("choice", _text(list(self.choice)))
        if self.grammar is not None:
            return Grammar("lark", self.grammar)
        if self.structural_tag is not None:
            return Grammar("structural_tag", _text(self.structural_tag))
        return Grammar("json_object")


@dataclass(frozen=True, slots=True, kw_only=True)
class SamplingParams(EngineParams):
    """The engine's sampling parameters, and optionally the form of the output."""

    structured_outputs: StructuredOutputsParams | None = None


def split(params: EngineParams) -> tuple[EngineParams, Grammar | None]:
    """Return the engine's sampling parameters, and the grammar."""
    if not isinstance(params, SamplingParams):
        return params, None
    plain = EngineParams(**{one.name: getattr(params, one.name) for one in fields(EngineParams)})
    return plain, None if params.structured_outputs is None else params.structured_outputs.to_grammar()


def _text(value: object) -> str:
    return value if isinstance(value, str) else json_text.dumps(value)
