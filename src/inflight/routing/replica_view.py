"""A replica as its router sees it: what was sent there and has not been answered, and what that costs."""

from __future__ import annotations

from collections import Counter

from inflight.routing.serving_costs import UNKNOWN, ServingCosts


class ReplicaView:
    def __init__(self, name: str, slot: int, costs: ServingCosts = UNKNOWN, *, fair: bool = False):
        """slot: its number in the prefix index. fair: it serves tenants in turns, so that a short line of one's own is
        not behind a long one of somebody else's."""
        self.name, self.slot, self.fair = name, slot, fair
        self.reported = costs  # by the replica itself
        self.costs = costs  # by which it is compared with others
        self.requests = 0  # sent, and not ended
        self.prompt_tokens = 0  # that are to be computed before all of them have their first token
        self._of_tenants: Counter[str] = Counter()  # the same by tenant

    def queue(self, tenant: str, tokens: int) -> None:
        """tokens: of a prompt, those that are not cached."""
        self.requests += 1
        self.prompt_tokens += tokens
        self._of_tenants[tenant] += tokens

    def computed(self, tenant: str, tokens: int) -> None:
        """What was queued as so many has its first token, or will have none."""
        self.prompt_tokens -= tokens
        self._of_tenants[tenant] -= tokens
        if self._of_tenants[tenant] <= 0:
            del self._of_tenants[tenant]

    def ended(self) -> None:
        self.requests -= 1

    def tokens_ahead(self, tenant: str, tokens: int) -> int:
        """Prompt tokens that are computed before so many of this tenant's are, if they come now. In turns (start-time
        fair queueing, which gives each tenant the same), everybody's first tokens are, up to as many as its own."""
        if not self.fair:
            return self.prompt_tokens
        own = self._of_tenants[tenant] + tokens
        return sum(min(queued, own) for queued in self._of_tenants.values())

    def queued_seconds(self, tenant: str, tokens: int, expected_tokens: float) -> float:
        """Until the engine begins with a request of so many uncached tokens: prompts ahead of it, and rows that are all
        taken."""
        tokens_ahead = self.tokens_ahead(tenant, tokens) if self.fair else self.prompt_tokens
        ahead = self.costs.prefill(tokens_ahead)
        return ahead if self.requests < self.costs.max_num_seqs else ahead + self._row_wait(expected_tokens)

    def _row_wait(self, expected_tokens: float) -> float:
        """Rows end one after the other, evenly spread over an answer's time."""
        rows = self.costs.max_num_seqs
        beyond = self.requests + 1 - rows
        return beyond / rows * expected_tokens * self.costs.decode_step(rows)

    def work_seconds(self, expected_tokens: float) -> float:
        """All that is queued or under way: prompts, and of each answer half of what is expected, as its share of the
        steps that it is in."""
        rows = max(1, min(self.requests, self.costs.max_num_seqs))
        share = self.costs.decode_step(rows) / rows
        return self.costs.prefill(self.prompt_tokens) + self.requests * expected_tokens / 2 * share
