"""Token ids to text, one token at a time.

Knows when bytes have become text that later tokens cannot change. Does not know what a token's bytes are (`pieces`)
or what a stop string is (`stream`).

What comes out, all of it joined, is what decoding the prompt and the output together has more than decoding the prompt
alone. There is one deliberate difference from the library, with byte-fallback tokens: of a run of them that is not
valid UTF-8 the library gives U+FFFD for every byte, whole characters included. Here whole characters stand; a
stream has delivered them already, and an answer cut off within an emoji should not lose the newline before it.

Why not `tokenizers.decoders.DecodeStream`: it holds back all text that ends in U+FFFD, for as long as it does, even if
the model wrote that; it cannot be flushed at the end; and it gives the prompt's text again where a prompt ends within a
character.
"""

from __future__ import annotations

import codecs
from collections.abc import Collection, Sequence
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from inflight.text.tokenizer import Tokenizer

REPLACEMENT = "\ufffd"
# How Python's surrogateescape spells bytes that are no part of any character: one mark for each.
_ESCAPED_BYTES = {0xDC00 + byte: REPLACEMENT for byte in range(0x80, 0x100)}
# At most three bytes of the prompt can wait for their character's last one; the token before gives their context.
_CONTEXT_TOKENS = 4


class IncrementalDetokenizer:
    """The text of one output as it grows. Cost per token does not depend on how long the output or its lines are."""

    __slots__ = ("_decoder", "_pieces", "_previous", "_prompt_marks", "_skipped")

    def __init__(
        self,
        tokenizer: Tokenizer,
        prompt_token_ids: Sequence[int] = (),
        skip_special_tokens: bool = True,
        shown_token_ids: Collection[int] = (),
    ) -> None:
        """Begin after a prompt, which decides whether the first token keeps its leading space. shown_token_ids: special
        tokens that are text all the same."""
        self._pieces = tokenizer.pieces
        self._skipped = tokenizer.special_token_ids if skip_special_tokens else frozenset()
        if shown_token_ids:
            self._skipped = self._skipped.difference(shown_token_ids)
        self._previous: int | None = None
        self._decoder = codecs.getincrementaldecoder("utf-8")(
            "surrogateescape" if self._pieces.marks_each_byte else "replace"
        )
        self._prompt_marks = ""
        self._enter(prompt_token_ids)

    def push(self, token_id: int) -> str:
        """Take one token and give the text that is certain by now: whole characters, or nothing yet."""
        if token_id in self._skipped:
            return ""
        piece = self._pieces.after(token_id, self._previous)
        if piece is None:
            return ""
        self._previous = token_id
        return self._settle(self._decoder.decode(piece))

    def marks_before(self, token_id: int) -> int:
        """Return how many characters of what `push` would give for this token are marks for bytes of earlier tokens,
        which it does not go on with; 0 where it completes their character."""
        pending: bytes = self._decoder.getstate()[0]
        piece = None if not pending or token_id in self._skipped else self._pieces.after(token_id, self._previous)
        if piece is None:
            return 0
        try:
            codecs.utf_8_decode(pending + piece, "strict", False)
        except UnicodeDecodeError as fault:
            marks = len(pending) if self._pieces.marks_each_byte else 1
            return 0 if fault.start else max(0, marks - len(self._prompt_marks))
        return 0

    def flush(self) -> str:
        """Give what is left when the output has ended: U+FFFD for a character that was never completed."""
        return self._settle(self._decoder.decode(b"", True))

    def _enter(self, prompt_token_ids: Sequence[int]) -> None:
        """Read the prompt's last tokens, so that the first of the output continues them."""
        context: list[int] = []
        for token_id in reversed(prompt_token_ids):
            if token_id not in self._skipped and self._pieces.inside(token_id) is not None:
                context.append(token_id)
                if len(context) == _CONTEXT_TOKENS:
                    break
        for token_id in reversed(context):
            self.push(token_id)
        # A prompt of token ids may end within a character. If the output completes it, the character is the output's;
        # if not, its marks are the prompt's.
        state = self._decoder.getstate()
        self._prompt_marks = self.flush()
        self._decoder.setstate(state)

    def _settle(self, text: str) -> str:
        """Write marks for bytes that are no character, less those that belong to the prompt."""
        if text.isascii() and not self._prompt_marks:
            return text
        text = text.translate(_ESCAPED_BYTES)
        if text and self._prompt_marks:
            shared = 0
            while shared < min(len(text), len(self._prompt_marks)) and text[shared] == REPLACEMENT:
                shared += 1
            text, self._prompt_marks = text[shared:], ""
        return text
