"""Configuration files: settings by their long option names, each with its reason as a comment beside it.

In the form that `inflight serve --config FILE.toml` reads. Knows TOML's strings; not what the options mean.
"""

from __future__ import annotations

import json
from collections.abc import Iterable, Mapping

from inflight.config.setting import Resolved

WIDTH = 118


def configuration(options: Mapping[str, Resolved], about: Iterable[str] = ()) -> str:
    """about: sentences for the top of the file."""
    lines = [line for sentence in about for line in _comment(sentence)]
    for name, resolved in options.items():
        lines += ["", *_comment(resolved.reason), f"{name} = {_value(resolved.value)}"]
    return "\n".join(lines).strip("\n") + "\n"


def _value(value: str | int | float | bool) -> str:
    return json.dumps(value) if isinstance(value, str | bool) else repr(value)


def _comment(sentence: str) -> list[str]:
    lines, line = [], "#"
    for word in sentence.split():
        if len(line) + 1 + len(word) > WIDTH and line != "#":
            lines.append(line)
            line = "#"
        line += " " + word
    return [*lines, line]
