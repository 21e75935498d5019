"""Tables in Markdown."""

from __future__ import annotations

from collections.abc import Iterable, Sequence

_ESCAPED = str.maketrans({"|": "\\|", "<": "&lt;", "\n": " "})


def cell(words: str) -> str:
    """Words that are no Markdown of ours."""
    return words.translate(_ESCAPED)


def table(head: Sequence[str], rows: Iterable[Sequence[str]]) -> str:
    lines = [head, ["---"] * len(head), *rows]
    return "\n".join(f"| {' | '.join(line)} |" for line in lines)
