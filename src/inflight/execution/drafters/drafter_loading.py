"""From a setting to a drafter inside of the executor: what is known and checked first, what is loaded, what drafts.

Knows the order, which is that of the model it drafts for: shapes before weights, weights before the size of the KV
cache, and that before anything is computed.
"""

from __future__ import annotations

from typing import Protocol

from inflight.core.types.plan import Capacity
from inflight.execution.backends.protocol import Backend
from inflight.execution.drafters.step_drafting import StepDrafter
from inflight.execution.packer import Progress
from inflight.execution.passes import PassDecoder


class LoadedDrafter(Protocol):
    """With its weights in memory. bytes_per_block: that it keeps beside what the model keeps in a KV block."""

    @property
    def bytes_per_block(self) -> int: ...

    def start(self, capacity: Capacity) -> StepDrafter:
        """With memory for all blocks of the capacity, padding's and the host's."""


class DrafterSource(Protocol):
    """A drafter whose shapes fit the model's. name: as the drafter's. reason: a description of the drafter."""

    @property
    def name(self) -> str: ...

    @property
    def reason(self) -> str: ...

    def load(self, backend: Backend, decoder: PassDecoder, progress: Progress | None) -> LoadedDrafter:
        """Load the drafter. decoder: of the model. Raises ModelError for weights that are missing, others', or too
        large."""
