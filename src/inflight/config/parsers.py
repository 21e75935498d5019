"""Settings of the parsers of a model's answers, with a server and without."""

from __future__ import annotations

from dataclasses import dataclass

from inflight.config.setting import one_of, setting


@dataclass(frozen=True, slots=True, kw_only=True)
class ParserSettings:
    tool_parser: str = setting(
        "auto",
        "Format of the model's tool calls: a name, package.module:Class, none; auto: by template, family, or generic.",
        "Parsers of answers",
        flags=("--tool-parser", "--tool-call-parser"),
    )
    reasoning_parser: str = setting(
        "auto", "Format of the model's reasoning: a name, none; auto: by template and family."
    )

    def __post_init__(self) -> None:
        """Check the names, for which the formats are imported only where one is given. Raises SettingsError."""
        of_no_format = ("auto", "none")
        if self.tool_parser in of_no_format and self.reasoning_parser in of_no_format:
            return
        from inflight.frontend.parsers.registry import REASONING_NAMES, TOOL_FORMATS

        if ":" not in self.tool_parser:
            one_of("tool_parser", self.tool_parser, (*TOOL_FORMATS, *of_no_format), more="package.module:Class")
        one_of("reasoning_parser", self.reasoning_parser, (*REASONING_NAMES, *of_no_format))
