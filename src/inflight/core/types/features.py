"""What a plan costs is a function of the plan alone; these are the numbers it is a function of.

Read by the adaptive strategy, admission, preemption by cost and the simulator; fitted by `calibrate`.
"""

from __future__ import annotations

from dataclasses import dataclass

from inflight.core.types.plan import HOST, BatchPlan


@dataclass(frozen=True, slots=True)
class Features:
    """tokens: token slots computed, padding included. rows: chunks and padded rows. samples: positions whose logits are
    computed (the output projection), to draw the next token or to score the one that follows. decode_context: Σ of
    positions read by decodes, whatever drafts they have. prefill_context: Σ length · (start + length / 2) over longer
    chunks, the query-key pairs of their attention, and such pairs of drafts. moved_blocks: copied between the device
    and its host; what goes to other places and comes from there takes no time of the step."""

    tokens: int
    rows: int
    samples: int
    decode_context: int
    prefill_context: float
    moved_blocks: int = 0


def features(plan: BatchPlan) -> Features:
    tokens = samples = decode_context = 0
    prefill_context = 0.0
    for chunk in plan.chunks:
        tokens += chunk.length
        samples += chunk.sample + len(chunk.score)
        if chunk.length == 1 + chunk.num_drafts:
            decode_context += chunk.start + 1
            if chunk.num_drafts:
                prefill_context += chunk.num_drafts * (chunk.start + 1 + (chunk.num_drafts + 1) / 2)
        else:
            prefill_context += chunk.length * (chunk.start + chunk.length / 2)
    for length in plan.padding:
        tokens += length
        prefill_context += length * (length / 2)
    rows = len(plan.chunks) + len(plan.padding)
    moved = sum(len(one.blocks) for one in plan.transfers if one.place == HOST)
    return Features(tokens, rows, samples, decode_context, prefill_context, moved)
