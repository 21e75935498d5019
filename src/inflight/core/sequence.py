"""A sequence: the progress of one sample of one request. Owned and changed by the scheduler alone.

There are no phases. `num_tokens` exist, `num_pending` are being sampled by plans in flight, `num_computed` have their
keys and values (or will, when the plans in flight are done). Computed catches up with tokens + pending; whether that is
prefill, decode or resumption after preemption is only a matter of how many are uncomputed.

A sequence with drafts in flight has nothing uncomputed: its drafts are pending and computed, and the token behind them
is not known before they are verified.
"""

from __future__ import annotations

from collections.abc import Hashable

from msgspec import Struct, field

from inflight.core.request_timings import RequestTimings
from inflight.core.stopping import StopChecker
from inflight.core.types.events import Finish
from inflight.core.types.length_distribution import LengthDistribution, uniform
from inflight.core.types.request import SLO, Request

NO_POSITIONS = range(0)


class StateProgress(Struct):
    """State checkpoints of a sequence with a row (`kv.state_checkpoints`).

    Attributes:
        begins_from: Slot that the row will begin from, until the executor has its first chunk; -1: none.
        newest: Position of the last checkpoint that it took, or began from.
        branch: Position where its cached blocks ended at admission.
        newest_slot: Slot of the last checkpoint that it took.
        newest_is_decoded: Whether the next checkpoint may replace the last one.
        unpublished: (position, slot) of checkpoints whose tokens are not all known, rising.
        exported: Slot of the checkpoint at the end of its prompt's export, held until it is exported; -1: none.
    """

    begins_from: int
    newest: int
    branch: int
    newest_slot: int = -1
    newest_is_decoded: bool = False
    unpublished: list[tuple[int, int]] = field(default_factory=list)
    exported: int = -1


class Sequence:
    __slots__ = (
        "banned",
        "block_tables",
        "blocks",
        "cached_hint",
        "charged",
        "checker",
        "finish",
        "generates",
        "in_flight",
        "lengths",
        "max_output_tokens",
        "node",
        "num_computed",
        "num_drafts",
        "num_freed_blocks",
        "num_pending",
        "num_published_blocks",
        "num_sent_blocks",
        "num_tokens",
        "number",
        "output",
        "predicted",
        "predicted_first",
        "preempt_pending",
        "prompt",
        "protected",
        "recompute_until",
        "recomputes",
        "request",
        "row",
        "sample_index",
        "sat_out",
        "scored",
        "session",
        "sits_out",
        "slow_to_draw",
        "started",
        "state",
        "table_size",
        "timings",
        "waiting_for_kv",
    )

    def __init__(
        self,
        number: int,
        request: Request,
        sample_index: int,
        checker: StopChecker,
        max_output_tokens: int,
        banned: tuple[int, ...],
        timings: RequestTimings | None = None,
    ):
        """Make a sequence that waits. timings: None: its own."""
        self.number = number  # rises with acceptance, unique in the engine
        self.request = request
        self.sample_index = sample_index
        self.checker = checker
        self.max_output_tokens = max_output_tokens  # from max_tokens and the model's length
        self.generates = max_output_tokens > 0  # else it ends when its prompt is computed, and nothing is sampled
        self.banned = banned  # token ids that may not be drawn before min_tokens are there
        self.prompt = request.prompt_token_ids
        self.output: list[int] = []
        self.num_tokens = len(self.prompt)  # prompt and output together
        self.num_pending = 0
        self.num_computed = 0
        self.num_drafts = 0  # in flight
        # Leading prompt positions whose scores are planned; all of them, where none are wanted.
        self.scored = 0 if request.params.prompt_logprobs is not None and sample_index == 0 else len(self.prompt) - 1
        self.blocks: list[int] = []  # of the first KV group; those of all groups:
        self.block_tables: list[list[int]] = []
        self.num_freed_blocks: list[int] = []  # leading blocks of each table that were freed behind the window
        self.num_sent_blocks: list[int] = []  # leading blocks of each table that were sent to the executor
        self.table_size = 0  # blocks that a table without a window had at admission
        self.num_published_blocks = 0  # leading blocks that the prefix cache knows
        self.node: Hashable = None  # prefix cache node of the last published block
        self.waiting_for_kv: set[int] = set()  # ids of the transfers that load content of its blocks
        self.session: object = None  # whose turn it is, where sessions decide what is kept
        self.state: StateProgress | None = None  # while it has a row, of a model with recurrent state
        self.row: int | None = None
        self.started = False  # whether its row was sent to the executor, with its first chunk
        self.in_flight = 0  # plans that hold a chunk of this sequence and are not committed
        self.protected = False  # by the minimum share of its lane: not preempted, and served before others
        self.preempt_pending = False  # marked for preemption once nothing of it is in flight; then judged again
        self.recomputes = False  # a failed step lost its content: plans in flight are ignored, then it starts again
        self.sits_out = False  # a draw waits for its mask: plans in flight are ignored, then it is drawn again
        self.slow_to_draw = False  # it has sat out, and has no drafts, whose masks would take longer
        self.recompute_until = 0  # most tokens that were computed before a preemption; 0 only before the first
        self.sat_out = 0  # steps in turn that it yielded its place in to prompts
        self.charged = 0  # prompt tokens that were reported to the policy
        self.predicted = 0.0  # output tokens expected in all
        self.predicted_first = 0.0  # the same, when it came
        self.lengths = uniform(1, max(1, max_output_tokens))  # of the output, as they were predicted last
        self.cached_hint = 0  # prompt tokens that were cached when the policy last asked
        self.finish: Finish | None = None
        self.timings = RequestTimings() if timings is None else timings

    def append(self, token_id: int) -> None:
        """Add a pending token."""
        self.output.append(token_id)
        self.num_tokens += 1
        self.num_pending -= 1

    def draft(self, drafts: int) -> None:
        """Add drafts to the chunk that was planned last."""
        self.num_drafts = drafts
        self.num_computed += drafts
        self.num_pending += drafts - 1

    def verified(self, tokens: int) -> None:
        """Take back the drafts in flight that were wrong; `tokens` are appended next."""
        self.num_computed -= self.num_drafts + 1 - tokens
        self.num_pending = tokens
        self.num_drafts = 0

    def lose(self, samples: int, scores: range) -> None:
        """Take back the tokens and the scores of a chunk that was lost; the scores are planned again."""
        if scores:
            self.scored = min(self.scored, scores.start)
        if self.num_drafts:  # this chunk's, and the only one in flight
            self.num_computed -= self.num_drafts
            self.num_drafts = self.num_pending = 0
        else:
            self.num_pending -= samples

    def draw_again(self) -> None:
        """Take back the last position, whose draw has not come; no plan is in flight."""
        self.sits_out = False
        self.num_computed = self.num_tokens - 1

    @property
    def num_uncomputed(self) -> int:
        """Tokens to compute before the next one can be sampled: 1 for a decode, 0 when none may follow.

        Where nothing is sampled, those of the prompt.
        """
        if self.generates and len(self.output) + self.num_pending >= self.max_output_tokens:
            return 0
        return self.num_tokens + self.num_pending - self.num_computed

    @property
    def max_cached_tokens(self) -> int:
        """Leading tokens that may be taken from the cache: not the last, which the next token is sampled from, and none
        whose position is still to be scored."""
        return self.scored if self.lacks_scores else self.num_tokens - 1

    @property
    def export_id(self) -> str:
        """Id under which the blocks of its prompt are exported; empty: they are not, or by its request's first sample
        alone."""
        kv_transfer = self.request.kv_transfer
        return "" if kv_transfer is None or self.sample_index else kv_transfer.give

    @property
    def lacks_scores(self) -> bool:
        """Whether positions of the prompt are still to be scored, which no plan does yet."""
        return self.scored < len(self.prompt) - 1

    def plan_scores(self, end: int) -> range:
        """Mark the positions before `end` that are to be scored as planned; return them.

        The prompt's last position has no score: what follows it is sampled.
        """
        first, end = self.scored, min(end, len(self.prompt) - 1)
        if first >= end:
            return NO_POSITIONS
        self.scored = end
        return range(first, end)

    def token_slice(self, start: int, end: int) -> tuple[int, ...]:
        """Return known tokens start … end - 1."""
        length = len(self.prompt)
        if end <= length:
            return self.prompt[start:end]
        head = self.prompt[start:length] if start < length else ()
        return head + tuple(self.output[max(0, start - length) : end - length])


class SequenceView:
    """A sequence as policies and strategies see it: read-only, and without forced output lengths."""

    __slots__ = ("_sequence",)

    def __init__(self, sequence: Sequence):
        self._sequence = sequence

    @property
    def number(self) -> int:
        return self._sequence.number

    @property
    def arrival(self) -> float:
        return self._sequence.request.arrival

    @property
    def lane(self) -> str:
        return self._sequence.request.lane

    @property
    def tenant(self) -> str:
        return self._sequence.request.tenant

    @property
    def program(self) -> str:
        """Name of its program within its tenant; "": it is a program by itself."""
        return self._sequence.request.of_program

    @property
    def salt(self) -> str:
        """Requests with other salts share no cached prefix with this one."""
        return self._sequence.request.cache_salt

    @property
    def priority(self) -> int:
        return self._sequence.request.priority

    @property
    def ttft_target(self) -> float | None:
        """Seconds."""
        return self._sequence.request.slo.ttft

    @property
    def itl_target(self) -> float | None:
        """Seconds of each gap between tokens."""
        return self._sequence.request.slo.itl

    @property
    def slo(self) -> SLO:
        """All targets of its request."""
        return self._sequence.request.slo

    @property
    def is_running(self) -> bool:
        return self._sequence.row is not None

    @property
    def cached_tokens(self) -> int:
        """Leading tokens of a waiting sequence that the prefix cache held when its policy last compared it.

        Only policies with a window, or that rank heads again, are shown them.
        """
        return self._sequence.cached_hint

    @property
    def predicted_output_tokens(self) -> float:
        """Expected output tokens, in total."""
        return self._sequence.predicted

    @property
    def output_lengths(self) -> LengthDistribution:
        """Distribution of the output tokens in total, given those that it has."""
        return self._sequence.lengths.given(len(self._sequence.output))

    @property
    def prompt_tokens(self) -> int:
        return len(self._sequence.prompt)

    @property
    def output_tokens(self) -> int:
        return len(self._sequence.output)

    def token_slice(self, start: int, end: int) -> tuple[int, ...]:
        """Return tokens start … end - 1 of prompt and output."""
        return self._sequence.token_slice(start, end)

    @property
    def computed_tokens(self) -> int:
        return self._sequence.num_computed

    @property
    def sequences(self) -> int:
        """Sequences that start with this one: itself, and the other samples of its request that wait for its prompt."""
        first = self._sequence.sample_index == 0 and not self._sequence.charged
        return self._sequence.request.params.n if first else 1

    @property
    def sat_out(self) -> int:
        """Steps in turn in which it had no token, since it yielded to prompts."""
        return self._sequence.sat_out

    @property
    def uncomputed_tokens(self) -> int:
        """Tokens to compute before the next one can be sampled: 1 for a decode."""
        return self._sequence.num_uncomputed

    @property
    def planned_output_tokens(self) -> int:
        """Output tokens, with those that steps in flight sample."""
        return len(self._sequence.output) + self._sequence.num_pending

    @property
    def first_token(self) -> float | None:
        """When the first token came, in seconds on the engine's clock."""
        return self._sequence.timings.first_token

    @property
    def max_output_tokens(self) -> int:
        """Limit of the output, from max_tokens and the model's length."""
        return self._sequence.max_output_tokens
