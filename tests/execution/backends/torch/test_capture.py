"""When a pass is captured, replayed, or run as it is: a decoder that counts, graphs that run functions again."""

from __future__ import annotations

import logging
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from typing import Any

import pytest

from inflight.execution.backends.torch.buckets import NO_BUCKETS, Bucket, Buckets, row_sizes
from inflight.execution.backends.torch.capture import CapturedDecoder, CapturedPasses


@dataclass
class FakePass:
    """tokens: what it has, in memory that passes of a bucket share."""

    tokens: list[int]
    bucket: Bucket | None = None
    adapters: int = 0


@dataclass
class FakeLogits:
    """Memory for rows of one number."""

    values: list[int] = field(default_factory=list)
    rows: int = 0

    @property
    def written(self) -> list[int]:
        return self.values[: self.rows]


@dataclass
class CountingDecoder:
    """Its hidden state is each token's square, its logits the next number. launched: what was asked of the device."""

    max_tokens: int = 512
    max_logit_rows: int = 64
    launched: list[tuple[str, int]] = field(default_factory=list)
    hidden: list[int] = field(default_factory=list)
    output: FakeLogits = field(default_factory=FakeLogits)

    def forward(self, batch: FakePass) -> None:
        self.launched.append(("forward", len(batch.tokens)))
        self.hidden[:] = [token * token for token in batch.tokens]

    def pooled(self, batch: FakePass, texts: Sequence[range]) -> list[int]:
        self.launched.append(("pooled", len(texts)))
        return [self.hidden[text[-1]] for text in texts]

    def logits(self, batch: FakePass, places: Sequence[int]) -> FakeLogits:
        self.launched.append(("logits", len(places)))
        self.output.values[:], self.output.rows = [self.hidden[place] + 1 for place in places], len(places)
        return self.output


class FakeGraph:
    def __init__(self, run: Callable[[], None], output: FakeLogits) -> None:
        self._run, self._output, self.replays = run, output, 0

    def replay(self) -> None:
        """The host learns nothing of it: a handle that says how many rows are written says what it said."""
        self.replays += 1
        rows = self._output.rows
        self._run()
        self._output.rows = rows


class FakeGraphs:
    """Like a device, notes `run` without leaving anything of what it computes. room: for so many graphs."""

    def __init__(self, decoder: CountingDecoder, room: int = 99) -> None:
        self._decoder, self.room = decoder, room
        self.made: list[FakeGraph] = []

    def capture(self, run: Callable[[], None]) -> FakeGraph:
        if len(self.made) >= self.room:
            raise RuntimeError("out of memory")
        decoder = self._decoder
        kept: list[list[Any]] = [decoder.hidden, decoder.output.values, decoder.launched]
        before = [list(one) for one in kept]
        run()
        for one, held in zip(kept, before, strict=True):
            one[:] = held
        self.made.append(FakeGraph(run, decoder.output))
        return self.made[-1]


class Bench:
    def __init__(self, room: int = 99, buckets: Buckets = NO_BUCKETS) -> None:
        self.decoder = CountingDecoder()
        self.graphs = FakeGraphs(self.decoder, room)
        self.captured = CapturedDecoder(self.decoder, self.graphs, buckets)
        self._memory: dict[int, FakePass] = {}

    @property
    def sizes(self) -> list[int]:
        """Return the sizes that have graphs."""
        return [one.tokens for one in self.captured.captured]

    def decode(self, tokens: Sequence[int], bucket: int, adapters: int = 0, one_each: bool = True) -> list[int]:
        """The logits of the pass's own rows."""
        batch = self.pass_of(tokens, bucket, adapters, one_each)
        self.captured.forward(batch)
        return list(self.captured.logits(batch, range(len(tokens))).written)

    def pass_of(self, tokens: Sequence[int], bucket: int, adapters: int = 0, one_each: bool = True) -> FakePass:
        """As a backend has it: the bucket's memory filled up with zeros."""
        batch = self._memory.setdefault(bucket, FakePass([]))
        batch.bucket, batch.adapters = Bucket(bucket, one_each), adapters
        batch.tokens[:] = [*tokens, *[0] * (bucket - len(tokens))]
        return batch

    @property
    def batch(self) -> dict[int, FakePass]:
        return self._memory


def test_a_second_pass_of_a_size_replays_the_first() -> None:
    bench = Bench()
    assert bench.decode([3, 4, 5], bucket=4) == [10, 17, 26]
    assert bench.sizes == [4]
    assert bench.decoder.launched == [("forward", 4), ("logits", 4)]
    assert bench.decode([6, 7], bucket=4) == [37, 50]  # with what lies in the pass's memory now
    assert bench.decode([1], bucket=1) == [2]
    assert bench.decode([2], bucket=1) == [5]
    assert [graph.replays for graph in bench.graphs.made] == [1, 1]


def test_other_passes_run_as_they_are() -> None:
    bench = Bench()
    for tokens in ([2, 3], list(range(100))):
        batch = FakePass(tokens)
        bench.captured.forward(batch)
        assert bench.captured.logits(batch, [1]).written == [tokens[1] ** 2 + 1]
    assert not bench.graphs.made and (bench.captured.max_tokens, bench.captured.max_logit_rows) == (512, 64)


def test_logits_of_some_rows_or_a_second_time_are_computed_from_the_graphs_hidden_state() -> None:
    bench = Bench()
    bench.decode([1, 1], bucket=2)
    bench.decode([3, 4], bucket=2)
    batch = bench.batch[2]
    bench.decoder.output.values[:] = [-1, -1]  # the caller may overwrite them
    assert bench.captured.logits(batch, [0, 1]).written == [10, 17]
    bench.captured.forward(batch)
    assert bench.captured.logits(batch, [1]).written == [17]
    assert bench.captured.pooled(batch, [range(1, 2)]) == [16]
    assert len(bench.graphs.made) == 1


def test_a_drafter_computes_logits_of_ends_alone() -> None:
    decoder = CountingDecoder()
    graphs = FakeGraphs(decoder)
    passes = CapturedPasses(decoder, graphs, Buckets((1, 2), (2, 4)), draws_ends=True)
    batch = FakePass([], Bucket(2, False))
    for tokens in ([2, 3], [4, 5]):
        batch.tokens[:] = tokens
        passes.forward(batch)
        assert passes.logits(batch, [1]).written == [tokens[1] ** 2 + 1]
    assert ("logits", 2) not in decoder.launched
    passes.forward(FakePass([6, 7], Bucket(2, True)))
    assert decoder.launched[-1] == ("logits", 2) and len(graphs.made) == 2


def test_logits_that_others_were_written_over_are_not_handed_out() -> None:
    """Scores of a prompt's tokens come before the draws of the rows beside it."""
    bench = Bench()
    bench.decode([1, 1], bucket=2)
    bench.captured.forward(bench.pass_of([3, 4], 2))
    assert bench.captured.logits(bench.batch[2], [1]).written == [17]
    assert bench.captured.logits(bench.batch[2], [0]).written == [10]


def test_logits_of_an_earlier_pass_are_not_handed_out() -> None:
    bench = Bench()
    bench.decode([1, 1], bucket=2)
    bench.captured.forward(bench.batch[2])  # its logits are not asked for
    prompt = FakePass([5, 6])
    bench.captured.forward(prompt)
    assert bench.captured.logits(prompt, [0]).written == [26]


def test_where_none_can_be_made_a_sentence_says_so_once(caplog: pytest.LogCaptureFixture) -> None:
    bench = Bench(room=1)
    with caplog.at_level(logging.WARNING):
        for tokens, bucket in (([2], 1), ([2, 3], 2), ([4, 5], 2), ([1, 2, 3], 4), ([7], 1)):
            assert bench.decode(tokens, bucket) == [token * token + 1 for token in tokens]
    assert bench.sizes == [1] and bench.graphs.made[0].replays == 1
    (said,) = caplog.messages
    assert said.startswith("a pass of 2 tokens could not be captured as a graph (out of memory)")
    assert "--enforce-eager" in said


def test_where_one_with_chunks_of_several_tokens_cannot_be_made_those_of_single_ones_are(
    caplog: pytest.LogCaptureFixture,
) -> None:
    bench = Bench(1, Buckets((1, 2), (2, 4)))
    with caplog.at_level(logging.WARNING):
        assert bench.decode([1], 1) == [2]
        for one_each, tokens in ((False, [2, 3]), (False, [2, 3]), (True, [4, 5])):
            bench.graphs.room = 2 if one_each else 1
            assert bench.decode(tokens, 2, one_each=one_each) == [token * token + 1 for token in tokens]
    assert bench.captured.captured == (Bucket(1, True), Bucket(2, True)) and len(caplog.messages) == 1
    bench.graphs.room = 0
    assert bench.decode([1], 4) == [2] and bench.decode([1], 8) == [2]
    assert len(caplog.messages) == 2 and "a pass of 4 tokens" in caplog.messages[1], "none at all is tried any more"


def test_passes_with_adapters_have_graphs_of_their_own_until_adapters_change_more() -> None:
    bench = Bench()
    for tokens, adapters in (([1], 0), ([2], 1), ([3], 1), ([4], 0)):
        assert bench.decode(tokens, 1, adapters) == [tokens[0] ** 2 + 1]
    plain, adapted = bench.graphs.made
    assert (plain.replays, adapted.replays) == (1, 1)
    assert bench.decode([1, 2], 2, adapters=1) == [2, 5]
    assert bench.decode([5], 1, adapters=2) == [26] and bench.decode([6], 1, adapters=2) == [37]
    assert bench.decode([1, 3], 2, adapters=2) == [2, 10]  # that of before is given up
    assert bench.decode([7], 1) == [50]
    assert [graph.replays for graph in bench.graphs.made] == [2, 1, 0, 1, 0]
    assert bench.sizes == [1, 2]


def test_ahead_the_largest_comes_first_then_the_smallest_until_time_is_up() -> None:
    bench, now = Bench(buckets=Buckets(row_sizes(32))), [0.0]

    def run(chunks: Sequence[int]) -> None:
        bench.decode([], sum(chunks))
        now[0] += 1

    bench.captured.capture_ahead(run, 2.0, lambda: now[0])
    assert bench.sizes == [1, 32]
    bench.captured.capture_ahead(run, 0.0, lambda: now[0])
    assert bench.sizes == [1, 32]
    assert bench.decode([9], bucket=2) == [82] and bench.sizes == [1, 2, 32]


def test_ahead_there_is_a_pass_for_each_size() -> None:
    tried: list[Sequence[int]] = []
    Bench(buckets=Buckets((1, 2), (2, 4))).captured.capture_ahead(tried.append, 60.0)
    assert tried == [[2, 2], [1, 1], [1], [2]]


def test_of_more_tokens_than_logits_are_computed_of_at_once_only_the_layers_are_replayed() -> None:
    bench = Bench()
    bench.captured.max_logit_rows = 2
    for tokens in ([2, 3, 4], [5, 6, 7]):
        batch = bench.pass_of(tokens, 4, one_each=False)
        bench.captured.forward(batch)
        assert bench.captured.logits(batch, [2]).written == [tokens[2] ** 2 + 1]
        assert bench.captured.logits(batch, [0, 1]).written == [token * token + 1 for token in tokens[:2]]
    (graph,) = bench.graphs.made
    assert graph.replays == 1 and ("logits", 4) not in bench.decoder.launched


def test_chunks_of_several_tokens_have_graphs_of_their_own_where_those_differ() -> None:
    bench = Bench()
    for tokens, one_each in (([3, 4], True), ([5, 6], False), ([7, 8], False), ([1, 2], True)):
        assert bench.decode(tokens, 2, one_each=one_each) == [token * token + 1 for token in tokens]
    assert bench.captured.captured == (Bucket(2, False), Bucket(2, True))
    assert [graph.replays for graph in bench.graphs.made] == [1, 1]


def test_ahead_ends_where_none_can_be_made() -> None:
    bench, tried = Bench(0, Buckets(row_sizes(4))), []

    def run(chunks: Sequence[int]) -> None:
        tried.append(sum(chunks))
        bench.decode([], sum(chunks))

    bench.captured.capture_ahead(run, 60.0)
    assert tried == [4]
