"""A subscriber believes what the prefix cache really has, whatever happens in the engine: preemption, eviction, swap,
windows, drafts, adapters, steps that fail."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import replace

import pytest
from drawn import examples
from hypothesis import HealthCheck, settings
from hypothesis.stateful import invariant

from inflight.core.kv.prefix_cache import KVEventQueue
from inflight.core.types.kv_blocks import BlockPublished, CacheChange, SharedRoot
from inflight.engine.kv_events.events import RANK, Batch, SentBlocks, encode
from tests.core import inspect_scheduler as inside
from tests.core.builders import request
from tests.core.harness import Harness, Setup
from tests.core.test_state_machine import SchedulerMachine

from .subscriber import Mirror


class MirroredHarness(Harness):
    """Its cache's changes go over the wire after every verb."""

    def __init__(self, setup: Setup):
        self.journal = KVEventQueue()
        super().__init__(replace(setup, journal=self.journal, distinct_prompts=False))
        self.sent, self.mirror = SentBlocks(), Mirror()
        self.newest: dict[str, int] = {}  # numbers of adapters that have published anything, by name
        self.media: set[str] = set()  # that were seen

    def compare(self) -> None:
        changes = self.journal.take()
        self._note_adapters(changes)
        events = self.sent.events(changes)
        if events:
            self.mirror.hear(encode(Batch(0.0, events, RANK)))
        expected = set()
        for root, tokens, is_on_host in inside.findable(self.scheduler):
            adapter = root.adapter
            if adapter is None or adapter.number == self.newest[adapter.name]:
                content = (root.salt, None if adapter is None else adapter.name, tokens)
                expected.add((content, "CPU" if is_on_host else "GPU"))
        assert self.mirror.contents == expected
        self.media |= {medium for _, medium in expected}

    def _note_adapters(self, changes: Iterable[CacheChange]) -> None:
        for change in changes:
            if isinstance(change, BlockPublished) and isinstance(root := change.parent, SharedRoot) and root.adapter:
                self.newest[root.adapter.name] = max(self.newest.get(root.adapter.name, 0), root.adapter.number)


class MirrorMachine(SchedulerMachine):
    harness: MirroredHarness
    harness_of = MirroredHarness

    @invariant()
    def mirrors(self) -> None:
        if hasattr(self, "harness"):
            self.harness.compare()

    def teardown(self) -> None:
        super().teardown()
        self.mirrors()


TestMirror = MirrorMachine.TestCase
TestMirror.settings = settings(
    examples(50),
    stateful_step_count=40,
    deadline=None,
    suppress_health_check=[HealthCheck.too_slow, HealthCheck.filter_too_much],
)
TestMirror.pytestmark = [pytest.mark.timeout(1800)]  # type: ignore[attr-defined]


@pytest.mark.parametrize("polls", [(), (1, 0)])
def test_blocks_that_are_swapped_to_the_host_and_back_are_events(polls: tuple[int, ...]) -> None:
    swapping = Setup(num_blocks=6, max_rows=2, preemption="swap", host_blocks=8, copy_seconds=1e-6)
    harness = MirroredHarness(replace(swapping, transfer_polls=polls))
    harness.add(request("a", (0, 1, 0, 1), 8), request("b", (1, 1, 0, 0), 8))
    while harness.alive:
        harness.step()
        harness.compare()
    assert harness.media == {"GPU", "CPU"}
    assert {medium for _, medium in harness.mirror.contents} == {"GPU"}, "what no request waits for is forgotten"


def test_a_request_finds_the_blocks_of_the_mirror() -> None:
    harness = MirroredHarness(Setup(num_blocks=12))
    harness.add(request("a", (0, 1, 0, 1, 1), 1))
    harness.drain()
    harness.compare()
    assert {tokens for (_, _, tokens), _ in harness.mirror.contents} == {(0, 1), (0, 1, 0, 1)}
    harness.add(request("b", (0, 1, 0, 1, 1, 1), 1))
    harness.drain()
    assert harness.clients[-1].ended is not None and harness.clients[-1].ended.timings.cached_tokens == 4


def test_what_slid_out_of_a_window_and_was_evicted_takes_all_behind_it_along() -> None:
    """Content without its beginning is retained for a while, and no request finds it."""
    harness = MirroredHarness(Setup(num_blocks=6, windows=(4,), max_rows=1))
    harness.add(request("a", (0, 1, 0, 1, 1, 0, 0, 1), 12))
    most = 0
    while harness.alive:
        harness.step()
        harness.compare()
        most = max(most, len(harness.mirror.contents))
    assert most > 3 and not harness.mirror.contents
