"""Define the messages of the live page: frames of a tenth of a second or more, as JSON.

A frame holds the work between its start and its end, and the state at its end. It needs no other frame: a viewer that
missed some shows a gap. Runs, steps and holders, of which there are hundreds, are written as arrays. Times are seconds
on the engine's clock.
"""

from __future__ import annotations

from typing import Annotated, Final

import msgspec
from msgspec import Meta, Struct, field

from inflight.records.computed import Work

VERSION: Final = 1
WORKS: Final = (
    Work.PREFILL,
    Work.DECODE,
    Work.RECOMPUTE,
    Work.PADDING,
    Work.IDLE,
)  # a run's `work` is an index of this
# Owners in a map of blocks, beside sequences' numbers. MOVING: a copy to or from another tier holds the block.
FREE, EVICTABLE, SHARED, OTHERS, MOVING = -3, -2, -1, -4, -5


class Run(Struct, frozen=True, array_like=True):
    """Consecutive steps in which a row did one kind of work for one sequence."""

    row: int
    sequence: int
    work: Annotated[int, Meta(ge=0, le=4)]
    start: float
    end: float
    tokens: int


class StepPoint(Struct, frozen=True, array_like=True):
    """A step, or several consecutive ones; with its token slots by use.

    Attributes:
        seconds: As measured by the executor.
        predicted: By the scheduler's latency model; 0: before the model was ready.
    """

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
    """One sample of a request, sent when it first runs or waits at the head of a queue. Targets are seconds; 0: none.

    Attributes:
        itl_target: Of each gap between tokens.
        mine: In a tenant's view, whether it is the tenant's; other tenants' requests have no names.
        tpot_target: Of each token behind the first, on average over the answer.
    """

    number: int
    request_id: str = ""
    lane: str = ""
    tenant: str = ""
    arrival: float = 0.0
    prompt_tokens: int = 0
    ttft_target: float = 0.0
    itl_target: float = 0.0
    mine: bool = True
    tpot_target: float = 0.0


class Account(Struct, frozen=True, omit_defaults=True):
    """A request's time by use, in milliseconds, as in `records.timings`; until now for a request in flight."""

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
    """A request that has ended.

    Attributes:
        info: Of its first sample.
        account: None in the view of another tenant.
    """

    info: RequestInfo
    reason: str
    at: float
    output_tokens: int = 0
    account: Account | None = None


class Holder(Struct, frozen=True, array_like=True):
    """The progress of a running sequence, the blocks it holds, and how many of them are shared."""

    number: int
    row: int
    tokens: int
    computed: int
    blocks: int
    shared: int


class LanePart(Struct, frozen=True, omit_defaults=True):
    """A lane's queue.

    Attributes:
        stands_for: What blocks the head of the queue.
        behind: The lane that has most of that.
        first: Numbers of the first waiting samples.
        oldest: Seconds for which the first of them has waited.
        deferred: Number of deferred requests by reason (adapter, kv).
    """

    name: str
    waiting: int = 0
    running: int = 0
    stands_for: str = ""
    behind: str = ""
    first: list[int] = []
    oldest: float = 0.0
    deferred: dict[str, int] = field(default_factory=dict, name="apart")


class TierPart(Struct, frozen=True, omit_defaults=True):
    """The blocks of a tier behind the device: host memory or a folder.

    Attributes:
        blocks: Capacity in blocks.
        kept: Cached blocks that may be evicted (EVICTABLE in the map).
        wanted: Blocks of preempted sequences (the sequences' numbers in the map).
        moving: Blocks that are being copied.
        others: Blocks of other models (OTHERS in the map).
        map: As in `BlocksPart`.
    """

    blocks: int
    kept: int = 0
    wanted: int = 0
    moving: int = 0
    others: int = 0
    map: list[int] = []
    per_cell: int = 1


class BlocksPart(Struct, frozen=True, omit_defaults=True):
    """The KV pool at the frame's end.

    Attributes:
        held: Blocks with references; a shared block counts once. Includes `moving`.
        moving: Blocks that only a copy to or from another tier holds.
        map: Runs of cells for all blocks in order: owner (FREE, EVICTABLE, SHARED, MOVING or a sequence's number),
            number of cells; empty if this frame has no map.
        per_cell: Blocks in a cell; the last one may have fewer.
        host: The tier in host memory, if there is one and the frame has a map.
        disk: The tier in a folder, likewise.
    """

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
    """Percentiles of latencies over the last seconds, in seconds.

    Attributes:
        count: Number of latencies.
        mean: Of gaps between tokens, this is the time per output token.
        with_target: How many have a target.
        met: How many of these met it.
    """

    count: int = 0
    p50: float = 0.0
    p95: float = 0.0
    with_target: int = 0
    met: int = 0
    mean: float = 0.0


class Rates(Struct, frozen=True, omit_defaults=True):
    """Rates per second over the last `seconds`."""

    seconds: float = 0.0
    prompt_tokens: float = 0.0
    output_tokens: float = 0.0
    requests: float = 0.0
    ttft: Latencies = Latencies()
    itl: Latencies = Latencies()


class Member(Struct, frozen=True, omit_defaults=True):
    """One of several engines: a replica, or a model of a pool. state: text; empty: none reported."""

    name: str
    state: str = ""
    running: int = 0
    waiting: int = 0
    blocks: int = 0
    held_blocks: int = 0
    output_tokens_per_s: float = 0.0


class Frame(Struct, frozen=True, omit_defaults=True, tag="frame"):
    """The work of an engine during a short time, and its state at the end.

    Attributes:
        number: Rises by one.
        holders: Running sequences, if the frame has a map.
        requests: Samples that are shown for the first time.
        preempted: Sequences that lost their rows.
        accepted: Number of chunks with 0, 1, 2, … accepted draft tokens.
        lost: Entries that a full ring has dropped.
        engine: Name of the engine, if there are several.
    """

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
    """One resolved setting as text, with its reason."""

    name: str
    value: str
    reason: str = ""

    @classmethod
    def of(cls, name: str, value: object, reason: str = "") -> Setting:
        """Return a setting with any value; a list is joined by commas."""
        shown = ", ".join(map(str, value)) if isinstance(value, list | tuple) else "" if value is None else str(value)
        return cls(name, shown, reason)


class Hello(Struct, frozen=True, omit_defaults=True, tag="hello"):
    """The first message of a stream: describes the engine of the following frames.

    Attributes:
        source: "live" or "record".
        server: Changes with each start of the server, so that a page can reset itself.
        period: Seconds of a frame.
        span: First and last second of a record.
        sees_all: Whether pause, scrub and records are allowed.
        tenant: Whose view it is.
        has_record: Whether a record can be downloaded.
        members_only: Frames have only counts of several engines; each engine has frames of its own, behind a hello
            with its name.
        engine: Name of the engine, if there are several.
        clock: Seconds to add to times of this engine's frames, to convert them to the clock of the first hello.
        requests: In flight, shown by earlier frames.
    """

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
    """The last message of a stream that cannot continue, with an error message."""

    sentence: str


Message = Hello | Frame | Problem
_encoder = msgspec.json.Encoder(decimal_format="number")
_decoder: msgspec.json.Decoder[Message] = msgspec.json.Decoder(Message)


class FrameError(ValueError):
    """Raised for a message that cannot be read."""


def encode(message: Message) -> bytes:
    return _encoder.encode(message)


def encode_account(account: Account) -> bytes:
    return _encoder.encode(account)


def decode(data: bytes | str) -> Message:
    """Decode a message. Raises FrameError."""
    try:
        return _decoder.decode(data)
    except (msgspec.MsgspecError, ValueError) as fault:
        raise FrameError(f"A message of the feed cannot be read ({fault}); is the server of another version?") from None
