"""Token ids of prompts: shared where they are said to be, own where not."""

from __future__ import annotations

import pytest

from inflight.workload.arrivals import Poisson
from inflight.workload.classes import Sessions, SharedPrefixes, TrafficClass
from inflight.workload.contents import Contents
from inflight.workload.lengths import Fixed, Uniform
from inflight.workload.synthetic import synthesize
from inflight.workload.workload import Entry, WorkloadError


def entry(prompt_tokens: int, prefix: tuple[int, ...] = (), block_size: int = 16) -> Entry:
    return Entry(0.0, prompt_tokens, 1, prefix=prefix, block_size=block_size)


def test_equal_prefixes_are_equal_tokens_and_the_rest_is_each_ones_own() -> None:
    contents = Contents([entry(50, (1, 2)), entry(70, (1, 2)), entry(40, (1, 3))], vocab_size=5000)
    one, two, three = (contents.prompt(index) for index in range(3))
    assert (len(one), len(two), len(three)) == (50, 70, 40)
    assert one[:32] == two[:32] and one[32:50] != two[32:50]
    assert one[:16] == three[:16] and one[16:32] != three[16:32]
    assert one[:16] != one[16:32]
    cut = Contents([entry(40, (1, 2, 3)), entry(48, (1, 2, 3))], vocab_size=5000)
    assert cut.prompt(0) == cut.prompt(1)[:40], "it ends within a block"


def test_tokens_are_the_same_every_time_and_others_with_another_seed() -> None:
    entries = [entry(500)]
    assert Contents(entries, 5000, seed=1).prompt(0) == Contents(entries, 5000, seed=1).prompt(0)
    assert Contents(entries, 5000, seed=1).prompt(0) != Contents(entries, 5000, seed=2).prompt(0)
    # In every process, and in every version: results are compared over months.
    assert Contents(entries, 5000).prompt(0)[:8] == (3245, 4940, 3562, 1975, 1319, 230, 1210, 1307)


def test_the_whole_vocabulary_is_used_above_the_minimum_without_those_to_avoid() -> None:
    contents = Contents([entry(20_000)], vocab_size=40, min_id=10, avoid=(12, 13, 39))
    found = contents.prompt(0)
    assert set(found) == set(range(10, 39)) - {12, 13}
    assert all(500 < found.count(token) < 1000 for token in set(found))
    found = Contents([entry(50_000)], vocab_size=150_000, min_id=100).prompt(0)
    assert min(found) >= 100 and max(found) > 149_900 and max(found) < 150_000
    assert sum(found) / len(found) == pytest.approx(75_000, rel=0.02)
    with pytest.raises(WorkloadError, match="vocabulary of 10 tokens"):
        Contents([], vocab_size=10, min_id=10)


def test_prompts_that_are_given_are_taken() -> None:
    entries = [Entry(0.0, 3, 1, prompt=(9, 8, 7)), Entry(0.0, 2, 1, prompt="ab")]
    assert Contents(entries, 100).prompt(0) == (9, 8, 7)
    assert Contents(entries, 100, encode=lambda text: [ord(one) for one in text]).prompt(1) == (97, 98)
    with pytest.raises(WorkloadError, match="request 1 is text; a tokenizer"):
        Contents(entries, 100).prompt(1)


def test_where_only_lengths_count_texts_and_strange_ids_are_stood_in_for() -> None:
    texts = {9: "the same beginning, then one end", 6: "the same beginning, or"}
    short = [Entry(0.0, tokens, 1, prompt=text) for tokens, text in texts.items()]
    added = Entry(0.0, 20, 5, prompt="more", after=0)
    contents = Contents([*short, added, Entry(0.0, 2, 1, prompt=(7, 130))], 100, min_id=1, stand_in=True)
    first, second, later, strange = (contents.prompt(index) for index in range(4))
    assert (len(first), len(second), len(later)) == (9, 6, 10)
    assert first[:4] == second[:4] and first[5:] != second[5:]
    assert strange == (7, 30)
    assert {token for prompt in (first, second, later, strange) for token in prompt} <= set(range(1, 100))


def test_a_turn_begins_with_the_one_before_and_adds_its_own() -> None:
    sessions = Sessions(turns=Fixed(4), added=Uniform(5, 9))
    prefix = SharedPrefixes(system_tokens=24, groups=2, group_tokens=10)
    chat = TrafficClass(name="chat", share=1, input=Fixed(50), output=Fixed(13), prefix=prefix, sessions=sessions)
    workload = synthesize([chat], arrivals=Poisson(1), requests=40)
    contents = Contents(workload.entries, 5000)
    for index, one in enumerate(workload.entries):
        prompt = contents.prompt(index)
        assert len(prompt) == one.prompt_tokens
        if one.after is None:
            assert contents.added(index) == prompt
            continue
        before = contents.prompt(one.after)
        assert prompt[: len(before)] == before
        added = contents.added(index)
        assert len(prompt) == len(before) + 13 + len(added) and prompt[-len(added) :] == added
    parts = (slice(24), slice(24, 34), slice(34, 50))
    assert [len({contents.prompt(index)[part] for index in range(40)}) for part in parts] == [1, 2, 10]


def test_a_turn_of_a_trace_adds_a_token_at_least() -> None:
    entries = [Entry(0.0, 30, 10, prefix=(1, 2), block_size=16), Entry(1.0, 35, 10, after=0)]
    assert len(Contents(entries, 100).added(1)) == 1


def test_with_one_byte_a_token_the_same_is_still_the_same() -> None:
    """Fast prompts of few different ids: equal where they were equal, below 256, and within the vocabulary."""
    entries = [Entry(0.0, 40, 1, prefix=(5,), block_size=16) for _ in range(2)]
    one, other = (Contents(entries, 32_000, min_id=1, width=1).prompt(index) for index in (0, 1))
    assert one[:16] == other[:16] and one[16:] != other[16:]
    assert len(one) == 40 and min(one) >= 1 and max(one) < 256
    assert max(Contents(entries, 100, width=1).prompt(0)) < 100
