"""Describe the model's tokens for llguidance."""

from __future__ import annotations

from collections.abc import Mapping
from typing import TYPE_CHECKING

from msgspec import Struct, field

if TYPE_CHECKING:
    from llguidance import LLTokenizer


class Vocabulary(Struct, frozen=True):
    """tokenizer: as tokenizer.json has it. size: of the model's logits, which may be padded. end_token_ids: may be
    drawn where a grammar may end, and nowhere else; at least one. plain: ids of added tokens that are text too,
    by their texts. special: ids of those that no text matches."""

    tokenizer: str
    tokens: int
    size: int
    end_token_ids: tuple[int, ...]
    plain: Mapping[str, int] = field(default_factory=dict)
    special: Mapping[str, int] = field(default_factory=dict)

    def for_llguidance(self) -> LLTokenizer:
        from llguidance import LLTokenizer

        return LLTokenizer(self.tokenizer, n_vocab=max(self.tokens, self.size), eos_token=list(self.end_token_ids))
