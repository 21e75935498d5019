"""Features of a plan: the numbers that its cost is a function of."""

from __future__ import annotations

from msgspec import Struct

from inflight.core.types.plan import HOST, BatchPlan
from inflight.counted import Amount, Count


class Features(Struct, frozen=True, gc=False):
    """Size of a step."""

    tokens: Count  # token slots computed, padding included
    rows: Count  # chunks and padded rows
    samples: Count  # positions whose logits are computed, to draw the next token or to score the one that follows
    decode_context: Count  # Σ of positions read by decodes, however many drafts they have
    # Σ length · (start + length / 2) over longer chunks, the query-key pairs of their attention, and such pairs of
    # drafts.
    prefill_context: Amount
    moved_blocks: Count = 0  # copied between the device and its host; other transfers take no time of the step
    prompt_chunks: Count | None = None  # longer chunks and padding; None: not counted, as in older records

    @property
    def has_prompts(self) -> bool:
        """Whether a row computes a prompt. Where they were not counted, pairs of drafts are taken for a prompt's."""
        return self.prefill_context > 0 if self.prompt_chunks is None else self.prompt_chunks > 0


def features(plan: BatchPlan) -> Features:
    tokens = samples = decode_context = prompts = 0
    prefill_context = 0.0
    for chunk in plan.chunks:
        tokens += chunk.length
        samples += chunk.sample + len(chunk.score)
        if chunk.length == 1 + chunk.num_drafts:
            decode_context += chunk.start + 1
            if chunk.num_drafts:
                prefill_context += chunk.num_drafts * (chunk.start + 1 + (chunk.num_drafts + 1) / 2)
        else:
            prompts += 1
            prefill_context += chunk.length * (chunk.start + chunk.length / 2)
    for length in plan.padding:
        tokens += length
        prompts += length > 1
        prefill_context += length * (length / 2)
    rows = len(plan.chunks) + len(plan.padding)
    moved = sum(len(one.blocks) for one in plan.transfers if one.tier == HOST) if plan.transfers else 0
    return Features(tokens, rows, samples, decode_context, prefill_context, moved, prompts)
