"""Compute a model by a backend's kernels over packed weights; `transformers` is the other way."""

from __future__ import annotations

from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Literal, Protocol

from inflight.cpus import ThreadCpus
from inflight.execution.backends import open_backend
from inflight.execution.backends.protocol import Backend, Device, DType, Quantization
from inflight.execution.checkpoints.checkpoint import ModuleTensors, open_checkpoint
from inflight.execution.checkpoints.dummy import DummyWeights
from inflight.execution.graphs import NO_GRAPHS, GraphLimits
from inflight.execution.model import Model
from inflight.execution.packer import Progress, TensorSource
from inflight.execution.parallel.shards import Member
from inflight.execution.passes import PassDecoder
from inflight.execution.weights import ModelWeights, load_weights
from inflight.models.arithmetic import parameters
from inflight.models.gguf.gguf_model import GGUFModel
from inflight.models.spec import ModelSpec

if TYPE_CHECKING:
    from inflight.execution.parallel.ranks import Ranks

LoadFormat = Literal["auto", "dequantize", "dummy"]


class ComputedModel(Protocol):
    @property
    def spec(self) -> ModelSpec: ...

    @property
    def parameters(self) -> int: ...

    @property
    def graphs(self) -> GraphLimits:
        """Which steps are replayed as graphs."""

    def open_backend(self, dtype: DType, threads: int, cpus: ThreadCpus) -> Device:
        """Open the backend. Raises ImportError or ValueError where its kernels are missing or do not run here."""

    def decoder(
        self, backend: Device, max_positions: int, max_tokens: int, max_logit_rows: int, progress: Progress | None
    ) -> PassDecoder:
        """Load the weights and return a decoder over them. max_positions: of the longest sequence; the others as in
        `Model`. Raises ModelError for weights that are missing, belong to another model, or do not fit."""


@dataclass(frozen=True, slots=True)
class KernelModel:
    """A model that a backend's kernels compute."""

    spec: ModelSpec
    files: Path | GGUFModel  # a folder or a GGUF file
    load_format: LoadFormat
    quantization: Quantization
    group_size: int  # inputs that share a scale where plain matrices become int4
    seed: int
    device: str = "cpu"  # or "cuda:0" and the like
    graphs: GraphLimits = NO_GRAPHS
    batch_invariant: bool = False  # on a GPU: by operations whose bits for a row do not depend on the rows beside
    member: Member | None = None  # of several processes that compute it together
    ranks: Ranks | None = None  # these, once they have met

    @property
    def held(self) -> ModelSpec:
        """Return the part of the model that this process computes: all, or one device's shard."""
        return self.spec if self.member is None else self.member.shard.spec

    @property
    def parameters(self) -> int:
        return parameters(self.spec)

    def open_backend(self, dtype: DType, threads: int, cpus: ThreadCpus) -> Device:
        if self.ranks is None:
            return open_backend(
                dtype,
                threads,
                cpus=cpus,
                device=self.device,
                graphs=self.graphs,
                batch_invariant=self.batch_invariant,
            )
        from inflight.execution.backends.torch.opening import open_device

        return open_device(dtype, self.device, threads, self.graphs, self.ranks, self.batch_invariant)

    def decoder(
        self, backend: Device, max_positions: int, max_tokens: int, max_logit_rows: int, progress: Progress | None
    ) -> PassDecoder:
        assert isinstance(backend, Backend)
        dummy = self.load_format == "dummy"
        source: TensorSource = (
            DummyWeights(backend.dtype, self.seed, self.spec.weight_format, backend.packs_fp8)
            if dummy
            else open_checkpoint(self.files, backend.packs_fp8, self.load_format == "dequantize")
        )
        if not dummy and isinstance(self.files, Path):
            source = ModuleTensors(source, self.files)
        weights = self._weights(source, backend, max_positions, progress)
        decoder = Model(self.held, weights, backend, max_tokens, max_logit_rows)
        if self.graphs == NO_GRAPHS:
            return decoder
        from inflight.execution.backends.torch.opening import captured

        return captured(decoder, backend)

    def _weights(
        self, source: TensorSource, backend: Backend, max_positions: int, progress: Progress | None
    ) -> ModelWeights:
        shard = None if self.member is None else self.member.shard
        load = partial(load_weights, self.spec, source, backend, max_positions, progress)
        weights = load(self.quantization, self.group_size, shard=shard)
        return weights if shard is None else weights.with_partial_sums()
