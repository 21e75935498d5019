"""Runs sequences on a decoder by hand: keeps tokens and block tables, picks the largest logit.

Knows just enough of paging to check the decoder without the engine. Blocks are dealt out in a scrambled order, so that
code that takes block numbers for positions fails.
"""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np

from inflight.core.types.plan import Capacity, Chunk, NewRequest
from inflight.core.types.sampling import SamplingParams
from inflight.execution.adapters import AdapterMatrices
from inflight.execution.backends import open_backend
from inflight.execution.backends.protocol import Backend, Quantization
from inflight.execution.batch.input_batch import InputBatch
from inflight.execution.checkpoints.checkpoint import Checkpoint
from inflight.execution.checkpoints.lora_files import LoraFiles
from inflight.execution.memory import kv_shape, states_of
from inflight.execution.model import Model
from inflight.execution.parallel.shards import Shard
from inflight.execution.weights import load_weights
from inflight.models.registry import read_folder

BLOCK = 16
ROWS, SNAPSHOTS, SLOTS = 16, 8, 3


def backends() -> list[str]:
    """The backends that this machine can run."""
    try:
        from inflight.execution.backends.native import available_isas

        return ["reference", *available_isas()]
    except ImportError:  # the kernels are not built
        return ["reference"]


class Driver:
    """A decoder, its KV cache, and the sequences that live in it."""

    def __init__(
        self,
        folder: Path,
        backend: Backend,
        max_tokens: int = 256,
        num_blocks: int = 64,
        quantization: Quantization = "none",
        quantized_kv: bool = False,
        fp8_kv: bool = False,
        shard: Shard | None = None,
    ) -> None:
        whole = read_folder(folder, to_run=True)
        self.config = whole if shard is None else shard.spec
        length = max(self.config.default_model_len, self.config.max_position_embeddings)  # longrope: the long factors
        weights = load_weights(
            whole, Checkpoint(folder, backend.packs_fp8), backend, length, quantization=quantization, shard=shard
        )
        weights = weights if shard is None else weights.with_partial_sums()
        self.decoder = Model(self.config, weights, backend, max_tokens, max_logit_rows=max_tokens)
        self.adapters = AdapterMatrices(whole, weights.weight_slices)
        self._backend = backend
        self._cache = backend.kv_cache(kv_shape(self.config, BLOCK, quantized_kv, is_fp8=fp8_kv), num_blocks)
        capacity = Capacity(
            num_blocks, BLOCK, ROWS, 1024, self.config.vocab_size, state_snapshots=SNAPSHOTS, adapter_slots=SLOTS
        )
        states = states_of(self.config)
        cache = backend.state_cache(states, ROWS + 1, SNAPSHOTS) if states else None
        self._state = backend.input_batch(capacity, 0, cache)
        self._free_rows = list(range(ROWS))
        self.free = list(np.random.default_rng(3).permutation(num_blocks))

    @classmethod
    def of(cls, folder: Path, dtype: str, isa: str, quantization: Quantization = "none") -> Driver:
        backend = open_backend(dtype, threads=1 if isa == "torch" else 2, isa=isa)  # type: ignore[arg-type]
        return cls(folder, backend, quantization=quantization)

    def start(self, tokens: Sequence[int] | np.ndarray) -> Tracked:
        return Tracked([int(token) for token in tokens])

    def step(self, chunks: Sequence[tuple[Tracked, int]], snapshots: Sequence[tuple[int, int]] = ()) -> np.ndarray:
        """Computes the next n tokens of each (sequence, n). Returns the logits of all of them, float32[T, V].
        snapshots: (position, slot) of the first one's state."""
        new, given = [], []
        for sequence, count in chunks:
            first, end = len(sequence.blocks), sequence.computed + count
            while len(sequence.blocks) * BLOCK < end:
                sequence.blocks.append(int(self.free.pop()))
            if sequence.row < 0:
                sequence.row, first, tokens = self._free_rows.pop(0), 0, tuple(sequence.tokens)
                settings = (len(tokens), SamplingParams(), 0, 0)
                new.append(
                    NewRequest(
                        sequence.row,
                        tokens,
                        *settings,
                        snapshot=sequence.snapshot,
                        adapter_slot=sequence.adapter_slot,
                    )
                )
            else:
                extend(self._state, sequence)
            sequence.known, row = len(sequence.tokens), sequence.row
            due = tuple(snapshots) if sequence is chunks[0][0] else ()
            blocks = tuple(sequence.blocks[first:])
            given.append(Chunk(row, row, sequence.computed, count, blocks, False, snapshots=due))
        self._state.update(given, new)
        self.batch = self._backend.prepare(self._state, self._cache, given)
        self.decoder.forward(self.batch)
        for sequence, count in chunks:
            sequence.computed += count
        return self.logits(range(sum(count for _, count in chunks)))

    def load(self, slot: int, folder: Path) -> None:
        """An adapter takes the slot."""
        files = LoraFiles(folder)
        self.adapters.check(files)
        packed = self._backend.pack_adapter(self.adapters.deltas(files))
        assert packed.nbytes > 0
        self._state.set_adapter(slot, packed)

    def logits(self, places: Sequence[int]) -> np.ndarray:
        """After the tokens at these places of the last step."""
        logits: Any = self.decoder.logits(self.batch, list(places))
        array = logits.tensor.cpu().numpy() if hasattr(logits, "tensor") else logits.array
        return np.array(array[: len(places)])

    def prefill(self, sequence: Tracked, chunk: int) -> np.ndarray:
        """Computes all that the sequence has not, in steps of up to `chunk` tokens. Logits of every position."""
        parts = []
        while sequence.computed < len(sequence.tokens):
            parts.append(self.step([(sequence, min(chunk, len(sequence.tokens) - sequence.computed))]))
        return np.concatenate(parts)

    def greedy(self, prompt: np.ndarray, count: int, chunk: int = 32) -> list[int]:
        sequence = self.start(prompt)
        for _ in range(count):
            logits = self.prefill(sequence, chunk)
            sequence.tokens.append(int(np.argmax(logits[-1])))
        self.end(sequence)
        return sequence.tokens[len(prompt) :]

    def end(self, sequence: Tracked) -> None:
        self.free += sequence.blocks
        if sequence.row >= 0:
            self._free_rows.append(sequence.row)


def extend(batch: InputBatch, sequence: Tracked) -> None:
    """Append the sequence's tokens since the last step, as if they had been drawn."""
    said = sequence.tokens[sequence.known :]
    positions = np.arange(sequence.known - 1, len(sequence.tokens) - 1)
    batch.keep(np.full(len(said), sequence.row), positions, np.array(said, np.int32))
    if batch.mirror is not None and said:
        import torch

        batch.mirror.tokens[sequence.row, sequence.known : len(sequence.tokens)] = torch.tensor(said, dtype=torch.int32)


class Tracked:
    """Tokens, how many are computed, and the blocks that hold them. row: −1 before the first step. snapshot: of which
    its state begins as a copy."""

    def __init__(self, tokens: list[int]) -> None:
        self.tokens = tokens
        self.computed = self.known = 0
        self.blocks: list[int] = []
        self.row = self.snapshot = self.adapter_slot = -1
