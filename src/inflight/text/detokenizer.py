"""Convert token ids to text, one token at a time, as soon as later tokens cannot change the text."""

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
    """The growing text of one output: what decoding prompt and output together adds to decoding the prompt alone.

    The cost of a token does not depend on the length of the output. If a run of byte-fallback tokens is not valid
    UTF-8, the library returns U+FFFD for every byte, even for complete characters; here complete characters stay, since
    a stream has sent them already. `tokenizers.decoders.DecodeStream` is not used: it withholds all text that ends in
    U+FFFD, even if the model wrote it, cannot be flushed, and repeats the prompt's text if that ends within a
    character.
    """

    __slots__ = ("_decoder", "_pieces", "_previous", "_prompt_marks", "_skipped")

    def __init__(
        self,
        tokenizer: Tokenizer,
        prompt_token_ids: Sequence[int] = (),
        skip_special_tokens: bool = True,
        shown_token_ids: Collection[int] = (),
    ) -> None:
        """Start after a prompt, which decides whether the first token keeps its leading space.

        Args:
            tokenizer: The model's tokenizer.
            prompt_token_ids: That the output continues.
            skip_special_tokens: Omit special tokens from the text.
            shown_token_ids: Special tokens that are not omitted.
        """
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
        """Take one token; return the text that is final by now: whole characters, or none yet."""
        if token_id in self._skipped:
            return ""
        piece = self._pieces.after(token_id, self._previous)
        if piece is None:
            return ""
        self._previous = token_id
        return self._with_marks(self._decoder.decode(piece))

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
        """Return the rest at the output's end: U+FFFD for an incomplete character."""
        return self._with_marks(self._decoder.decode(b"", True))

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

    def _with_marks(self, text: str) -> str:
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
