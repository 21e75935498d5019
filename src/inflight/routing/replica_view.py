"""A replica as its router sees it: outstanding requests, and what they cost."""

from __future__ import annotations

import math
import statistics
from collections import Counter
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace

from inflight.core.types.features import Features

_CHUNK = 512  # prompt tokens that a step is asked about
_CONTEXT = 1024  # positions that each row reads


@dataclass(frozen=True, slots=True)
class ServingCosts:
    """Seconds of serving, three numbers of the step-time model that the replica's scheduler uses.

    prompt_token: of one more prompt token. step: of a step that decodes one row. row: of one more decoding row.
    max_num_seqs: rows that run at once."""

    prompt_token: float
    step: float
    row: float
    max_num_seqs: int

    @classmethod
    def probed(cls, seconds: Callable[[Features], float], max_num_seqs: int) -> ServingCosts:
        """Probe a step-time model. seconds: of a step with these features."""
        rows = max(2, min(max_num_seqs, 64))
        one = seconds(_decodes(1))
        row = max(0.0, seconds(_decodes(rows)) - one) / (rows - 1)
        chunk = seconds(Features(1 + _CHUNK, 2, 2, _CONTEXT, _CHUNK * _CHUNK / 2, prompt_chunks=1)) - one
        # A model without many rows may say that a row costs nothing: then routing would not spread requests.
        return cls(max(chunk, 0.0) / _CHUNK, one, row or one / max_num_seqs, max_num_seqs)

    def prefill(self, tokens: float) -> float:
        return tokens * self.prompt_token

    def decode_step(self, rows: float) -> float:
        return self.step + (rows - 1) * self.row


def _decodes(rows: int) -> Features:
    return Features(rows, rows, rows, rows * _CONTEXT, 0.0)


UNKNOWN = ServingCosts(prompt_token=1e-4, step=1e-2, row=5e-5, max_num_seqs=256)  # the ratios are a large GPU's
_ALIKE = math.sqrt(2)  # times the mean: estimates of replicas on equal machines lie within


def leveled(reported: Sequence[ServingCosts]) -> list[ServingCosts]:
    """Return the costs by which replicas are compared. Estimates learnt on equal machines differ by chance, which
    routing should not follow; so replicas whose steps take about as long get the mean of their costs, and those without
    a report the mean of all reports.

    Args:
        reported: Costs of each replica, `UNKNOWN` before its first report.
    """
    known = [one for one in reported if one is not UNKNOWN]
    if not known or all(one == reported[0] for one in reported):
        return list(reported)
    step, token = (
        statistics.geometric_mean(max(getattr(one, name), 1e-12) for one in known) for name in ("step", "prompt_token")
    )
    alike = [one for one in known if _is_near(one.step, step) and _is_near(one.prompt_token, token)]
    shared, mean = _mean(alike or known), _mean(known)

    def compared(one: ServingCosts) -> ServingCosts:
        if one is UNKNOWN:
            return replace(mean, max_num_seqs=one.max_num_seqs)
        return replace(shared, max_num_seqs=one.max_num_seqs) if one in alike else one

    return list(map(compared, reported))


def _is_near(value: float, mean: float) -> bool:
    return mean / _ALIKE <= value <= mean * _ALIKE


def _mean(costs: Sequence[ServingCosts]) -> ServingCosts:
    count = len(costs)
    sums = (sum(getattr(one, name) for one in costs) for name in ("prompt_token", "step", "row"))
    token, step, row = (one / count for one in sums)
    return ServingCosts(token, step, row, costs[0].max_num_seqs)


class ReplicaView:
    """The requests at a replica that have not ended, and their costs."""

    def __init__(self, name: str, slot: int, costs: ServingCosts = UNKNOWN, *, fair: bool = False):
        """slot: its number in the prefix index. fair: it serves tenants in turns, so that a tenant's short queue does
        not wait for another one's long queue."""
        self.name, self.slot, self.fair = name, slot, fair
        self.reported = costs  # by the replica itself
        self.costs = costs  # by which it is compared with others
        self.requests = 0  # sent, and not ended
        self.prompt_tokens = 0  # to be computed before all requests have their first token
        self._of_tenants: Counter[str] = Counter()  # the same by tenant

    def queue(self, tenant: str, tokens: int) -> None:
        """Add a request with so many prompt tokens that are not cached."""
        self.requests += 1
        self.prompt_tokens += tokens
        self._of_tenants[tenant] += tokens

    def computed(self, tenant: str, tokens: int) -> None:
        """Remove prompt tokens of a request that has its first token, or will have none."""
        self.prompt_tokens -= tokens
        self._of_tenants[tenant] -= tokens
        if self._of_tenants[tenant] <= 0:
            del self._of_tenants[tenant]

    def ended(self) -> None:
        self.requests -= 1

    def tokens_ahead(self, tenant: str, tokens: int) -> int:
        """Return the prompt tokens that are computed before so many of this tenant's, if they come now. With fair
        queueing these are each tenant's first ones, up to as many as its own."""
        if not self.fair:
            return self.prompt_tokens
        own = self._of_tenants[tenant] + tokens
        return sum(min(queued, own) for queued in self._of_tenants.values())

    def queued_seconds(self, tenant: str, tokens: int, expected_tokens: float) -> float:
        """Return the seconds until the engine begins with a request of so many uncached tokens: prompts ahead of it,
        and the wait for a request slot."""
        tokens_ahead = self.tokens_ahead(tenant, tokens) if self.fair else self.prompt_tokens
        ahead = self.costs.prefill(tokens_ahead)
        return ahead if self.requests < self.costs.max_num_seqs else ahead + self._row_wait(expected_tokens)

    def _row_wait(self, expected_tokens: float) -> float:
        """Return the wait for a slot; rows end one after the other, evenly spread over an answer's time."""
        rows = self.costs.max_num_seqs
        beyond = self.requests + 1 - rows
        return beyond / rows * expected_tokens * self.costs.decode_step(rows)

    def work_seconds(self, expected_tokens: float) -> float:
        """Return the seconds of all that is queued or in flight: prompts, and half of each expected answer, as its
        share of the steps that it is in."""
        rows = max(1, min(self.requests, self.costs.max_num_seqs))
        share = self.costs.decode_step(rows) / rows
        return self.costs.prefill(self.prompt_tokens) + self.requests * expected_tokens / 2 * share
