"""The state of a router after requests were sent and answered and replicas joined and left."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from core.builders import request
from hypothesis import given
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, invariant, precondition, rule

from inflight.core.types.kv_blocks import event_block_hash, event_root_hash
from inflight.routing.prefix_index import PrefixIndex
from inflight.routing.registry import make_router
from inflight.routing.routed_request import RoutedRequest

BLOCK = 4


def hashes(prompt: Sequence[int], block_size: int, salt: str = "", adapter: str | None = None) -> tuple[bytes, ...]:
    return RoutedRequest("", prompt, salt, adapter).block_hashes(block_size)


def test_names_of_blocks_are_those_of_an_engines_events_and_hang_on_all_before() -> None:
    one, other = hashes((1, 2, 3, 4, 5, 6), 2), hashes((1, 2, 9, 4, 5, 6, 7), 2)
    assert len(one) == len(other) == 3
    assert one[0] == other[0] and not set(one[1:]) & set(other[1:])
    assert len({hashes((1, 2), 2, *under) for under in ((), ("a",), ("", "a"), ("a", "a"))}) == 4
    assert hashes(b"text of four and", 4) and hashes((), 4) == () == hashes(b"", 4)
    first = event_block_hash(event_root_hash("salt", "sql"), (1, 2))
    assert hashes((1, 2, 3, 4, 5), 2, "salt", "sql") == (first, event_block_hash(first, (3, 4)))


@given(st.lists(st.integers(0, 1), max_size=20), st.lists(st.integers(0, 1), max_size=20), st.sampled_from(["", "s"]))
def test_a_turn_names_its_blocks_alike_behind_whatever_was_before_it(
    first: list[int], second: list[int], salt: str
) -> None:
    before = RoutedRequest("a", tuple(first))
    before.block_hashes(BLOCK)
    turn = RoutedRequest("b", tuple(second), salt, before=before)
    assert turn.block_hashes(BLOCK) == hashes(tuple(second), BLOCK, salt)


class SlowIndex:
    """The same as the index, by looking at each replica's blocks."""

    def __init__(self) -> None:
        self.held: dict[int, list[bytes]] = {}  # used longest ago first
        self.most: dict[int, int] = {}

    def match(self, blocks: tuple[bytes, ...]) -> dict[int, int]:
        depths = {
            slot: next((depth for depth, one in enumerate(blocks) if one not in held), len(blocks))
            for slot, held in self.held.items()
        }
        return {slot: depth for slot, depth in depths.items() if depth}

    def hold(self, slot: int, blocks: tuple[bytes, ...]) -> None:
        kept = [one for one in self.held[slot] if one not in blocks]
        self.held[slot] = [*kept, *reversed(blocks)][-self.most[slot] :]


@given(st.data())
def test_the_index_is_what_a_slow_one_is(data: st.DataObject) -> None:
    fast, slow = PrefixIndex(), SlowIndex()
    prompts = st.lists(st.integers(0, 1), max_size=12).map(lambda tokens: hashes(tokens, 2))
    for _ in range(data.draw(st.integers(1, 30))):
        match data.draw(st.sampled_from(("join", "leave", "hold", "hold", "drop", "clear", "match"))):
            case "join":
                slot, most = data.draw(st.integers(0, 3)), data.draw(st.integers(1, 8))
                if slot not in slow.held:
                    fast.join(slot, most)
                    slow.held[slot], slow.most[slot] = [], most
            case "match":
                pass
            case what if slow.held:
                slot, blocks = data.draw(st.sampled_from(sorted(slow.held))), data.draw(prompts)
                if what == "hold":
                    fast.hold(slot, blocks)
                    slow.hold(slot, blocks)
                elif what == "drop":
                    fast.drop(slot, blocks)
                    slow.held[slot] = [one for one in slow.held[slot] if one not in blocks]
                elif what == "clear":
                    fast.clear(slot)
                    slow.held[slot] = []
                else:
                    fast.leave(slot)
                    del slow.held[slot], slow.most[slot]
            case _:
                pass
        blocks = data.draw(prompts)
        assert fast.match(blocks) == slow.match(blocks)
        assert len(fast) == len({one for held in slow.held.values() for one in held})


@dataclass
class Sent:
    replica: str
    tenant: str
    tokens: int
    has_token: bool = False


class Routing(RuleBasedStateMachine):
    """In any order of events, loads count requests in flight, and no load is left when none is."""

    def __init__(self) -> None:
        super().__init__()
        self.router = make_router("prefix-aware")
        self.names: set[str] = set()
        self.sent: dict[str, Sent] = {}
        self.lost: set[str] = set()
        self.number = 0

    @rule(name=st.sampled_from("abcd"))
    def join(self, name: str) -> None:
        if name not in self.names:
            self.router.join(name, kv_tokens=64, fair=name in "ab")
            self.names.add(name)

    @precondition(lambda self: self.names)
    @rule(data=st.data())
    def leave(self, data: st.DataObject) -> None:
        name = data.draw(st.sampled_from(sorted(self.names)))
        self.names.remove(name)
        gone = {request_id for request_id, one in self.sent.items() if one.replica == name}
        again = self.router.leave(name)
        assert set(again) == {one for one in gone if not self.sent[one].has_token}, "what is to be sent elsewhere"
        self.lost |= gone
        for one in gone:
            del self.sent[one]

    @precondition(lambda self: self.names)
    @rule(prompt=st.lists(st.integers(0, 1), min_size=1, max_size=40), tenant=st.sampled_from(("", "t")))
    def send(self, prompt: list[int], tenant: str) -> None:
        self.number += 1
        request = RoutedRequest(str(self.number), tuple(prompt), tenant=tenant)
        chosen = self.router.choose(request)
        assert chosen.cached < len(prompt), "the last token is always computed"
        self.router.sent(request, chosen.replica, chosen.cached)
        self.sent[request.request_id] = Sent(chosen.replica.name, tenant, len(prompt) - chosen.cached)

    @precondition(lambda self: self.sent)
    @rule(data=st.data())
    def first_token(self, data: st.DataObject) -> None:
        request_id = data.draw(st.sampled_from(sorted(self.sent)))
        self.router.first_token(request_id)
        self.sent[request_id].has_token = True

    @precondition(lambda self: self.sent)
    @rule(data=st.data(), length=st.one_of(st.none(), st.integers(1, 500)))
    def end(self, data: st.DataObject, length: int | None) -> None:
        request_id = data.draw(st.sampled_from(sorted(self.sent)))
        self.router.ended(request_id, length)
        del self.sent[request_id]

    @precondition(lambda self: self.lost)
    @rule(data=st.data())
    def late(self, data: st.DataObject) -> None:
        """Events of a replica that is gone change nothing."""
        request_id = data.draw(st.sampled_from(sorted(self.lost)))
        self.router.first_token(request_id)
        self.router.ended(request_id, 7)

    @invariant()
    def loads_are_what_is_under_way(self) -> None:
        assert {one.name for one in self.router.replicas} == self.names
        for replica in self.router.replicas:
            mine = [one for one in self.sent.values() if one.replica == replica.name]
            assert replica.requests == len(mine)
            assert replica.prompt_tokens == sum(one.tokens for one in mine if not one.has_token)
            own = sum(one.tokens for one in mine if not one.has_token and one.tenant == "t")
            if replica.fair:
                other = replica.prompt_tokens - own
                assert replica.tokens_ahead("t", 5) == own + min(other, own + 5)


TestRouting = Routing.TestCase


def test_a_session_is_of_one_tenant() -> None:
    mine, other = (RoutedRequest.of(request("r", session="s", tenant=tenant)) for tenant in ("a", "b"))
    assert mine.session != other.session and "s" in mine.session
    both = RoutedRequest.of(request("r", session="child", program="s", tenant="a"))
    assert both.session == mine.session, "all sessions of a program go where it began"
    assert RoutedRequest.of(request("r")).session == ""
