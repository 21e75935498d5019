"""Frames: what is drawn, a tenth of a second or more at a time. Typed, as they travel: JSON that the page reads.

Each frame stands for itself: what ran between its start and its end, and how things were at its end. So a viewer that
missed some has a gap, and nothing else is wrong. What there are hundreds of (runs, steps, holders) is written as
arrays. Times are seconds on the engine's clock.
"""

from __future__ import annotations

from typing import Annotated, Final

import msgspec
from msgspec import Meta, Struct

from inflight.records.computed import Work

VERSION: Final = 1
WORKS: Final = (Work.PREFILL, Work.DECODE, Work.RECOMPUTE, Work.PADDING, Work.IDLE)  # a run's `work` is a place in this
# In a map of blocks, where no sequence's number stands. MOVING: a copy to or from another tier holds it.
FREE, EVICTABLE, SHARED, OTHERS, MOVING = -3, -2, -1, -4, -5


class Run(Struct, frozen=True, array_like=True):
    """What a row did for one sequence, in one stretch."""

    row: int
    sequence: int
    work: Annotated[int, Meta(ge=0, le=4)]
    start: float
    end: float
    tokens: int


class StepPoint(Struct, frozen=True, array_like=True):
    """A step, or several in a row where there are many. seconds: as the executor measured them; predicted: what the
    scheduler's model of step time made of them before (0: it did not know yet). Token slots by what they were for."""

    start: float
    end: float
    seconds: float
    predicted: float
    steps: Annotated[int, Meta(ge=1)]
    prompt: int
    decode: int
    recomputed: int
    padding: int
    rejected: int


class RequestInfo(Struct, frozen=True, omit_defaults=True):
    """One sample of a request, when it is first seen to run or to wait in front. Targets are seconds; 0: none.
    mine: of a tenant's view, whether it is theirs; what is another's has no names."""

    number: int
    request_id: str = ""
    lane: str = ""
    tenant: str = ""
    arrival: float = 0.0
    prompt_tokens: int = 0
    ttft_target: float = 0.0
    itl_target: float = 0.0
    mine: bool = True


class Account(Struct, frozen=True, omit_defaults=True):
    """Where a request's time went, in milliseconds, as `records.timings` has it; of one that lives, until now."""

    queue: float
    prefill: float
    decode: float
    preempted: float
    other: float
    total: float
    ttft: float | None = None
    cached_tokens: int = 0
    recomputed_tokens: int = 0
    queued_by: dict[str, float] = {}
    queued_behind: dict[str, float] = {}


class Ended(Struct, frozen=True, omit_defaults=True):
    """A request that has ended. info: of its first sample. account: None in a view that is not to see it."""

    info: RequestInfo
    reason: str
    at: float
    output_tokens: int = 0
    account: Account | None = None


class Holder(Struct, frozen=True, array_like=True):
    """How far a running sequence is. blocks: that it holds, shared: of these, with others."""

    number: int
    row: int
    tokens: int
    computed: int
    blocks: int
    shared: int


class LanePart(Struct, frozen=True, omit_defaults=True):
    """A lane's queue. stands_for: what it stands still for, behind: the lane that has most of that. first: numbers of
    some that wait, oldest: seconds that the first of these has waited. apart: how many of the waiting stand apart, and
    for what (adapter, kv)."""

    name: str
    waiting: int = 0
    running: int = 0
    stands_for: str = ""
    behind: str = ""
    first: list[int] = []
    oldest: float = 0.0
    apart: dict[str, int] = {}


class TierPart(Struct, frozen=True, omit_defaults=True):
    """Blocks beyond the device, on its host or in a folder. blocks: that there are, or have room. map: as in
    `BlocksPart`; a sequence's number: it was preempted, and comes back for it; EVICTABLE: kept while nobody needs the
    room; OTHERS: of other models. kept, wanted, moving, others: how many of each."""

    blocks: int
    kept: int = 0
    wanted: int = 0
    moving: int = 0
    others: int = 0
    map: list[int] = []
    per_cell: int = 1


class BlocksPart(Struct, frozen=True, omit_defaults=True):
    """Blocks at the frame's end. held: shared ones once, and those that are moving, of which only a copy to or from
    another tier holds them. map: of all blocks in order, in runs: what a block is (FREE, EVICTABLE, SHARED, MOVING or a
    sequence's number), how many cells of that; empty where it is as it was, or not sent in this frame. per_cell: blocks
    of one cell, the last one may have fewer. host, disk: the tiers behind, where there are any and the map is sent."""

    held: int = 0
    shared: int = 0
    evictable: int = 0
    free: int = 0
    on_host: int = 0
    map: list[int] = []
    per_cell: int = 1
    moving: int = 0
    host: TierPart | None = None
    disk: TierPart | None = None


class Latencies(Struct, frozen=True, omit_defaults=True):
    """Over the last seconds, from how many; percentiles in seconds. met: of those with a target, as many kept it."""

    count: int = 0
    p50: float = 0.0
    p95: float = 0.0
    with_target: int = 0
    met: int = 0


class Rates(Struct, frozen=True, omit_defaults=True):
    """Over the last `seconds`, per second."""

    seconds: float = 0.0
    prompt_tokens: float = 0.0
    output_tokens: float = 0.0
    requests: float = 0.0
    ttft: Latencies = Latencies()
    itl: Latencies = Latencies()


class Member(Struct, frozen=True, omit_defaults=True):
    """One of several engines: a replica, or a model of a pool. state: in words, where one is told."""

    name: str
    state: str = ""
    running: int = 0
    waiting: int = 0
    blocks: int = 0
    held_blocks: int = 0
    output_tokens_per_s: float = 0.0


class Frame(Struct, frozen=True, omit_defaults=True, tag="frame"):
    """number: rises by one. engine: of which it tells, where there are several. requests: seen for the first time.
    preempted: sequences that lost their rows. accepted: of chunks with drafts, how many had none of them right, one,
    two, … holders: where the map is told. lost: what a ring that was full has dropped."""

    number: int
    start: float
    end: float
    steps: list[StepPoint] = []
    runs: list[Run] = []
    lanes: list[LanePart] = []
    blocks: BlocksPart | None = None
    holders: list[Holder] = []
    requests: list[RequestInfo] = []
    preempted: list[int] = []
    ended: list[Ended] = []
    rates: Rates = Rates()
    drafted: int = 0
    accepted: list[int] = []
    members: list[Member] = []
    lost: int = 0
    engine: str = ""


class Setting(Struct, frozen=True, omit_defaults=True):
    """One setting in force, as text, and why."""

    name: str
    value: str
    reason: str = ""


class Hello(Struct, frozen=True, omit_defaults=True, tag="hello"):
    """The first of a stream: what the frames are about. source: "live", "record". server: another one after each start,
    so that a page knows that it begins anew. sees_all: whether pause, scrub and records are allowed; tenant: whose view
    it is. requests: that are known already. span: seconds from first to last, of a record. period: seconds of a frame.
    has_record: it can be downloaded. members_only: of several engines only counts are known here; what each of them
    does is told in frames of its own, behind a hello that names it (engine). clock: what is to be added to times of
    that engine's frames, so that they are on the clock of the first hello's."""

    source: str
    title: str
    server: str = ""
    version: int = VERSION
    num_blocks: int = 0
    block_size: int = 0
    max_rows: int = 0
    host_blocks: int = 0
    period: float = 0.1
    span: tuple[float, float] | None = None
    sees_all: bool = False
    tenant: str = ""
    has_record: bool = False
    members_only: bool = False
    engine: str = ""
    clock: float = 0.0
    settings: list[Setting] = []
    requests: list[RequestInfo] = []
    notes: list[str] = []


class Problem(Struct, frozen=True, tag="problem"):
    """The last of a stream that cannot go on; a sentence."""

    sentence: str


Message = Hello | Frame | Problem
_encoder = msgspec.json.Encoder(decimal_format="number")
_decoder: msgspec.json.Decoder[Message] = msgspec.json.Decoder(Message)


class FrameError(ValueError):
    """A message cannot be read."""


def encode(message: Message) -> bytes:
    return _encoder.encode(message)


def encode_account(account: Account) -> bytes:
    return _encoder.encode(account)


def decode(data: bytes | str) -> Message:
    try:
        return _decoder.decode(data)
    except (msgspec.MsgspecError, ValueError) as fault:
        raise FrameError(f"A message of the feed cannot be read ({fault}); is the server of another version?") from None
