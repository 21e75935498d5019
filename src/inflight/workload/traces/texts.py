"""How many tokens a text has: counted where a tokenizer is given, estimated where not, and said which."""

from __future__ import annotations

from collections.abc import Callable

from inflight.workload.traces.rows import Rows

BYTES_PER_TOKEN = 4  # of UTF-8: about what vocabularies of 32,000 to 150,000 tokens have for English prose


class TextLengths:
    def __init__(self, count_tokens: Callable[[str], int] | None):
        self._count = count_tokens
        self._used = False

    def tokens(self, text: str) -> int:
        self._used = True
        if self._count is not None:
            return self._count(text)
        return -(-len(text.encode("utf-8", "replace")) // BYTES_PER_TOKEN)

    def tell(self, rows: Rows) -> None:
        if self._used and self._count is None:
            rows.note(
                f"Lengths of texts are estimated at one token for {BYTES_PER_TOKEN} bytes of UTF-8, since no tokenizer "
                "was given; other languages than English, and code, have more tokens than that."
            )
