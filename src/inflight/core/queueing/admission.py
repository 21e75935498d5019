"""Refuse a request that may not wait, or whose first token would come too late, and say when to try again.

Mode `queue` limits what waits by sequences and tokens; `slo` predicts the time to the first token and refuses a request
that would miss its target (early rejection, Mooncake, arXiv 2407.00079; waiting time from service rates, QLM, arXiv
2407.00047); `auto` does both, the second for requests that state a target; `off` admits all. Work admitted before
counts in full, so that the prediction does not oscillate. It is corrected by the mean length of rounds and by a margin
that nearly all predictions would have needed.
"""

from __future__ import annotations

import heapq
import math
from collections.abc import Callable, Sequence
from functools import partial
from typing import Literal

from msgspec import Struct

from inflight.core.estimation.decaying import DecayingRatio
from inflight.core.estimation.latency import LatencyModel
from inflight.core.tenants import Backlog, TenantWeights
from inflight.core.types.features import Features
from inflight.core.types.request import Request, RequestRefused, waiting_requests
from inflight.counted import counted

ROUND_DECAY = 0.99  # of the evidence, for each round: one counts half after about 70 more
MIN_TARGET_SHARE = 0.5  # of a target: a shorter prediction decides nothing, and its error is not learnt
MARGIN_STEP = 0.1  # of the margin's logarithm, for each first token
MIN_RETRY_S = 0.1  # after which to try again
UNKNOWN_WAIT_S = 1.0  # after which to try again, before step times are known
AdmissionMode = Literal["off", "queue", "slo", "auto"]


class WorkAhead(Struct, frozen=True):
    """Work before a newcomer's first token."""

    ahead: int  # sequences that wait before it, each sample counted
    prompt_tokens: int  # not yet computed, of these and of running ones
    remaining: Sequence[float]  # expected output tokens of each running sequence
    remaining_ahead: Sequence[float]  # the same of each that waits before it
    free_rows: int  # rows that are not in use
    rows: int  # all rows
    budget: int  # tokens of a step
    context: float  # mean tokens of a running sequence


class Margin:
    """Quantile of actual over predicted time, by stochastic approximation (Robbins and Monro 1951).

    Each value moves it a step, up by the share that should stay below it and down by the rest. So late answers to one
    wrong prediction do not move it further than that was wrong.
    """

    def __init__(self, share: float = 0.99):
        self.value = 1.0
        self._share = share

    def observe(self, ratio: float) -> None:
        move = self._share if ratio > self.value else self._share - 1.0
        self.value = max(1.0, self.value * math.exp(MARGIN_STEP * move))


def check_queue_limit(
    request: Request,
    backlogs: Sequence[Backlog],
    limit: int,
    weights: TenantWeights | None,
    seconds_until_served: Callable[[], float],
    *,
    lane: str = "",
) -> None:
    """Refuse a request whose samples exceed a queue's limit, unless its tenant stays within its share.

    Args:
        request: The newcomer.
        backlogs: Counts of the queues that count as one.
        limit: Sequences that may wait.
        weights: By which tenants share the limit; None: first come, first served.
        seconds_until_served: After which to try again.
        lane: The lane whose limit it is; empty: the engine's.

    Raises:
        RequestRefused: With the numbers that refused it.
    """
    samples, ahead = request.params.n, sum(one.total.sequences for one in backlogs)
    if samples > limit:  # no later time would be better
        where, advice = (f" in the lane {lane!r}", "") if lane else ("", " or raise --max-queued-requests")
        raise RequestRefused(
            f"The request asks for {samples} samples, but at most {limit} requests may wait{where}; ask for at most "
            f"{limit} samples{advice}.",
            field="n",
        )
    if ahead + samples <= limit:
        return
    share = None if weights is None else weights.queue_share(request.tenant, backlogs)
    if share is None or share.sequences + samples > share.part_of(limit):
        where = f" in the lane {lane!r}" if lane else ""
        these = "" if samples == 1 else f", but these would be {samples} more"
        own = f"; {share.sequences} of them are this tenant's, whose share is {share.part_of(limit)}" if share else ""
        raise RequestRefused(
            f"{waiting_requests(ahead)}{where} already, and at most {limit} may{these}{own}; try again later.",
            retry_after=seconds_until_served(),
        )


class Admission:
    def __init__(
        self,
        mode: AdmissionMode,
        latency: LatencyModel,
        max_requests: int | None = None,
        max_tokens: int | None = None,
        default_ttft: float | None = None,
        weights: TenantWeights | None = None,
    ):
        """Create admission control.

        Args:
            mode: What is checked.
            latency: The scheduler's model of step time.
            max_requests: Sequences that may wait (modes queue and auto).
            max_tokens: Known tokens that may wait (the same).
            default_ttft: Target in seconds of requests without one (mode slo).
            weights: By which tenants share these limits; None: first come, first served.
        """
        self._mode = mode
        self._latency = latency
        self._max_requests, self._max_tokens = max_requests, max_tokens
        self._default_ttft = default_ttft
        self._weights = weights
        self._margin = Margin()
        self._predicted: dict[str, float] = {}  # seconds to the first token, by request
        self._rounds = DecayingRatio(ROUND_DECAY)  # measured over modelled seconds

    @property
    def is_on(self) -> bool:
        """Whether `check` may refuse a request."""
        return self._mode != "off"

    @property
    def pace(self) -> float:
        """Seconds of rounds per second of modelled steps. A queue waits for the mean round, and others may compete for
        the cores; the model knows typical steps alone."""
        return self._rounds.value()

    def observe(self, features: Features, seconds: float) -> None:
        """Learn the time of a round, from commit to commit: a step, and what the host did around it."""
        if self._latency.ready:
            self._rounds.add(seconds, self._latency.seconds(features))

    def check(self, request: Request, backlogs: Sequence[Backlog], load: Callable[[], WorkAhead]) -> float | None:
        """Refuse a request that may not come in.

        Args:
            request: The newcomer.
            backlogs: Counts of the queues before it.
            load: Walks all sequences in them and in the batch; called only if a time is to be predicted.

        Returns:
            The predicted seconds to its first token, for `on_admitted`; None if their error would teach nothing.

        Raises:
            RequestRefused: With the seconds after which to try again.
        """
        if self._mode in ("queue", "auto"):
            if self._max_requests is not None:
                wait = partial(self._seconds_until_served, load)
                check_queue_limit(request, backlogs, self._max_requests, self._weights, wait)
            if self._max_tokens is not None and any(one.total.sequences for one in backlogs):
                self._check_tokens(request, backlogs, self._max_tokens, load)
        return self._check_target(request, load) if self._mode in ("slo", "auto") else None

    def on_admitted(self, request: Request, predicted: float | None) -> None:
        """Remember what `check` returned, until the first token or the end."""
        if predicted is not None:
            self._predicted[request.request_id] = predicted

    def on_first_token(self, request: Request, now: float) -> None:
        """Learn how far off the prediction was, if there was one."""
        if self._predicted and (predicted := self._predicted.pop(request.request_id, None)) is not None:
            self._margin.observe((now - request.arrival) / predicted)

    def on_finished(self, request: Request) -> None:
        """Forget a request, which may have ended without a token."""
        self._predicted.pop(request.request_id, None)

    def _check_tokens(
        self, request: Request, backlogs: Sequence[Backlog], limit: int, load: Callable[[], WorkAhead]
    ) -> None:
        prompt_tokens, waiting = len(request.prompt_token_ids), sum(one.total.tokens for one in backlogs)
        if waiting + prompt_tokens <= limit:
            return
        share = None if self._weights is None else self._weights.queue_share(request.tenant, backlogs)
        if share is None or share.tokens + prompt_tokens > share.part_of(limit):
            own = f" ({share.tokens} of them are this tenant's, whose share is {share.part_of(limit)})" if share else ""
            raise RequestRefused(
                f"{counted(waiting, 'token waits', 'tokens wait')}{own}, and {prompt_tokens:,} more would exceed the "
                f"maximum of {limit:,} (--max-queued-tokens); try again later.",
                retry_after=self._seconds_until_served(load),
            )

    def _seconds_until_served(self, load: Callable[[], WorkAhead]) -> float:
        return self.seconds_to_first_token(0, load())

    def _check_target(self, request: Request, list_load: Callable[[], WorkAhead]) -> float | None:
        target = request.slo.ttft if request.slo.ttft is not None else self._default_ttft
        if target is None or not self._latency.ready:
            return None
        load = list_load()
        if not load.ahead and not load.remaining:
            return None  # an idle engine: no later time would be better, and without work it would never learn better
        predicted = self.seconds_to_first_token(len(request.prompt_token_ids), load)
        expected = predicted * self._margin.value
        if expected > target:
            seconds = max(MIN_RETRY_S, expected - target)
            waiting = f"{counted(load.ahead, 'request')} and " if load.ahead else ""
            raise RequestRefused(
                f"The first token would come after about {expected:.2f} s ({waiting}"
                f"{counted(load.prompt_tokens, 'prompt token')} are before it), later than the target of "
                f"{target:.2f} s; try again in {seconds:.1f} s.",
                retry_after=seconds,
            )
        return predicted if expected > MIN_TARGET_SHARE * target else None

    def seconds_to_first_token(self, prompt_tokens: int, load: WorkAhead) -> float:
        """Predict a newcomer's wait: for a row, then for the prompts before it and its own."""
        if not self._latency.ready:
            return UNKNOWN_WAIT_S
        decoding = min(load.rows, len(load.remaining))
        step = self.pace * self._latency.seconds(_decodes(decoding, load.context))
        share = max(1, load.budget - decoding)
        full_step = self.pace * self._latency.seconds(_with_prompt(decoding, load.context, share))
        # Prompts ahead are computed while a row is waited for, in the same steps, which take longer for it; the
        # newcomer's own comes after both.
        longer = max(0.0, full_step - step)
        steps, prompts_ahead = _row_wait(load), load.prompt_tokens / share
        wait = max(steps, prompts_ahead) * step + prompts_ahead * longer
        return wait + prompt_tokens / share * full_step


def _row_wait(load: WorkAhead) -> float:
    """Return the decode steps until a row is free for the newcomer, if sequences ahead take every row before."""
    if load.ahead < load.free_rows:
        return 0.0
    ends = list(load.remaining)
    heapq.heapify(ends)
    for position in range(load.ahead - load.free_rows + 1):
        if not ends:
            return 0.0
        end = heapq.heappop(ends)
        if position == load.ahead - load.free_rows:
            return end
        if position < len(load.remaining_ahead):
            heapq.heappush(ends, end + load.remaining_ahead[position])
    return 0.0


def _decodes(rows: int, context: float) -> Features:
    return Features(rows, rows, rows, round(rows * context), 0.0)


def _with_prompt(rows: int, context: float, tokens: int) -> Features:
    return Features(rows + tokens, rows + 1, rows, round(rows * context), tokens * tokens / 2)
