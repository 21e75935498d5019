"""Heads before they draft: where they lie, whether they can be computed here, their weights.

`mtp` and `eagle3` read the two layouts.
"""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path

from inflight.core.types.plan import Capacity
from inflight.execution.backends.protocol import Backend, KVShape
from inflight.execution.checkpoints.checkpoint import Checkpoint
from inflight.execution.computing import KernelModel
from inflight.execution.drafters.heads.eagle3 import load_eagle3
from inflight.execution.drafters.heads.head_decoder import HeadDecoder
from inflight.execution.drafters.heads.head_drafter import HeadDrafter, HeadPasses
from inflight.execution.drafters.heads.mtp import check_mtp, load_mtp
from inflight.execution.drafters.heads.recent_hidden import RecentHidden
from inflight.execution.memory import states_of
from inflight.execution.model import Model
from inflight.execution.packer import Progress
from inflight.execution.passes import Captures, PassDecoder
from inflight.models.eagle3 import read_eagle3
from inflight.models.errors import ModelError


@dataclass(frozen=True, slots=True)
class HeadsSource:
    """A `DrafterSource`. computed: the model. folder: of a head of its own; None: in the model's checkpoint. shape: of
    the model's blocks. max_rows: sequences at once. max_positions and the others: as of the model's decoder."""

    computed: KernelModel
    folder: Path | None
    shape: KVShape
    max_positions: int
    max_rows: int
    max_tokens: int
    max_logit_rows: int

    def check(self, windows: tuple[int, ...]) -> None:
        """windows: of the model's KV groups. Raises ModelError, before anything is loaded, for heads that are not
        there, are of another model, or cannot be computed here."""
        model = self.computed.spec
        if states := states_of(model):
            raise ModelError(
                f"{sum(one is not None for one in states)} of {len(states)} layers of {model.name} keep a recurrent "
                "state, which cannot be taken back behind drafts that were wrong; leave --speculation out."
            )
        if windows[0]:
            raise ModelError(
                f"every layer of {model.name} looks back over {max(windows):,} tokens at most, and blocks behind that "
                f"are given up, which heads would need; set --max-model-len {max(windows)} or less, or --speculation "
                "suffix."
            )
        if self.folder is None:
            check_mtp(model, self._checkpoint())
        else:
            read_eagle3(self.folder, model)

    @property
    def name(self) -> str:
        return "mtp" if self.folder is None else "eagle3"

    @property
    def reason(self) -> str:
        return "layers of the model's own checkpoint" if self.folder is None else f"the head in {self.folder}"

    def load(self, backend: Backend, decoder: PassDecoder, progress: Progress | None) -> LoadedHeads:
        of_model = decoder.uncaptured if isinstance(decoder, Captures) else decoder
        assert isinstance(of_model, Model), "models of other modules than ours have no heads"
        model, weights, how = self.computed.spec, of_model.weights, self.computed
        if self.folder is None:
            head = load_mtp(model, weights, self._checkpoint(), backend, how.quantization, how.group_size)
        else:
            head = load_eagle3(
                self.folder, model, weights, backend, self.max_positions, how.quantization, how.group_size
            )
        own = HeadDecoder(head, backend, model.hidden_size, self.max_tokens, self.max_logit_rows)
        taps = of_model.taps(head.taps)
        recent = RecentHidden(backend, taps, model.hidden_size, self.max_rows + 1, of_model.max_tokens)
        passes: HeadPasses = own
        if how.graphs.rows:
            from inflight.execution.backends.torch.opening import captured_passes

            passes = captured_passes(own, backend)
        return LoadedHeads(own, passes, recent, backend, head.kv_shape(self.shape.block_size, self.shape.quantized))

    def _checkpoint(self) -> Checkpoint:
        """Open the model's checkpoint. Raises ModelError for weights that can have no heads."""
        how = self.computed
        if how.load_format == "dummy" or not isinstance(how.files, Path):
            what = "random weights" if how.load_format == "dummy" else "a GGUF file"
            raise ModelError(
                f"heads in a model's own checkpoint are read of safetensors, not of {what}; take --speculation suffix "
                "or draft:MODEL."
            )
        return Checkpoint(how.files)


@dataclass(frozen=True, slots=True)
class LoadedHeads:
    """A `LoadedDrafter`. shape: of the head's own blocks."""

    decoder: HeadDecoder
    passes: HeadPasses
    recent: RecentHidden
    backend: Backend
    shape: KVShape

    @property
    def bytes_per_block(self) -> int:
        return self.backend.bytes_per_block(self.shape)

    def start(self, capacity: Capacity) -> HeadDrafter:
        cache = self.backend.kv_cache(self.shape, capacity.num_blocks + 1, capacity.host_blocks)
        return HeadDrafter(self.decoder, self.passes, self.recent, self.backend, cache, capacity)
