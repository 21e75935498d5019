"""Admission control: may this request come in, and if not, when would it make sense to try again?

Knows how much waits and runs, and what steps take; decides before anything is promised. `off` takes all, `queue` bounds
what waits by requests and by tokens, `slo` predicts the time to the first token and refuses what cannot be met (early
rejection, Mooncake, arXiv 2407.00079; waiting-time estimate from service rates, QLM, arXiv 2407.00047), and `auto`
does both: a bounded queue for all, and the prediction for requests that state a target. Work that was
admitted before counts as promised, so that the prediction does not oscillate. The prediction is corrected twice from
what came: rounds by their mean length, first tokens by the margin that nearly all promises would have needed. The
simulator asks the same function.
"""

from __future__ import annotations

import heapq
import math
from collections.abc import Callable
from collections.abc import Sequence as Items
from typing import Literal

from msgspec import Struct

from inflight.core.estimation.latency import LatencyModel
from inflight.core.tenants.backlog import Backlog
from inflight.core.tenants.shares import Held, Shares
from inflight.core.types.features import Features
from inflight.core.types.request import Request, RequestRefused, waiting_requests
from inflight.counted import counted

FORGETTING = 0.99  # a round counts half after about 70 more
NEAR = 0.5  # of a target: below it a prediction decides nothing, and what came of it teaches nothing
Mode = Literal["off", "queue", "slo", "auto"]


class Load(Struct, frozen=True):
    """What stands between a newcomer and its first token.

    ahead: sequences waiting before it, all samples counted. prompt_tokens: still to be computed for those and for
    running ones. remaining: expected output tokens of each running sequence, and of those ahead. free_rows, rows:
    places. budget: tokens per step. context: tokens of a running sequence, on average.
    """

    ahead: int
    prompt_tokens: int
    remaining: Items[float]
    remaining_ahead: Items[float]
    free_rows: int
    rows: int
    budget: int
    context: float


class Margin:
    """By how much predictions fall short at worst: a running quantile of actual over predicted time.

    Each observation moves it a little (stochastic approximation, Robbins and Monro 1951), up by the share that should
    stay below it and down by the rest, so that it rests where this share does. Late answers to one mistake do not move
    it further than the mistake was.
    """

    STEP = 0.1  # of its logarithm

    def __init__(self, share: float = 0.99):
        self.value = 1.0
        self._share = share

    def observe(self, ratio: float) -> None:
        move = self._share if ratio > self.value else self._share - 1.0
        self.value = max(1.0, self.value * math.exp(self.STEP * move))


class Admission:
    def __init__(
        self,
        mode: Mode,
        latency: LatencyModel,
        max_requests: int | None = None,
        max_tokens: int | None = None,
        default_ttft: float | None = None,
        shares: Shares | None = None,
    ):
        """max_requests, max_tokens: most that may wait (modes queue and auto). default_ttft: target in seconds of
        requests that name none (mode slo). shares: by which tenants share what may wait."""
        self.shares = shares
        self._mode = mode
        self._latency = latency
        self._max_requests = max_requests
        self._max_tokens = max_tokens
        self._default_ttft = default_ttft
        self._margin = Margin()
        self._predicted: dict[str, float] = {}  # request id → seconds to the first token as they were predicted
        self._told = self._taken = 0.0  # seconds of rounds as the model tells them and as they were, decaying

    @property
    def asks(self) -> bool:
        """Whether `check` looks at the load at all."""
        return self._mode != "off"

    def observe(self, features: Features, seconds: float) -> None:
        """A round took so long, from commit to commit: the step, and whatever the host did around it."""
        if self._latency.ready:
            self._told = FORGETTING * self._told + self._latency.seconds(features)
            self._taken = FORGETTING * self._taken + seconds

    @property
    def pace(self) -> float:
        """Seconds of rounds per second that the model of steps tells. It knows steps alone, and typical ones: where
        others compete for the cores, rounds take longer, and their mean is what a queue waits for."""
        return self._taken / self._told if self._told > 0 else 1.0

    def check(self, request: Request, backlogs: Items[Backlog], load: Callable[[], Load]) -> float | None:
        """Return the seconds to the first token as they are predicted, for `accepted`; None where that teaches nothing.

        Args:
            request: The newcomer.
            backlogs: Counts of the queues before it.
            load: Lists all sequences in them and in the batch; called only where a time is to be predicted.

        Raises:
            RequestRefused: It may not come in; with the seconds after which to try again.
        """
        if self._mode in ("queue", "auto"):
            self._check_queue(request, backlogs, load)
        return self._check_slo(request, load) if self._mode in ("slo", "auto") else None

    def accepted(self, request: Request, predicted: float | None) -> None:
        """Remember what `check` predicted for a request that has come in, until its first token or its end."""
        if predicted is not None:
            self._predicted[request.request_id] = predicted

    def _check_queue(self, request: Request, backlogs: Items[Backlog], load: Callable[[], Load]) -> None:
        most, samples = self._max_requests, request.params.n
        ahead = sum(one.total.places for one in backlogs)
        if most is not None and samples > most:  # no later time would be better
            raise RequestRefused(
                f"The request asks for {samples} samples, but at most {most} requests may wait; ask for at most {most} "
                "samples or raise --max-queued-requests.",
                field="n",
            )
        if most is not None and ahead + samples > most:
            held = self._held(request, backlogs)
            if held is None or not held.may_take(samples, most):
                these = "" if samples == 1 else f", but these would be {samples} more"
                mine = f"; {held.told(most)}" if held else ""
                raise RequestRefused(
                    f"{waiting_requests(ahead)} already, and at most {most} may{these}{mine}; try again later.",
                    retry_after=self.seconds_to_first_token(0, load()),
                )
        if ahead:
            self._check_tokens(request, backlogs, load)

    def _check_tokens(self, request: Request, backlogs: Items[Backlog], load: Callable[[], Load]) -> None:
        most, prompt_tokens = self._max_tokens, len(request.prompt_token_ids)
        queued = sum(one.total.tokens for one in backlogs)
        if most is None or queued + prompt_tokens <= most:
            return
        held = self._held(request, backlogs)
        if held is None or not held.may_take_tokens(prompt_tokens, most):
            mine = f" ({held.tokens} of them are this tenant's, whose share is {int(held.part * most)})" if held else ""
            raise RequestRefused(
                f"{counted(queued, 'token waits', 'tokens wait')} already{mine}, and with this prompt's "
                f"{prompt_tokens} it would be more than the {most} that may; try again later.",
                retry_after=self.seconds_to_first_token(0, load()),
            )

    def _held(self, request: Request, backlogs: Items[Backlog]) -> Held | None:
        """What the newcomer's tenant has of them already, where tenants share the places."""
        return None if self.shares is None else self.shares.held(request.tenant, backlogs)

    def _check_slo(self, request: Request, asked: Callable[[], Load]) -> float | None:
        target = self._target(request)
        if target is None or not self._latency.ready:
            return None
        load = asked()
        if not load.ahead and not load.remaining:
            return None  # an idle engine: no later time would be better, and refusing for ever would teach it nothing
        plain = self.seconds_to_first_token(len(request.prompt_token_ids), load)
        expected = plain * self._margin.value
        if expected > target:
            raise RequestRefused(
                f"The first token would come after about {expected:.2f} s ({counted(load.ahead, 'request')} and "
                f"{counted(load.prompt_tokens, 'prompt token')} are before it), later than the target of "
                f"{target:.2f} s; try again in {expected - target:.1f} s.",
                retry_after=expected - target,
            )
        return plain if expected > NEAR * target else None

    def _target(self, request: Request) -> float | None:
        return request.slo.ttft if request.slo.ttft is not None else self._default_ttft

    def kept(self, request: Request, now: float) -> None:
        """Its first token came: what was promised is compared with what came."""
        if self._predicted and (plain := self._predicted.pop(request.request_id, None)) is not None:
            self._margin.observe((now - request.arrival) / plain)

    def ended(self, request: Request) -> None:
        """It ended, perhaps without a token."""
        self._predicted.pop(request.request_id, None)

    def seconds_to_first_token(self, prompt_tokens: int, load: Load) -> float:
        """Expected wait of a newcomer: for a row, then for the prompts before it and its own."""
        if not self._latency.ready:
            return 1.0  # nothing is known yet; a second is a fair pause
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


def _row_wait(load: Load) -> float:
    """Decode steps until a row is free for the newcomer, when every row is taken up again by who is ahead."""
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
