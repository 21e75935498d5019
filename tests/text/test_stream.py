"""Tokens to text up to a stop string, as a client's stream and the scheduler's stop checker use it."""

from __future__ import annotations

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from inflight.text import TextStream, Tokenizer

from .builders import CORPUS

fragments = st.sampled_from([*CORPUS, "😀", "漢字", "STOP", " ", "the "])
stop_tuples = st.lists(st.sampled_from(["STOP", "😀", "字", " ", "request", "12 tok", "\n\n"]), max_size=3).map(tuple)


@given(
    parts=st.lists(fragments, max_size=5),
    stops=stop_tuples,
    include=st.booleans(),
    sizes=st.lists(st.integers(1, 7), min_size=1),
)
@settings(max_examples=40, deadline=None)
def test_the_checker_and_the_client_agree(
    tokenizer: Tokenizer, parts: list[str], stops: tuple[str, ...], include: bool, sizes: list[int]
) -> None:
    """One token at a time or several, the same text and stop come out, and they are those of all the text."""
    token_ids = tokenizer.encode("".join(parts), add_special_tokens=False)
    checker = TextStream(tokenizer, (), stops, include)
    pushed = 0
    for token_id in token_ids:
        checker.push([token_id])
        pushed += 1
        if checker.stopped_by is not None:
            break
    client = TextStream(tokenizer, (), stops, include)
    text, start, rounds = "", 0, 0
    while start < pushed:
        size = sizes[rounds % len(sizes)]
        text += client.push(token_ids[start : min(start + size, pushed)])
        start, rounds = start + size, rounds + 1
    text += client.finish()
    checker.finish()
    assert (client.text, client.stopped_by) == (text, checker.stopped_by) == (checker.text, checker.stopped_by)

    whole = tokenizer.decode(token_ids)
    if client.stopped_by is None:
        assert text == whole
        assert not any(stop in whole for stop in stops)
    else:
        assert (text if include else text + client.stopped_by) == whole[
            : len(text) + (not include) * len(client.stopped_by)
        ]


@pytest.fixture(params=["byte_level", "llama2"])
def plain(request: pytest.FixtureRequest, tokenizers: dict[str, Tokenizer]) -> Tokenizer:
    return tokenizers[request.param]


def test_nothing_comes_after_a_stop(plain: Tokenizer) -> None:
    stream = TextStream(plain, (), ("request",))
    token_ids = plain.encode(CORPUS[0], add_special_tokens=False)
    text = stream.push(token_ids)
    assert text == stream.text == "The batch waits for the longest "
    assert stream.stopped_by == "request"
    assert (stream.push(token_ids), stream.finish(), stream.text) == ("", "", text)


def test_the_stop_may_stay(plain: Tokenizer) -> None:
    stream = TextStream(plain, (), ("request",), include_stop=True)
    assert stream.push(plain.encode(CORPUS[0], add_special_tokens=False)) == "The batch waits for the longest request"


def test_the_stop_is_known_at_the_token_that_completes_it(plain: Tokenizer) -> None:
    stream = TextStream(plain, (), ("st, and",))
    stops = []
    for token_id in plain.encode(CORPUS[0], add_special_tokens=False):
        stream.push([token_id])
        stops.append((plain.decode([token_id]), stream.stopped_by))
    first = next(position for position, (_, stop) in enumerate(stops) if stop)
    assert "d" in stops[first][0]
    assert stream.stopped_by == "st, and"


def test_stops_count_from_a_token_on(plain: Tokenizer) -> None:
    token_ids = plain.encode("the longest, the longest", add_special_tokens=False)
    first = TextStream(plain, (), ("longest",))
    at = next(n for n, token_id in enumerate(token_ids, start=1) if (first.push([token_id]), first.stopped_by)[1])
    for stops_from, text in ((at, "the "), (at + 1, "the longest, the ")):
        stream = TextStream(plain, (), ("longest",), stops_from=stops_from)
        assert (stream.push(token_ids), stream.stopped_by) == (text, "longest")
    never = TextStream(plain, (), ("longest",), stops_from=len(token_ids) + 1)
    assert (never.push(token_ids) + never.finish(), never.stopped_by) == ("the longest, the longest", None)


def test_a_stop_in_the_prompt_does_not_count(plain: Tokenizer) -> None:
    prompt = plain.encode("the longest req", add_special_tokens=False)
    stream = TextStream(plain, prompt, ("longest", "request"))
    stream.push(plain.encode("the", add_special_tokens=False))
    assert stream.stopped_by is None


def test_finishing_gives_what_was_held(plain: Tokenizer) -> None:
    stream = TextStream(plain, (), ("wait!",))
    before = stream.push(plain.encode("the batch wait", add_special_tokens=False))
    assert (before, stream.finish(), stream.text, stream.stopped_by) == ("the batch ", "wait", "the batch wait", None)


def test_special_tokens_can_be_shown(plain: Tokenizer) -> None:
    end = plain.eos_token_id
    assert end is not None
    for skip, expected in ((True, ""), (False, plain.id_to_token(end))):
        stream = TextStream(plain, (), (), skip_special_tokens=skip)
        assert stream.push([end]) + stream.finish() == expected
    shown = TextStream(plain, (), (plain.id_to_token(end) or "",), skip_special_tokens=False)
    shown.push([end])
    assert shown.stopped_by == plain.id_to_token(end)


def test_a_stop_string_of_the_replacement_mark_is_found_at_the_end(plain: Tokenizer) -> None:
    emoji = plain.encode("🫠", add_special_tokens=False)
    stream = TextStream(plain, (), ("\ufffd",))
    assert (stream.push(emoji[:-1]), stream.stopped_by) == ("", None)
    assert (stream.finish(), stream.stopped_by) == ("", "\ufffd")
