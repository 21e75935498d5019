"""Whether a model can draft for another, and how its keys and values lie in the other's blocks.

Knows both models' shapes; no weights, and no tokenizers (who opens the engine compares these).
"""

from __future__ import annotations

from inflight.execution.backends.protocol import KVShape
from inflight.execution.kv_groups import one_group
from inflight.execution.memory import kv_shape
from inflight.execution.states import states_of
from inflight.models.errors import ModelError
from inflight.models.spec import ModelSpec


def check_pair(model: ModelSpec, draft: ModelSpec, windows: tuple[int, ...]) -> None:
    """windows: of the model's KV groups. Raises ModelError, with the numbers, for models that do not go together."""
    if states := states_of(draft):
        raise ModelError(
            f"{sum(one is not None for one in states)} of {len(states)} layers of the draft model {draft.name} keep a "
            "recurrent state, which cannot be taken back behind drafts that were wrong; take a draft model without."
        )
    if draft.vocab_size != model.vocab_size:
        raise ModelError(
            f"the draft model {draft.name} has a vocabulary of {draft.vocab_size:,} tokens, and {model.name} one of "
            f"{model.vocab_size:,}, so that a draft would mean another text; take a draft model of the same vocabulary."
        )
    if windows[0]:
        raise ModelError(
            f"every layer of {model.name} looks back over {max(windows):,} tokens at most, and blocks behind that are "
            f"given up, which the draft model {draft.name} would need; set --max-model-len {max(windows)} or less, or "
            "--speculation suffix."
        )


def draft_kv_shape(draft: ModelSpec, shape: KVShape) -> KVShape:
    """Return the shape of the draft model's keys and values in blocks of the model's shape: all layers in those of the
    first KV group, which keep every position, so that missing positions can be computed at any time."""
    return kv_shape(draft, shape.block_size, shape.quantized, one_group(draft))
