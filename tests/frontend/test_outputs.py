"""Events become outputs: deltas add up to the text, samples are separate, ends are reported once."""

from __future__ import annotations

from pathlib import Path

import pytest

from inflight.core.types.events import Finish, FinishedEvent, PooledEvent, PromptScoredEvent, TokensEvent
from inflight.core.types.request import Request
from inflight.core.types.sampling import NO_SAMPLING, PoolingParams, SamplingParams, TokenLogprob
from inflight.frontend.outputs import Logprob, OutputCollector
from inflight.text import Tokenizer

from .test_lines import timings


@pytest.fixture(scope="module")
def tokenizer(tiny: Path) -> Tokenizer:
    return Tokenizer.load(tiny)


def collector(tokenizer: Tokenizer, **settings: object) -> OutputCollector:
    params = SamplingParams(**settings)  # type: ignore[arg-type]
    return OutputCollector(Request(request_id="r", prompt_token_ids=(65,), params=params), tokenizer, "A")


def test_deltas_add_up_and_hold_back_half_a_character(tokenizer: Tokenizer) -> None:
    one = collector(tokenizer)
    ids = tokenizer.encode("naïve 日本 😀 end")
    deltas = [one.take(TokensEvent("r", 0, (token,), None, None))[1] for token in ids[:-1]]
    deltas.append(one.take(TokensEvent("r", 0, (ids[-1],), None, Finish("length")))[1])
    assert "".join(deltas) == "naïve 日本 😀 end" == one.output().outputs[0].text
    assert not any("\ufffd" in delta for delta in deltas)
    assert one.output_tokens == len(ids) and not one.finished
    assert one.take(FinishedEvent("r", (Finish("length"),), timings())) == (0, "")
    output = one.output()
    assert output.finished and output.num_cached_tokens == 1 and output.prompt == "A"


def test_the_token_that_ends_is_no_part_of_the_text(tokenizer: Tokenizer) -> None:
    ids = tokenizer.encode("one two")
    for keep in (False, True):
        one = collector(tokenizer, stop_token_ids=(ids[-1],), include_stop_str_in_output=keep)
        one.take(TokensEvent("r", 0, tuple(ids[:-1]), None, None))
        one.take(TokensEvent("r", 0, (ids[-1],), None, Finish("stop", ids[-1])))
        sample = one.output().outputs[0]
        assert sample.token_ids == ids and sample.stop_reason == ids[-1]
        assert sample.text == tokenizer.decode(ids if keep else ids[:-1])


def test_samples_are_separate(tokenizer: Tokenizer) -> None:
    both = collector(tokenizer, n=2)
    assert both.take(TokensEvent("r", 1, (66,), None, None))[0] == 1
    both.take(TokensEvent("r", 0, (67,), None, Finish("stop")))
    assert both.output_tokens == 2
    both.take(FinishedEvent("r", (Finish("stop"), Finish("abort")), timings()))
    assert [one.finish_reason for one in both.output().outputs] == ["stop", "abort"]
    assert [one.token_ids for one in both.output().outputs] == [[67], [66]]


def test_an_output_is_a_picture_of_its_moment(tokenizer: Tokenizer) -> None:
    """A returned output does not grow, and each token is decoded once."""
    one = collector(tokenizer, logprobs=1)
    pictures = []
    for token in (66, 67, 68):
        one.take(TokensEvent("r", 0, (token,), (TokenLogprob(token, -1.0, ((70, -0.5),)),), None))
        pictures.append(one.output().outputs[0])
    assert [len(picture.token_ids) for picture in pictures] == [1, 2, 3]
    assert [len(picture.logprobs or ()) for picture in pictures] == [1, 2, 3]
    assert [len(picture.token_logprobs or ()) for picture in pictures] == [1, 2, 3]
    assert pictures[0].logprobs is not None and pictures[2].logprobs is not None
    assert pictures[2].logprobs[0] is pictures[0].logprobs[0]
    named = pictures[2].logprobs[2]
    assert (named[68].rank, named[70].rank, named[70].logprob) == (None, 1, -0.5)
    assert named[68].decoded_token == tokenizer.decode([68])


def test_the_prompts_scores_stand_where_its_tokens_do(tokenizer: Tokenizer) -> None:
    params = SamplingParams(prompt_logprobs=1)
    one = OutputCollector(Request(request_id="r", prompt_token_ids=(65, 66, 67), params=params), tokenizer)
    assert one.output().prompt_logprobs == [None]
    first, second = TokenLogprob(66, -1.0, ((70, -0.5),)), TokenLogprob(67, -0.25, ((67, -0.25),))
    assert one.take(PromptScoredEvent("r", (first,))) == (0, "")
    before = one.output()
    one.take(PromptScoredEvent("r", (second,)))
    one.take(TokensEvent("r", 0, (68,), None, None))
    after = one.output()
    assert before.prompt_token_logprobs == [first] and after.prompt_token_logprobs == [first, second]
    assert before.prompt_logprobs is not None and len(before.prompt_logprobs) == 2
    assert after.prompt_logprobs is not None and after.prompt_logprobs[0] is None
    named = after.prompt_logprobs[1] or {}
    assert {token: (entry.logprob, entry.rank) for token, entry in named.items()} == {66: (-1.0, None), 70: (-0.5, 1)}
    assert named[66].decoded_token == tokenizer.decode([66])
    assert after.prompt_logprobs[2] == {67: Logprob(-0.25, 1, tokenizer.decode([67]))}
    assert after.outputs[0].logprobs is None


def test_what_was_not_asked_is_not_there(tokenizer: Tokenizer) -> None:
    output = collector(tokenizer).output()
    assert output.prompt_logprobs is None and output.prompt_token_logprobs is None


def test_a_vector_is_the_output_of_a_pooled_request(tokenizer: Tokenizer) -> None:
    pooled = Request(request_id="r", prompt_token_ids=(65,), params=NO_SAMPLING, pooling=PoolingParams())
    one = OutputCollector(pooled, tokenizer, "A")
    assert one.take(PooledEvent("r", (0.6, 0.8))) == (0, "")
    one.take(FinishedEvent("r", (Finish("length"),), timings()))
    output = one.output()
    assert (output.embedding, output.outputs[0].text, output.finished) == ((0.6, 0.8), "", True)
