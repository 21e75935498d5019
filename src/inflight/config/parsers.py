"""Settings of the parsers of a model's answers, with a server and without."""

from __future__ import annotations

from dataclasses import dataclass

from inflight.config.setting import setting


@dataclass(frozen=True, slots=True, kw_only=True)
class ParserSettings:
    """Parsers by name."""

    tool_parser: str = setting(
        "auto",
        "Format of the model's tool calls: a name, package.module:Class, none; auto: by template, family, or generic.",
        "Parsers of answers",
        flags=("--tool-parser", "--tool-call-parser"),
    )
    reasoning_parser: str = setting(
        "auto", "Format of the model's reasoning: a name, none; auto: by template and family."
    )
