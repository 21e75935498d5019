"""The plan of one step, and its result: all that passes between scheduler and executor.

A `BatchPlan` is complete. With the plans before it, it is enough to run the step in another process, to print it, to
record and replay it, and to predict its cost. Plans and results are frozen. They are msgspec structs, which are made
four times as fast as named tuples and are what record files hold.

An executor keeps one state per row between plans: the tokens of the sequence, its block table, its sampling settings,
and the recurrent state. `NewRequest` starts that state, chunks extend it, `freed_rows` ends it. The executor itself
appends a sampled token to its row, so that the next plan can be made before this one's result is known (depth 2). Rows
begin before anything is computed: a slot that one begins from may be written in the same step.

Drafts are guesses of the next tokens. They are computed behind the known tokens, each of their positions is sampled as
it would be without them, and a sampled token counts if the draft before it was right: the tokens are those of plain
decoding. The row keeps the sampled tokens.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any, Literal

from msgspec import Struct

from inflight.core.types.length_distribution import EndedOutput, PredictedLength
from inflight.core.types.sampling import Adapter, Grammar, PoolingParams, SamplingParams, TokenLogprob
from inflight.counted import Blocks, Count, Positive, Rows, Seconds, Slots, TransferId, Windows


class NewRequest(Struct, frozen=True, omit_defaults=True):
    """A sequence that takes a row: all that the executor needs besides its chunks.

    Attributes:
        row: Its row in the batch.
        token_ids: Every known token: the prompt, and after a preemption the output so far. A record leaves them out.
        prompt_length: Tokens of the prompt.
        params: Sampling settings.
        seed: Of its draws.
        sample_index: Number of the sample among those of the request.
        banned_token_ids: Not drawn while fewer than `params.min_tokens` output tokens exist.
        bad_token_ids: The last of each is not drawn behind the others.
        pooling: Settings of the vector that a chunk pools; None: no chunk pools.
        forced_token_ids: The output's first tokens, whatever is drawn; later tokens follow as if they had been drawn.
        snapshot: Slot of the recurrent state that the row begins with a copy of; its first chunk starts at the position
            where this was taken. -1: the state before any token.
        grammar: Grammar that the output follows.
        second_text_at: Position where the second text of a pair begins, of a model that distinguishes them; None: one
            text.
        adapter_slot: Slot of its adapter; -1: no adapter.
    """

    row: Count
    token_ids: tuple[int, ...] = ()
    prompt_length: Count = 0
    params: SamplingParams = SamplingParams()
    seed: int = 0
    sample_index: Count = 0
    banned_token_ids: tuple[int, ...] = ()
    bad_token_ids: tuple[tuple[int, ...], ...] = ()
    pooling: PoolingParams | None = None
    forced_token_ids: tuple[int, ...] = ()
    snapshot: int = -1
    grammar: Grammar | None = None
    second_text_at: int | None = None
    adapter_slot: int = -1


class Chunk(Struct, frozen=True, omit_defaults=True, gc=False):
    """Contiguous tokens of one sequence that a step computes.

    Attributes:
        sequence_id: Number of the sequence.
        row: Its row in the batch.
        start: First position.
        length: Number of positions: of a decode 1, and one more for each draft.
        new_blocks: Blocks appended to the row's table of the first KV group before the step, shared prefix blocks
            among them. `Capacity.num_blocks` stands for a block behind the window, which no query reads.
        sample: Number of positions, the chunk's last ones, at which a next token is drawn: none, one, or one more than
            drafts.
        score: Positions that yield the log-probability of the prompt token that follows them.
        draft_token_ids: Provisional tokens behind the known ones, at the chunk's end.
        pool: Whether the chunk, the sequence's last, yields its vector.
        window_blocks: As `new_blocks`, for each of the other KV groups.
        snapshots: Pairs (position, slot), rising, start < position ≤ start + length: the recurrent state as of
            `position` tokens is copied to the slot, in the middle of the chunk too. Positions are multiples of the
            block size.
        num_drafts: Number of provisional tokens at the chunk's end. Without `draft_token_ids` the executor drafts them
            itself, and may draft fewer: the chunk is then as much shorter.
    """

    sequence_id: Count
    row: Count
    start: Count
    length: Count
    new_blocks: tuple[Count, ...]
    sample: Count
    score: range = range(0)
    draft_token_ids: tuple[Count, ...] = ()
    pool: bool = False
    window_blocks: tuple[tuple[Count, ...], ...] = ()
    snapshots: tuple[tuple[Count, Count], ...] = ()
    num_drafts: Count = 0


TransferKind = Literal["store", "load", "send", "receive"]
HOST = "host"


class Transfer(Struct, frozen=True, omit_defaults=True, gc=False):
    """Copy of keys and values between blocks of the device and blocks elsewhere, one to one. Checkpoints of recurrent
    state are copied as the blocks of one more group.

    Attributes:
        transfer_id: Its number in the engine, by which the executor reports its end.
        kind: To a tier of memory (store) and back (load), to another engine (send) and from it (receive).
        tier: Name of the tier of memory, the folder or the peer. HOST is memory of this machine that the executor
            copies to by itself.
        blocks: Blocks of the device.
        remote_blocks: Their numbers in the tier.
        groups: KV group of each block; empty: all are of the first, or their group matters to neither side, as for
            copies to the host: all groups' blocks are of one pool. Of the group behind the last KV group (its number
            is that of `Capacity.windows`) the blocks are slots of checkpoints.
    """

    transfer_id: TransferId
    kind: TransferKind
    tier: str
    blocks: tuple[Count, ...]
    remote_blocks: tuple[int, ...]
    groups: tuple[Count, ...] = ()

    def units(self) -> Iterator[tuple[int, int]]:
        """Yield (group, block) of each block of the device."""
        return zip(self.groups or (0,) * len(self.blocks), self.blocks, strict=True)


class EarlySend(Struct, frozen=True, gc=False):
    """Blocks that this step completes and that a peer waits for.

    Their computed parts may travel while the rest is computed. The peer may use them once a transfer of the same
    blocks comes with a plan behind this step, and not otherwise. The fields are as in that transfer.
    """

    tier: str
    blocks: tuple[int, ...]
    remote_blocks: tuple[int, ...]


class AdapterLoad(Struct, frozen=True, omit_defaults=True):
    """Load of an adapter into a slot, whatever was there before; no row of the slot is alive.

    It goes on beside the steps, and its end is reported as a transfer's: their ids are of one count.
    """

    transfer_id: TransferId
    slot: Count
    adapter: Adapter


class Transferred(Struct, frozen=True, omit_defaults=True, gc=False):
    """End of a transfer, or of the load of an adapter.

    Attributes:
        transfer_id: Its id.
        error: A sentence where it failed; the content of its target blocks or its slot must not be used then.
    """

    transfer_id: TransferId
    error: str | None = None

    @property
    def is_mask(self) -> bool:
        """Whether this is no transfer, but the mask of a grammar that a draw waits for."""
        return self.transfer_id < 0


class BatchPlan(Struct, frozen=True, omit_defaults=True):
    """One step.

    Attributes:
        step: Its number.
        chunks: Tokens to compute.
        new_requests: Rows that are taken, after `freed_rows` are freed; a row may be in both.
        freed_rows: Rows that end. After a failed step they are listed again, since it may not have come to the
            executor; an executor ignores a row that it does not know.
        padding: Lengths of runs of token slots that carry no token and are computed all the same, one per padded row,
            as static and dynamic batching need.
        transfers: Begun with the step. Those of the host, where the executor's are not asynchronous, are done before
            it computes, in this order: a store may make room for a load, and for what the step writes. Those of other
            tiers go on beside the steps, on every device.
        held_back: Sequences that are left out although a step in flight samples their last token, so that they can be
            drafted for behind it. A record keeps them; an executor ignores them.
        adapter_loads: Begun with the step, which does not wait for them.
        early_sends: Blocks of the step that may travel while it is computed; an executor may ignore them.
        may_suspend: Whether the executor may suspend the step between two layers (`core.types.suspension`).
        within: Number of the suspended step within which this one, an interim step, is computed; it is committed first.
        ended: Outputs that have ended since the last plan, where a probe learns from them.
    """

    step: Count
    chunks: tuple[Chunk, ...]
    new_requests: tuple[NewRequest, ...] = ()
    freed_rows: tuple[Count, ...] = ()
    padding: tuple[Count, ...] = ()
    transfers: tuple[Transfer, ...] = ()
    held_back: tuple[Count, ...] = ()
    adapter_loads: tuple[AdapterLoad, ...] = ()
    early_sends: tuple[EarlySend, ...] = ()
    may_suspend: bool = False
    within: Count | None = None
    ended: tuple[EndedOutput, ...] = ()

    @property
    def tokens(self) -> int:
        """Token slots computed by the step, padding included."""
        return sum(chunk.length for chunk in self.chunks) + sum(self.padding)

    def copies(self, kind: TransferKind) -> list[tuple[int, int]]:
        """Return (device block, host block) of all transfers of a kind between these two, in order."""
        mine = (one for one in self.transfers if one.kind == kind and one.tier == HOST)
        return [pair for one in mine for pair in zip(one.blocks, one.remote_blocks, strict=True)]


class WaitUntil(Struct, frozen=True):
    """There is work, but it may not start before this time (seconds on the engine's clock)."""

    time: float


class WaitForTransfers(Struct, frozen=True):
    """Wait: a transfer or an adapter load in flight must end before anything can be computed or freed."""


class Sampled(Struct, frozen=True, gc=False):
    """Outcome of one sampling chunk.

    Attributes:
        sequence_id: Number of the sequence.
        token_ids: One token, or several when drafts were accepted: the right drafts, and the token that follows them.
        logprobs: Of these tokens, where the request asks for them.
        error: A sentence where nothing can be drawn; there are no tokens then, and the sequence ends alone.
        by_request: Whether the error is due to the request (a grammar, bans).
        forced_token_ids: Tokens that alone may follow by the sequence's grammar, as far as the executor knows.
        waits_for: Negative transfer_id: nothing was drawn, since the allowed tokens are not known yet; `Executor.poll`
            returns the id when they are. 0: it does not wait.
    """

    sequence_id: int
    token_ids: tuple[int, ...]
    logprobs: tuple[TokenLogprob, ...] | None = None
    error: str | None = None
    by_request: bool = False
    forced_token_ids: tuple[int, ...] = ()
    waits_for: int = 0


class Scored(Struct, frozen=True):
    """Outcome of one chunk's `score`: log-probabilities of prompt tokens, by position.

    Attributes:
        sequence_id: Number of the sequence.
        start: Index of the first token in the prompt.
        logprobs: One for each token.
        error: A sentence where there are none; the sequence's request ends then.
    """

    sequence_id: int
    start: int
    logprobs: tuple[TokenLogprob, ...]
    error: str | None = None


class Pooled(Struct, frozen=True):
    """Outcome of a pooling chunk.

    Attributes:
        sequence_id: Number of the sequence.
        vector: Embedding or scores.
        error: A sentence where there are none; the sequence's request ends then.
    """

    sequence_id: int
    vector: tuple[float, ...]
    error: str | None = None


class StepResult(Struct, frozen=True):
    """Result of a step.

    Attributes:
        step: Number of the plan.
        sampled: One entry per sampling chunk, in the plan's order.
        seconds: Duration of the step, without the time for which it was suspended.
        error: A sentence when the step could not be computed; the entries are empty then, and the plan's sequences
            fail.
        scored: One entry per scoring chunk, in the plan's order.
        transferred: Transfers that `Executor.poll` reported when the step had ended.
        pooled: One entry per pooling chunk, in the plan's order.
        draft_seconds: Part of `seconds` that the executor's own drafts took.
        out_of_memory: Whether the error was lack of memory; the step's sequences may then be computed again, from
            their beginning.
        undrafted: Sequences for which the executor's drafter made none of the drafts that the plan has, since it has
            to catch up first.
        suspended_at: Layers that were computed when the step was suspended, of all of its passes, for each time.
        lengths: Predictions of a probe of hidden states, of some of the sampling chunks.
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
    suspended_at: tuple[int, ...] = ()
    lengths: tuple[PredictedLength, ...] = ()


class Capacity(Struct, frozen=True, omit_defaults=True):
    """Limits of an executor.

    Attributes:
        num_blocks: KV blocks of the device.
        block_size: Tokens of a block, which holds positions of one KV group; the same size in each group.
        max_rows: Rows of the batch.
        max_model_len: Tokens of prompt and output together.
        vocab_size: Tokens of the vocabulary.
        host_blocks: Blocks of the host's memory.
        copy_seconds: Measured time to copy one block either way.
        asynchronous_transfers: Whether transfers to and from the host begin behind the steps before theirs, go on
            while steps compute, and end when `Executor.poll` reports them, as those of every other tier do. Otherwise
            they are done within their step, before it computes, and are not reported.
        embedding_size: Numbers of a pooled vector; 0: the model does not pool.
        windows: Of each KV group, the tokens that its layers look back over, themselves included; 0: all.
        state_snapshots: Slots for copies of a row's recurrent state; 0: the model has none.
        state_blocks: Blocks with as many bytes as such a copy, rounded up; 0: the model has none, or tiers have none.
        generates: Whether tokens can be drawn; otherwise the model only pools.
        encoder_only: Whether tokens attend to later ones, so that a prompt is computed in one step and blocks hold
            content within the step alone.
        adapter_slots: Adapters that rows can be computed with at a time.
    """

    num_blocks: Blocks
    block_size: Positive
    max_rows: Rows
    max_model_len: Positive
    vocab_size: Positive
    host_blocks: Blocks = 0
    copy_seconds: Seconds = 0.0
    asynchronous_transfers: bool = False
    embedding_size: Count = 0
    windows: Windows = (0,)
    state_snapshots: Slots = 0
    state_blocks: Count = 0
    generates: bool = True
    encoder_only: bool = False
    adapter_slots: Slots = 0

    @property
    def state_group(self) -> int:
        """Number that the recurrent state has among the groups of a transfer."""
        return len(self.windows)

    def num_moved(self, transfer: Transfer) -> int:
        """Return the blocks of a transfer by their bytes: a checkpoint counts as several."""
        states = transfer.groups.count(self.state_group)
        return len(transfer.blocks) + states * (max(1, self.state_blocks) - 1)


def encode_range(value: Any) -> list[int]:
    """Return what a message or a record holds for a chunk's `score`: the enc_hook of an encoder of plans."""
    if not isinstance(value, range):
        raise NotImplementedError(type(value))
    return [value.start, value.stop]


def decode_range(kind: type, value: Any) -> Any:
    """Return a chunk's `score` from what `encode_range` returned: the dec_hook of a decoder of plans."""
    if kind is not range:
        raise NotImplementedError(kind)
    if not (isinstance(value, list) and len(value) == 2 and all(type(one) is int and one >= 0 for one in value)):
        raise ValueError(f"Expected two positions, got {value!r}")
    return range(*value)
