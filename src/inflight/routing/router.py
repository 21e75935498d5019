"""A router: a policy, and the replicas that it chooses among with their load and presumed cache.

Callers report what was sent, first tokens and ends. Replicas join and leave while requests are in flight.
"""

from __future__ import annotations

from collections.abc import Collection
from dataclasses import dataclass

from inflight.core.estimation.decaying import DecayingMean
from inflight.routing.policies.policy import Candidate, RoutingPolicy
from inflight.routing.prefix_index import DEFAULT_MAX_BLOCKS, PrefixIndex
from inflight.routing.replica_view import UNKNOWN, ReplicaView, ServingCosts, leveled
from inflight.routing.routed_request import RoutedRequest

FIRST_EXPECTED = 128.0  # tokens of an answer, before any has ended
_WEIGHT = 0.02  # of the latest value in exponentially weighted means


class NoReplica(LookupError):
    """No replica can get the request."""


@dataclass(slots=True)
class _Sent:
    request: RoutedRequest
    replica: ReplicaView
    lacking: int  # prompt tokens that are to be computed, presumably
    has_token: bool = False


class Router:
    """Sends requests to replicas by a policy, and keeps account of them."""

    def __init__(self, policy: RoutingPolicy, block_size: int = 16):
        """block_size: prompt tokens per block of the prefix index."""
        self._policy, self._block_size = policy, block_size
        self._index = PrefixIndex()
        self._replicas: dict[str, ReplicaView] = {}
        self._free_slots: list[int] = []
        self._sent: dict[str, _Sent] = {}
        self._expected = DecayingMean(_WEIGHT)  # length of answers
        self._expected.add(FIRST_EXPECTED)
        self._reuse = DecayingMean(_WEIGHT)  # share of prompts that is cached where they go
        self._reuse.add(0.0)

    # -- replicas -----------------------------------------------------------------------------------------------

    @property
    def replicas(self) -> Collection[ReplicaView]:
        return self._replicas.values()

    def join(
        self, name: str, costs: ServingCosts = UNKNOWN, *, kv_tokens: int | None = None, fair: bool = False
    ) -> ReplicaView:
        """Add a replica. kv_tokens: capacity of its KV cache. fair: it serves tenants in turns."""
        slot = self._free_slots.pop() if self._free_slots else len(self._replicas)
        self._index.join(slot, DEFAULT_MAX_BLOCKS if kv_tokens is None else max(1, kv_tokens // self._block_size))
        replica = self._replicas[name] = ReplicaView(name, slot, costs, fair=fair)
        self._level()
        return replica

    @property
    def expected_tokens(self) -> float:
        """Mean length of answers."""
        return self._expected.value or 0.0

    def update_replica(self, name: str, costs: ServingCosts, kv_tokens: int, fair: bool) -> None:
        """Take what a replica reports of itself."""
        replica = self._replicas[name]
        replica.reported, replica.fair = costs, fair
        self._level()
        self._index.resize(replica.slot, max(1, kv_tokens // self._block_size))

    def leave(self, name: str) -> list[str]:
        """Remove a replica and return the requests there without a token: they may be sent elsewhere."""
        replica = self._replicas.pop(name)
        self._index.leave(replica.slot)
        self._free_slots.append(replica.slot)
        self._level()
        lost = [one for one in self._sent.values() if one.replica is replica]
        for one in lost:
            del self._sent[one.request.request_id]
        return [one.request.request_id for one in lost if not one.has_token]

    # -- requests -----------------------------------------------------------------------------------------------

    def send(self, request: RoutedRequest, among: Collection[str] | None = None) -> ReplicaView:
        """Choose a replica, among these where given, and count the request as sent there. Raises NoReplica."""
        chosen = self.choose(request, among)
        self.sent(request, chosen.replica, chosen.cached)
        return chosen.replica

    def choose(self, request: RoutedRequest, among: Collection[str] | None = None) -> Candidate:
        """Choose a replica without sending. Raises NoReplica."""
        every = self._replicas.values()
        asked = list(every) if among is None else [one for one in every if one.name in among]
        if not asked:
            raise NoReplica("No replica is there.")
        request.expected_tokens, request.reuse = self.expected_tokens, self._reuse.value or 0.0
        candidates = self._candidates(request, asked)
        return candidates[self._policy.choose(request, candidates)]

    def sent(self, request: RoutedRequest, replica: ReplicaView, cached: int = 0) -> None:
        """Count a request as sent to a replica. cached: tokens of the prompt, presumably."""
        lacking = len(request.prompt) - cached
        replica.queue(request.tenant, lacking)
        self._sent[request.request_id] = _Sent(request, replica, lacking)
        if self._policy.uses_prefixes:
            self._reuse.add(cached / len(request.prompt))
            self._index.hold(replica.slot, request.block_hashes(self._block_size))

    def first_token(self, request_id: str) -> None:
        """Note that a request has its first token, or will have none; idempotent."""
        sent = self._sent.get(request_id)
        if sent is not None and not sent.has_token:
            sent.has_token = True
            sent.replica.computed(sent.request.tenant, sent.lacking)

    def ended(self, request_id: str, output_tokens: int | None = None) -> None:
        """Remove a request. output_tokens: of its answer, where it completed."""
        self.first_token(request_id)
        sent = self._sent.pop(request_id, None)
        if sent is None:
            return
        sent.replica.ended()
        if output_tokens is not None:
            self._expected.add(output_tokens)

    def _level(self) -> None:
        for one, costs in zip(self.replicas, leveled([one.reported for one in self.replicas]), strict=True):
            one.costs = costs

    def _candidates(self, request: RoutedRequest, replicas: Collection[ReplicaView]) -> list[Candidate]:
        if not self._policy.uses_prefixes:
            return [Candidate(one, request.num_external_tokens) for one in replicas]
        matches = self._index.match(request.block_hashes(self._block_size))
        size, limit = self._block_size, len(request.prompt) - 1  # the last token is always computed
        handed = min(limit, request.num_external_tokens)
        cached = {slot: max(handed, min(limit, blocks * size)) for slot, blocks in matches.items()}
        return [Candidate(one, cached.get(one.slot, handed)) for one in replicas]
