"""A draft model before it drafts: its files, its shape in the model's blocks, its weights.

Knows what is made of a `KernelModel` and in which order; which models go together, `draft_model_pair` knows.
"""

from __future__ import annotations

from dataclasses import dataclass

from inflight.core.types.plan import Capacity
from inflight.execution.backends.protocol import Backend, KVShape
from inflight.execution.computing import KernelModel
from inflight.execution.drafters.draft_kv import DraftKV
from inflight.execution.drafters.draft_model import DraftModel
from inflight.execution.drafters.draft_model_pair import check_pair, draft_kv_shape
from inflight.execution.packer import Progress
from inflight.execution.passes import PassDecoder
from inflight.models.spec import ModelSpec


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
