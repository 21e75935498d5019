"""Texts drawn under a grammar, with llguidance and a vocabulary of bytes, marks and words."""

from __future__ import annotations

import random
from collections.abc import Mapping, Sequence

import llguidance
import llguidance.numpy
import numpy as np

from inflight.core.types.sampling import Grammar

END = 256
_WORDS = (
    '"',
    "'",
    "},",
    "}}",
    "]",
    "\n",
    " ",
    "1",
    "true",
    "null",
    "None",
    "Par",
    "is",
    "é",
    "😀",
    "\\n",
    "-7",
    "name",
)


class ByteGrammar:
    """marks: texts that are tokens of their own; special: those of them that are special tokens, with their ids behind
    the bytes and the end."""

    def __init__(self, grammar: Grammar, marks: Sequence[str] = (), special: Sequence[str] = ()):
        assert grammar.kind == "lark"
        self.source = grammar.source
        self._texts = [*(bytes([number]) for number in range(256)), b"<end>"]
        self._texts += [mark.encode() for mark in special]
        self._is_special = {END, *range(END + 1, len(self._texts))}
        self._texts += [text.encode() for text in (*_WORDS, *(mark for mark in marks if mark not in special))]
        self._tokenizer = llguidance.LLTokenizer(
            llguidance.TokenizerWrapper(_Vocabulary(self._texts, self._is_special))
        )

    def accepts(self, token_ids: Sequence[int]) -> bool:
        matcher = self._matcher()
        return bool(matcher.validate_tokens([*token_ids, END]) == len(token_ids) + 1)

    def accepts_text(self, text: str) -> bool:
        return self.accepts(self.token_ids(text))

    def token_ids(self, text: str) -> list[int]:
        """Bytes, and special tokens."""
        ids: list[int] = []
        left = text.encode()
        while left:
            found = next((one for one in self._is_special - {END} if left.startswith(self._texts[one])), left[0])
            ids.append(found)
            left = left[len(self._texts[found]) :]
        return ids

    def drawn(self, chance: random.Random, most: int = 500, ends: float = 0.3) -> str | None:
        """Draw a complete text; None if it has no end within `most` tokens. ends: probability to end where it may."""
        matcher, output = self._matcher(), b""
        bits = llguidance.numpy.allocate_token_bitmask(1, len(self._texts))
        for number in range(most):
            llguidance.numpy.fill_next_token_bitmask(matcher, bits, 0)
            assert not matcher.get_error(), matcher.get_error()
            allowed = np.flatnonzero(np.unpackbits(bits.view(np.uint8), bitorder="little")[: len(self._texts)]).tolist()
            assert allowed, "the grammar has come to a dead end"
            long = [one for one in allowed if one > END]
            if END in allowed and (len(allowed) == 1 or number > most // 2 or chance.random() < ends):
                return output.decode()
            others = [one for one in allowed if one != END]
            choice = chance.choice(long if long and chance.random() < 0.8 else others)
            assert matcher.consume_token(choice)
            output += self._texts[choice]
        return None

    def _matcher(self) -> llguidance.LLMatcher:
        matcher = llguidance.LLMatcher(self._tokenizer, llguidance.grammar_from("lark", self.source), log_level=0)
        assert not matcher.get_error(), f"{matcher.get_error()}\n{self.source}"
        return matcher


def special_ids(marks: Sequence[str]) -> Mapping[str, int]:
    return {mark: END + 1 + number for number, mark in enumerate(marks)}


class _Vocabulary:
    eos_token_id, bos_token_id = END, None

    def __init__(self, tokens: Sequence[bytes], special: set[int]):
        self.tokens, self.special_token_ids = tuple(tokens), tuple(sorted(special))

    def __call__(self, text: str | bytes) -> list[int]:
        return list(text if isinstance(text, bytes) else text.encode())
