"""The plan of one step and what came of it: the only things that pass between scheduler and executor.

A `BatchPlan` is complete: with the plans before it, it is enough to run the step in another process, to print it,
to record and replay it, and to predict its cost. Nothing is written on a plan or a result after it is built. (What a
step has hundreds of is a named tuple, since those are made six times as fast as frozen dataclasses.)

What an executor keeps between plans is one state per row: the tokens of the sequence, its block table and its
sampling settings. `NewRow` starts that state, chunks extend it, `freed_rows` ends it. A sampled token is appended to
its row by the executor itself, so that the next plan can be made before this one's result is known (depth 2).

Drafts are guesses of the tokens to come. They are computed behind the known tokens as if they were these, every one of
their positions is sampled as it would be without them, and what was sampled counts as far as the draft before it was
right: the tokens are those of plain decoding. What the row keeps is what was sampled.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import NamedTuple, Protocol

from inflight.core.types.logprobs import TokenLogprob
from inflight.core.types.sampling import PoolingParams, SamplingParams


@dataclass(frozen=True, slots=True)
class NewRow:
    """A sequence takes a row: all that the executor must know of it besides its chunks.

    token_ids: every known token: the prompt, and after a preemption the output so far.
    banned_token_ids: may not be drawn while fewer than `params.min_tokens` output tokens exist.
    bad_token_ids: the last of each may not be drawn behind the others.
    pooling: what becomes of the hidden state that a chunk pools; None: none does.
    forced_token_ids: the output's first tokens, whatever is drawn; everything else goes on as if they had been.
    """

    row: int
    token_ids: tuple[int, ...]
    prompt_length: int
    params: SamplingParams
    seed: int
    sample_index: int
    banned_token_ids: tuple[int, ...] = ()
    bad_token_ids: tuple[tuple[int, ...], ...] = ()
    pooling: PoolingParams | None = None
    forced_token_ids: tuple[int, ...] = ()


class Chunk(NamedTuple):
    """The contiguous tokens of one sequence that this step computes.

    start, length: positions start … start + length - 1; a decode has length 1, and one more for each draft.
    new_blocks: appended to the row's block table before the step (shared prefix blocks come this way too).
    sample: at how many positions, the chunk's last ones, a next token is drawn: none, one, or one more than drafts.
    score: those positions of the chunk that yield the log-probability of the prompt token that follows them.
    draft_token_ids: provisional tokens behind the known ones, at the chunk's end.
    pool: whether the chunk's last position yields the sequence's vector.
    """

    sequence_id: int
    row: int
    start: int
    length: int
    new_blocks: tuple[int, ...]
    sample: int
    score: range = range(0)
    draft_token_ids: tuple[int, ...] = ()
    pool: bool = False


@dataclass(frozen=True, slots=True)
class BlockMoves:
    """Blocks copied before the step computes: first every (device block, host block) of `out`, then every (host block,
    device block) of `back`. What is copied out may make room for what comes back, never the other way round."""

    out: tuple[tuple[int, int], ...] = ()
    back: tuple[tuple[int, int], ...] = ()

    def __bool__(self) -> bool:
        return bool(self.out or self.back)


@dataclass(frozen=True, slots=True)
class BatchPlan:
    """One step. `freed_rows` are given up before `new_rows` are taken (a row may be in both). After a step that failed
    they are told again, since it may not have come to the executor: who knows nothing of such a row passes it over.

    padding: lengths of runs of token slots that carry nothing and are computed all the same, one per padded row: what
    static and dynamic batching insist on.
    """

    step: int
    chunks: tuple[Chunk, ...]
    new_rows: tuple[NewRow, ...] = ()
    freed_rows: tuple[int, ...] = ()
    padding: tuple[int, ...] = ()
    moves: BlockMoves = BlockMoves()

    @property
    def tokens(self) -> int:
        """Token slots computed by the step, padding included."""
        return sum(chunk.length for chunk in self.chunks) + sum(self.padding)


@dataclass(frozen=True, slots=True)
class WaitUntil:
    """There is work, but none may start before this time (seconds on the engine's clock)."""

    time: float


class Sampled(NamedTuple):
    """What one sampling chunk yielded: one token, or several when drafts were accepted: the drafts that were right, and
    the token that follows them.

    error: a sentence where its logits let nothing be drawn; then there are no tokens, and the sequence ends alone.
    """

    sequence_id: int
    token_ids: tuple[int, ...]
    logprobs: tuple[TokenLogprob, ...] | None = None
    error: str | None = None


@dataclass(frozen=True, slots=True)
class Scored:
    """What the `score` of one chunk yielded, position by position: log-probabilities of the prompt's tokens, the first
    one that of token `start`. error: a sentence where there is none to be had; then the sequence's request ends."""

    sequence_id: int
    start: int
    logprobs: tuple[TokenLogprob, ...]
    error: str | None = None


@dataclass(frozen=True, slots=True)
class Pooled:
    """What a pooling chunk yielded: the vector of its last position. error: a sentence where there is none to be had;
    then the sequence's request ends."""

    sequence_id: int
    vector: tuple[float, ...]
    error: str | None = None


@dataclass(frozen=True, slots=True)
class StepResult:
    """sampled, scored, pooled: one entry per sampling, scoring and pooling chunk, in the plan's order. seconds: how
    long the step took.

    error: a sentence when the step could not be computed; then they are empty and the plan's sequences fail.
    """

    step: int
    sampled: tuple[Sampled, ...]
    seconds: float
    error: str | None = None
    scored: tuple[Scored, ...] = ()
    pooled: tuple[Pooled, ...] = ()


@dataclass(frozen=True, slots=True)
class Capacity:
    """What an executor offers. block_size in tokens; max_model_len in tokens of prompt and output together.

    host_blocks: blocks of a second, larger memory to swap to. copy_seconds: measured time to copy one block either way.
    embedding_size: numbers of a pooled vector; 0: nothing is pooled.
    """

    num_blocks: int
    block_size: int
    max_rows: int
    max_model_len: int
    vocab_size: int
    host_blocks: int = 0
    copy_seconds: float = 0.0
    embedding_size: int = 0


class Pending(Protocol):
    def result(self) -> StepResult:
        """Wait for the step; never raises for a failed step (see `StepResult.error`)."""


class Executor(Protocol):
    """What turns plans into results. Real, simulated, remote and null executors are the same to the engine."""

    @property
    def capacity(self) -> Capacity: ...

    def submit(self, plan: BatchPlan) -> Pending: ...

    def close(self) -> None: ...
