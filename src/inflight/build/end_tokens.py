"""The tokens that end an answer: which of those that a model's files name the model can draw.

Knows where they are named; that they end an answer, `core.stopping` knows.
"""

from __future__ import annotations

import logging

from msgspec import Struct
from msgspec.structs import replace

from inflight.config.setting import Resolved
from inflight.models.spec import ModelSpec
from inflight.text import Tokenizer

log = logging.getLogger(__name__)


class EndTokens(Struct, frozen=True):
    """Ids that end an answer, where they were found, and those named that the model cannot draw."""

    ids: frozenset[int]
    source: str
    dropped: tuple[int, ...]

    def resolved(self) -> Resolved:
        value = ", ".join(map(str, sorted(self.ids))) or "none"
        dropped = ", ".join(map(str, self.dropped))
        return Resolved(value, f"{self.source}, without {dropped}: not in the vocabulary" if dropped else self.source)


def find_end_tokens(model: ModelSpec, tokenizer: Tokenizer | None) -> EndTokens:
    """What the model's files name; the tokenizer's end token only where they name none that there is. An id outside
    the vocabulary can never be drawn, and banning it (`min_tokens`) would break the steps of everybody beside it."""
    named = tokenizer.eos_token_id if tokenizer is not None else None
    ends = EndTokens(frozenset(), "none: answers end by their length and by stop rules of their own", ())
    for source, ids in (("as the model's files say", model.end_token_ids), ("the tokenizer's", (named,))):
        known = {one for one in ids if one is not None}
        usable = frozenset(one for one in known if 0 <= one < model.vocab_size)
        ends = replace(ends, dropped=(*ends.dropped, *sorted(known - usable - {*ends.dropped})))
        if usable:
            ends = replace(ends, ids=usable, source=source)
            break
    if ends.dropped:
        log.warning(
            "The model's files name end tokens that its vocabulary of %d tokens does not have (%s); they are left out.",
            model.vocab_size,
            ", ".join(map(str, ends.dropped)),
        )
    return ends
