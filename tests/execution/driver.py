"""Runs sequences on a decoder by hand: builds layouts, keeps block tables, picks the largest logit.

Knows just enough of paging to check the decoder without the engine. Blocks are dealt out in a scrambled order, so that
code that takes block numbers for positions fails.
"""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

import numpy as np

from inflight.execution.checkpoint import Checkpoint
from inflight.execution.decoder import Decoder
from inflight.execution.memory import kv_shape
from inflight.execution.ops import open_ops
from inflight.execution.ops.protocol import OpSet, Quantization, StepLayout
from inflight.execution.weights import load_weights
from inflight.models.registry import read_folder

BLOCK = 16


def op_sets() -> list[str]:
    """The op sets that this machine can run."""
    try:
        from inflight.execution.ops.native import available_isas

        return ["reference", *available_isas()]
    except ImportError:  # the kernels are not built
        return ["reference"]


class Driver:
    """A decoder, its arena, and the sequences that live in it."""

    def __init__(
        self,
        folder: Path,
        ops: OpSet,
        max_tokens: int = 256,
        num_blocks: int = 64,
        quantization: Quantization = "none",
    ) -> None:
        self.config = read_folder(folder, to_run=True)
        length = self.config.default_model_len
        weights = load_weights(self.config, Checkpoint(folder), ops, length, quantization=quantization)
        arena = ops.kv_arena(kv_shape(self.config, BLOCK), num_blocks)
        self.decoder = Decoder(self.config, weights, ops, arena, max_tokens, max_logit_rows=max_tokens)
        self.free = list(np.random.default_rng(3).permutation(num_blocks))

    @classmethod
    def of(cls, folder: Path, dtype: str, isa: str, quantization: Quantization = "none") -> Driver:
        ops = open_ops(dtype, threads=2, isa=isa)  # type: ignore[arg-type]
        return cls(folder, ops, quantization=quantization)

    def start(self, tokens: Sequence[int] | np.ndarray) -> Tracked:
        return Tracked([int(token) for token in tokens])

    def step(self, chunks: Sequence[tuple[Tracked, int]]) -> np.ndarray:
        """Computes the next n tokens of each (sequence, n). Returns the logits of all of them, float32[T, V]."""
        tokens: list[int] = []
        positions: list[int] = []
        offsets = [0]
        for sequence, count in chunks:
            end = sequence.computed + count
            while len(sequence.blocks) * BLOCK < end:
                sequence.blocks.append(int(self.free.pop()))
            tokens += sequence.tokens[sequence.computed : end]
            positions += range(sequence.computed, end)
            offsets.append(len(tokens))
        layout = StepLayout(
            np.array(positions, np.int32),
            np.array(offsets, np.int32),
            np.array([sequence.computed for sequence, _ in chunks], np.int32),
            self._tables([sequence for sequence, _ in chunks]),
        )
        self.decoder.forward(np.array(tokens, np.int32), layout)
        for sequence, count in chunks:
            sequence.computed += count
        return self.decoder.logits(np.arange(len(tokens))).copy()

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

    @staticmethod
    def _tables(sequences: Sequence[Tracked]) -> np.ndarray:
        tables = np.full((len(sequences), max(len(s.blocks) for s in sequences) + 1), 1_000_000, np.int32)
        for row, sequence in enumerate(sequences):
            tables[row, : len(sequence.blocks)] = sequence.blocks
        return tables


class Tracked:
    """Tokens, how many are computed, and the blocks that hold them."""

    def __init__(self, tokens: list[int]) -> None:
        self.tokens = tokens
        self.computed = 0
        self.blocks: list[int] = []
