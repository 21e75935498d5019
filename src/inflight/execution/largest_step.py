"""Measure the memory of the largest step there can be, before keys and values get theirs."""

from __future__ import annotations

from collections.abc import Sequence
from contextlib import AbstractContextManager, nullcontext

from msgspec import Struct

from inflight.core.types.plan import Capacity, Chunk, NewRequest
from inflight.core.types.sampling import SamplingParams
from inflight.execution.backends.protocol import Backend, KVShape, LayerState
from inflight.execution.batch.input_batch import InputBatch
from inflight.execution.device_faults import is_out_of_memory
from inflight.execution.memory import gib, memory_of
from inflight.execution.passes import Captures, PassDecoder, sample
from inflight.models.errors import ModelError

_BLOCKS = 2  # of the cache that it writes to, that of padding included
_ALL = SamplingParams(
    temperature=1.0, top_k=50, top_p=0.9, min_p=0.01, repetition_penalty=1.1, frequency_penalty=0.1, logprobs=20
)


class LargestStep(Struct, frozen=True):
    """tokens: of one pass. rows: that they are of. positions: of the longest sequence. layers: what recurrent ones
    keep."""

    tokens: int
    rows: int
    positions: int
    vocab_size: int
    shape: KVShape
    windows: tuple[int, ...]
    layers: Sequence[LayerState | None] = ()


def largest_step_bytes(
    decoder: PassDecoder,
    backend: Backend,
    step: LargestStep,
    alone: AbstractContextManager[None] | None = None,
) -> int:
    """Return the bytes that the step takes of the device's own memory; 0, without computing it, where that is the
    host's.

    Its rows are of no request: they read and write one block of padding, at the last positions that a sequence has,
    where attention takes most memory, and are drawn from with all that a draw can ask for.

    Args:
        decoder: Of the model.
        backend: Counts the memory (`Device.peak_bytes`).
        step: Its size.
        alone: Entered meanwhile, so that a device that computes with others waits for none.

    Raises:
        ModelError: The step does not fit beside what is there already.
    """
    if backend.own_memory() is None:
        return 0

    plain = decoder.uncaptured if isinstance(decoder, Captures) else decoder  # of what it takes, no graph is kept

    def run() -> None:
        with alone or nullcontext():
            _compute(plain, backend, step)

    try:
        return backend.peak_bytes(run)
    except Exception as error:
        if not is_out_of_memory(error):
            raise
        memory = memory_of(backend)
        raise ModelError(
            f"a step of {step.tokens:,} tokens, in {step.rows} sequences of up to {step.positions:,}, takes more than "
            f"the {gib(memory.available)} of {memory.limited_by}'s {gib(memory.total)} that weights leave; lower "
            "--max-num-batched-tokens, --max-num-seqs or --max-model-len."
        ) from error


def _compute(decoder: PassDecoder, backend: Backend, step: LargestStep) -> None:
    capacity = Capacity(1, step.shape.block_size, step.rows, step.positions, step.vocab_size, windows=step.windows)
    states = backend.state_cache(step.layers, step.rows + 1, 0) if step.layers else None
    batch: InputBatch = backend.input_batch(capacity, padding_block=1, states=states)
    cache = backend.kv_cache(step.shape, _BLOCKS)
    rows = list(range(step.rows))
    new = [NewRequest(row, (0,), 1, _ALL, seed=row, sample_index=0) for row in rows]
    batch.update((), new)
    batch.discard(rows)  # so that they need no blocks of their own
    chunks = [
        Chunk(-1, row, step.positions - length, length, (), 1)
        for row, length in enumerate(chunk_lengths(step.tokens, step.rows, step.positions))
    ]
    forward = backend.prepare(batch, cache, chunks)
    decoder.forward(forward)
    sample(decoder, forward, chunks)
    forward.finish().result()


def chunk_lengths(tokens: int, rows: int, positions: int) -> list[int]:
    """Split the tokens: one for each row, and the rest in as few rows as possible, like prompts beside decodes."""
    rest, found = max(0, tokens - rows), []
    for _ in range(min(rows, tokens)):
        more = min(rest, positions - 1)
        rest -= more
        found.append(1 + more)
    return found
