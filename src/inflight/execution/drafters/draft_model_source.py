"""A draft model before it drafts: whether it goes together with the model, and its shape, weights and memory."""

from __future__ import annotations

from dataclasses import dataclass

from inflight.core.types.plan import Capacity
from inflight.execution.backends.protocol import Backend, KVShape
from inflight.execution.computing import KernelModel
from inflight.execution.drafters.draft_kv import DraftKV
from inflight.execution.drafters.draft_model import DraftModel
from inflight.execution.kv.kv_groups import one_group
from inflight.execution.memory import kv_shape, states_of
from inflight.execution.packer import Progress
from inflight.execution.passes import PassDecoder
from inflight.models.errors import ModelError
from inflight.models.spec import ModelSpec


def check_pair(model: ModelSpec, draft: ModelSpec, windows: tuple[int, ...]) -> None:
    """Check that a model can draft for another; their tokenizers are compared elsewhere. windows: of the model's KV
    groups. Raises ModelError for models that do not go together."""
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
            f"released, which the draft model {draft.name} would need; set --max-model-len {max(windows)} or less, or "
            "--speculation suffix."
        )


def draft_kv_shape(draft: ModelSpec, shape: KVShape) -> KVShape:
    """Return the shape of the draft model's keys and values in blocks of the model's shape: all layers in those of the
    first KV group, which keep every position, so that missing positions can be computed at any time."""
    return kv_shape(draft, shape.block_size, shape.quantized, one_group(draft))


@dataclass(frozen=True, slots=True)
class DraftModelSource:
    """A `DrafterSource`. shape: of its keys and values. max_positions and the others: as of the model's decoder."""

    computed: KernelModel
    shape: KVShape
    max_positions: int
    max_tokens: int
    max_logit_rows: int

    @classmethod
    def of(
        cls,
        computed: KernelModel,
        model: ModelSpec,
        shape: KVShape,
        windows: tuple[int, ...],
        max_positions: int,
        max_tokens: int,
        max_logit_rows: int,
    ) -> DraftModelSource:
        """shape, windows: of the model's blocks and KV groups. Raises ModelError for models that do not go together."""
        check_pair(model, computed.spec, windows)
        return cls(computed, draft_kv_shape(computed.spec, shape), max_positions, max_tokens, max_logit_rows)

    @property
    def name(self) -> str:
        return DraftModel.name

    @property
    def reason(self) -> str:
        return f"{self.computed.spec.name}, {self.computed.parameters / 1e6:,.1f} M parameters"

    def load(self, backend: Backend, decoder: PassDecoder, progress: Progress | None) -> LoadedDraftModel:
        """Load the draft model; its packing has a progress of its own."""
        own = self.computed.decoder(backend, self.max_positions, self.max_tokens, self.max_logit_rows, progress)
        return LoadedDraftModel(own, backend, self.shape)


@dataclass(frozen=True, slots=True)
class LoadedDraftModel:
    """A `LoadedDrafter`."""

    decoder: PassDecoder
    backend: Backend
    shape: KVShape

    @property
    def bytes_per_block(self) -> int:
        return self.backend.bytes_per_block(self.shape)

    def start(self, capacity: Capacity) -> DraftModel:
        return DraftModel(self.decoder, self.backend, DraftKV(self.backend, self.shape, capacity))
