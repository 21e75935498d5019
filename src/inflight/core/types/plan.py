"""The plan of one step and what came of it: the only things that pass between scheduler and executor.

A `BatchPlan` is complete: with the plans before it, it is enough to run the step in another process, to print it,
to record and replay it, and to predict its cost. Nothing is written on a plan or a result after it is built. (What a
step has hundreds of is a named tuple, since those are made six times as fast as frozen dataclasses.)

What an executor keeps between plans is one state per row: the tokens of the sequence, its block table, its sampling
settings, and what recurrent layers keep of it. `NewRequest` starts that state, chunks extend it, `freed_rows` ends it.
A sampled token is appended to its row by the executor itself, so that the next plan can be made before this one's
result is known (depth 2). Rows begin before anything is computed: a slot that one begins from may be written in the
same step.

Drafts are guesses of the tokens to come. They are computed behind the known tokens as if they were these, every one of
their positions is sampled as it would be without them, and what was sampled counts as far as the draft before it was
right: the tokens are those of plain decoding. What the row keeps is what was sampled.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal, NamedTuple, Protocol

from msgspec import Struct

from inflight.core.types.sampling import Adapter, Grammar, PoolingParams, SamplingParams, TokenLogprob


@dataclass(frozen=True, slots=True)
class NewRequest:
    """A sequence takes a row: all that the executor must know of it besides its chunks.

    token_ids: every known token: the prompt, and after a preemption the output so far.
    banned_token_ids: may not be drawn while fewer than `params.min_tokens` output tokens exist.
    bad_token_ids: the last of each may not be drawn behind the others.
    pooling: what becomes of the hidden state that a chunk pools; None: none does.
    forced_token_ids: the output's first tokens, whatever is drawn; everything else goes on as if they had been.
    grammar: what the output is to follow.
    second_text_at: where the second text of a pair begins, of a model that tells the two apart; None: there is one.
    adapter_slot: whose adapter changes what is computed for it; -1: none does.
    snapshot: of a model with recurrent state the slot that the row's state begins as a copy of; its first chunk starts
        at the position that this was taken at. -1: with the state before any token.
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
    snapshot: int = -1
    grammar: Grammar | None = None
    second_text_at: int | None = None
    adapter_slot: int = -1


class Chunk(NamedTuple):
    """The contiguous tokens of one sequence that this step computes.

    start, length: positions start … start + length - 1; a decode has length 1, and one more for each draft.
    new_blocks: appended to the row's block table before the step (shared prefix blocks come this way too); of several,
        to that of the first KV group. window_blocks: to those of the other groups, one after the other.
        `Capacity.num_blocks` stands in the place of a block that is behind the window, which nobody reads.
    sample: at how many positions, the chunk's last ones, a next token is drawn: none, one, or one more than drafts.
    score: those positions of the chunk that yield the log-probability of the prompt token that follows them.
    draft_token_ids: provisional tokens behind the known ones, at the chunk's end.
    num_drafts: how many provisional tokens the chunk ends with. Without `draft_token_ids` the executor drafts them
        itself, and may draft fewer: then the chunk is as much shorter.
    pool: whether the chunk, which is the sequence's last, yields its vector.
    snapshots: (position, slot), rising, start < position ≤ start + length: the recurrent state as of `position` tokens
        is copied to the slot, in the middle of the chunk too. Positions are multiples of the block size.
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
    window_blocks: tuple[tuple[int, ...], ...] = ()
    snapshots: tuple[tuple[int, int], ...] = ()
    num_drafts: int = 0


TransferKind = Literal["store", "load", "send", "receive"]
HOST = "host"


class Transfer(NamedTuple):
    """Keys and values that are copied between blocks of the device and blocks elsewhere, one to one.

    transfer_id: its number in the engine, by which the executor tells what became of it. kind: to a tier of memory and
    back (store, load), to and from another engine (send, receive). tier: a name: of a tier of memory, of a folder, or
    of a peer; HOST is memory of this machine that the executor copies to by itself. remote_blocks: as that tier numbers
    them.
    """

    transfer_id: int
    kind: TransferKind
    tier: str
    blocks: tuple[int, ...]
    remote_blocks: tuple[int, ...]


class EarlySend(NamedTuple):
    """Blocks that this step completes and other engines are to have: what of them is computed may travel while the rest
    is. Whoever has it may use it once a transfer hands over the same blocks, with a plan behind this step, and not if
    none does. tier, blocks, remote_blocks: as in that transfer."""

    tier: str
    blocks: tuple[int, ...]
    remote_blocks: tuple[int, ...]


class AdapterLoad(NamedTuple):
    """An adapter that takes a slot, whatever was there before; no row of the slot is alive. It is loaded beside the
    steps, and what became of it is told as of a transfer: their ids are of one count."""

    transfer_id: int
    slot: int
    adapter: Adapter


class Transferred(NamedTuple):
    """What became of a transfer, or of the load of an adapter. error: a sentence where it failed; what its target
    blocks or its slot hold is not to be used."""

    transfer_id: int
    error: str | None = None


@dataclass(frozen=True, slots=True)
class BatchPlan:
    """One step. `freed_rows` are given up before `new_requests` are taken (a row may be in both). After a step that
    failed they are told again, since it may not have come to the executor: who knows nothing of such a row passes it
    over.

    padding: lengths of runs of token slots that carry nothing and are computed all the same, one per padded row: what
    static and dynamic batching insist on.

    transfers: begun with the step. Those of the host, where the executor's are not asynchronous, are done before it
    computes, in this order: what is stored may make room for what is loaded, and for what the step writes. Those of
    other tiers go on beside the steps, on every device.

    held_back: numbers of sequences that are left out, although a step in flight samples their last token: they are
    drafted for behind it. A record tells them; an executor does not look.

    adapter_loads: begun with the step, which does not wait for them.

    early_sends: what of the step's blocks may travel while it computes them; an executor need not look.
    """

    step: int
    chunks: tuple[Chunk, ...]
    new_requests: tuple[NewRequest, ...] = ()
    freed_rows: tuple[int, ...] = ()
    padding: tuple[int, ...] = ()
    transfers: tuple[Transfer, ...] = ()
    held_back: tuple[int, ...] = ()
    adapter_loads: tuple[AdapterLoad, ...] = ()
    early_sends: tuple[EarlySend, ...] = ()

    @property
    def tokens(self) -> int:
        """Token slots computed by the step, padding included."""
        return sum(chunk.length for chunk in self.chunks) + sum(self.padding)

    def copies(self, kind: TransferKind) -> list[tuple[int, int]]:
        """Device block and the host's of all transfers of a kind between these two, in order."""
        mine = (one for one in self.transfers if one.kind == kind and one.tier == HOST)
        return [pair for one in mine for pair in zip(one.blocks, one.remote_blocks, strict=True)]


class WaitUntil(Struct, frozen=True):
    """There is work, but none may start before this time (seconds on the engine's clock)."""

    time: float


class WaitForTransfers(Struct, frozen=True):
    """Nothing can be computed or given back before a transfer, or the load of an adapter, that is out has ended."""


class Sampled(NamedTuple):
    """What one sampling chunk yielded: one token, or several when drafts were accepted: the drafts that were right, and
    the token that follows them.

    error: a sentence where its logits let nothing be drawn; then there are no tokens, and the sequence ends alone.
    by_request: it is what the request asks (a grammar, bans) that lets nothing be drawn.
    forced_token_ids: what the sequence's grammar lets follow alone, as far as the executor knows it.
    waits_for: nothing was drawn, since what may be drawn is not known yet; `Executor.poll` returns this transfer_id,
    which is negative, when it is. 0: it waits for nothing.
    """

    sequence_id: int
    token_ids: tuple[int, ...]
    logprobs: tuple[TokenLogprob, ...] | None = None
    error: str | None = None
    by_request: bool = False
    forced_token_ids: tuple[int, ...] = ()
    waits_for: int = 0


class Scored(Struct, frozen=True):
    """What the `score` of one chunk yielded, position by position: log-probabilities of the prompt's tokens, the first
    one that of token `start`. error: a sentence where there is none to be had; then the sequence's request ends."""

    sequence_id: int
    start: int
    logprobs: tuple[TokenLogprob, ...]
    error: str | None = None


@dataclass(frozen=True, slots=True)
class Pooled:
    """What a pooling chunk yielded: the numbers that are told of its text. error: a sentence where there is none to be
    had; then the sequence's request ends."""

    sequence_id: int
    vector: tuple[float, ...]
    error: str | None = None


@dataclass(frozen=True, slots=True)
class StepResult:
    """sampled, scored, pooled: one entry per sampling, scoring and pooling chunk, in the plan's order. seconds: how
    long the step took. draft_seconds: the part of them that the executor's own drafts took. undrafted: numbers of the
    sequences for which its drafter made none of the drafts that the plan has, since it is to catch up first.

    error: a sentence when the step could not be computed; then they are empty and the plan's sequences fail.
    out_of_memory: the reason of the error was that memory was short, and what the step was to compute may be computed
    anew, from the beginning of its sequences.
    transferred: what `Executor.poll` told when the step had ended.
    """

    step: int
    sampled: tuple[Sampled, ...]
    seconds: float
    error: str | None = None
    scored: tuple[Scored, ...] = ()
    transferred: tuple[Transferred, ...] = ()
    pooled: tuple[Pooled, ...] = ()
    draft_seconds: float = 0.0
    out_of_memory: bool = False
    undrafted: tuple[int, ...] = ()


@dataclass(frozen=True, slots=True)
class Capacity:
    """What an executor offers. block_size in tokens; max_model_len in tokens of prompt and output together.

    host_blocks: blocks of a second, larger memory to swap to. copy_seconds: measured time to copy one block either way.
    asynchronous_transfers: transfers to and from the host begin behind the steps before theirs, go on while steps
    compute, and end when `Executor.poll` says so, as those of every other tier do; otherwise they are done within
    their step, before it computes, and nothing is told of them.
    embedding_size: numbers of a pooled vector; 0: nothing is pooled. windows: of each KV group, the tokens that its
    layers look back over, themselves included; 0: all. A block holds positions of one group, and is of the same size
    for each. state_snapshots: slots for copies of a row's recurrent state; 0: the model has none. generates: whether
    tokens can be drawn; otherwise vectors are all that there is. encoder_only: tokens see those behind them, so that a
    prompt is computed in one step or not at all; blocks hold something within the step alone. adapter_slots: adapters
    that rows can be computed with at a time.
    """

    num_blocks: int
    block_size: int
    max_rows: int
    max_model_len: int
    vocab_size: int
    host_blocks: int = 0
    copy_seconds: float = 0.0
    asynchronous_transfers: bool = False
    embedding_size: int = 0
    windows: tuple[int, ...] = (0,)
    state_snapshots: int = 0
    generates: bool = True
    encoder_only: bool = False
    adapter_slots: int = 0


class Pending(Protocol):
    def result(self) -> StepResult:
        """Wait for the step; never raises for a failed step (see `StepResult.error`)."""


class Executor(Protocol):
    """What turns plans into results. Real, simulated, remote and null executors are the same to the engine."""

    @property
    def capacity(self) -> Capacity: ...

    def submit(self, plan: BatchPlan) -> Pending: ...

    def poll(self, seconds: float = 0.0) -> tuple[Transferred, ...] | None:
        """Asynchronous transfers that have ended since the last call, in any order; waits for one so long, where none
        has. None: none is under way. Each that was begun is told once, whatever became of its step, within a finite
        time."""

    def close(self) -> None: ...
