"""Invariant 14 under everything that can happen, in any order: outputs are what their grammars say, and the same as
alone."""

from __future__ import annotations

import json
from dataclasses import replace
from itertools import product

import hypothesis.strategies as st
import pytest
from drawn import examples
from hypothesis import HealthCheck, settings
from hypothesis.stateful import initialize, rule

from inflight.core.types.request import Request
from inflight.core.types.sampling import Grammar, SamplingParams
from inflight.engine.clock import VirtualClock
from inflight.engine.loop import EngineLoop

from .bound_executor import PIECES, BoundHarness, SlowBoundExecutor, compiled
from .harness import END_TOKENS, Client, Setup
from .test_state_machine import SETUPS, SchedulerMachine

END = next(iter(END_TOKENS))
# Each with all texts that it accepts.
WORDS: dict[Grammar, frozenset[str]] = {
    Grammar("regex", "(ab|c){1,4}>"): frozenset(
        "".join(one) + ">" for count in range(1, 5) for one in product(("ab", "c"), repeat=count)
    ),
    Grammar("regex", "<?[abc]{0,4}"): frozenset(
        begin + "".join(one) for begin in ("", "<") for count in range(5) for one in product("abc", repeat=count)
    ),
    Grammar("choice", json.dumps(["abca", "<a>", "<abca>b"])): frozenset(["abca", "<a>", "<abca>b"]),
    Grammar("lark", 'start: "<" (LETTER | inner) ">"\ninner: "<" LETTER LETTER ">"\nLETTER: /[abc]/'): frozenset(
        [f"<{one}>" for one in "abc"] + [f"<<{one}{two}>>" for one, two in product("abc", repeat=2)]
    ),
    # Most of it follows alone.
    Grammar("choice", json.dumps(["<ccabbcaab>", "<caabbccab>a"])): frozenset(["<ccabbcaab>", "<caabbccab>a"]),
    Grammar("none"): frozenset(),
}


@st.composite
def grammars(draw: st.DrawFn) -> Grammar:
    """From the first token on, behind reasoning, or whichever the output begins with; with a budget or without."""
    grammar = draw(st.sampled_from(list(WORDS)))
    after = draw(st.sampled_from([(6,), (6, 5), (0, 0, 1)] + [()] * 3 * (grammar.kind != "none")))
    if not after:
        return grammar
    return replace(
        grammar,
        after_token_ids=after,
        max_tokens_before=draw(st.sampled_from([None, 0, 1, 4])),
        opening_token_ids=draw(st.sampled_from([(), (5,), (0,), (5, 0), (3, 6)])),
    )


@st.composite
def requests(draw: st.DrawFn) -> Request:
    return Request(
        request_id="",
        prompt_token_ids=tuple(draw(st.lists(st.integers(0, 1), min_size=1, max_size=6))),
        params=SamplingParams(
            n=draw(st.integers(1, 2)),
            temperature=draw(st.sampled_from([0.0, 1.0])),
            max_tokens=draw(st.one_of(st.none(), st.integers(1, 14))),
            ignore_eos=draw(st.integers(0, 3)) == 0,
            prompt_logprobs=draw(st.sampled_from([None, None, 0])),
        ),
        seed=draw(st.integers(0, 5)),
        lane=draw(st.sampled_from(["interactive", "interactive", "batch"])),
        grammar=draw(st.one_of(st.none(), grammars(), grammars(), grammars())),
    )


def check_bound(tokens: list[int], grammar: Grammar) -> None:
    """Said once more, and otherwise: the beginning of what the grammar lets an output be."""
    opening, after, most = grammar.opening_token_ids, grammar.after_token_ids, grammar.max_tokens_before
    if after and tuple(tokens[: len(opening)]) == opening[: len(tokens)]:
        ends = (at for at in range(len(after), len(tokens) + 1) if tuple(tokens[at - len(after) : at]) == after)
        end = next(ends, None)
        before = len(tokens) if end is None else end
        assert most is None or before <= max(most, len(opening)) + len(after), "the budget is spent"
        assert grammar.kind == "none" or END not in tokens[:before], "it ends before its grammar begins"
        tokens = [] if end is None else tokens[end:]
    if grammar.kind == "none":
        return
    text, ended = tokens, END in tokens
    if ended:
        assert set(tokens[tokens.index(END) :]) == {END}
        text = tokens[: tokens.index(END)]
    written = "".join(PIECES[one] for one in text)
    words = WORDS[Grammar(grammar.kind, grammar.source)]
    assert written in words if ended else any(word.startswith(written) for word in words)


@st.composite
def setups(draw: st.DrawFn) -> Setup:
    """Draw setups of the other machine, with drafts more often than not, and room for an output."""
    setup = draw(SETUPS)
    return replace(
        setup,
        num_blocks=max(setup.num_blocks, -(-12 // setup.block_size) * len(setup.windows)),
        max_model_len=24,
        token_budget=max(setup.token_budget, 4),
        strategy=draw(st.sampled_from(["chunked", "chunked", setup.strategy])),
        right_drafts=draw(st.sampled_from([None, None, 0.5, 0.9, 1.0])),
        drafting=draw(st.sampled_from(["planned", "executor", "fickle"])),
        snapshots=0,
        tier=None,
        peers=False,
    )


class GrammarHarness(BoundHarness):
    def check_answer(self, client: Client) -> None:
        for tokens in client.tokens if client.request.grammar else ():
            check_bound(tokens, client.request.grammar)
        super().check_answer(client)

    def loop_alone(self) -> EngineLoop:
        """Masks are found the slow way."""
        setup = Setup(500, 4, 8, 500, False, 0.0, self.setup.max_model_len)
        return EngineLoop(setup.scheduler(), SlowBoundExecutor(setup.capacity), VirtualClock(), grammars=compiled())


class GrammarMachine(SchedulerMachine):
    harness: GrammarHarness
    harness_of = GrammarHarness

    @initialize(setup=setups(), fragile=st.booleans())
    def start(self, setup: Setup, fragile: bool) -> None:
        SchedulerMachine.start(self, setup, fragile)

    @rule(request=requests(), earlier=st.integers(0, 4), times=st.integers(1, 2))
    def add(self, request: Request, earlier: int, times: int) -> None:
        SchedulerMachine.add(self, request, earlier, times)

    def teardown(self) -> None:
        super().teardown()
        if hasattr(self, "harness") and self.harness.setup.right_drafts is None:
            right, drafted = self.harness.drafted
            assert right == drafted, "what alone may follow is drawn"


def test_masks_that_took_long_make_no_row_sit_out(monkeypatch: pytest.MonkeyPatch) -> None:
    """The processor time of a thread is more than usual on a busy machine, and what is drawn must not depend on it."""
    monkeypatch.setattr("inflight.execution.grammars.grammar_row.SLOW_SECONDS", -1.0)
    params, grammar = SamplingParams(), Grammar("regex", "(ab|c){1,4}>")
    prompted = Request(request_id="", prompt_token_ids=(0, 1), params=params, seed=0, grammar=grammar)
    GrammarHarness(Setup(num_blocks=30), prompted)


TestGrammars = GrammarMachine.TestCase
TestGrammars.settings = settings(
    examples(60),
    stateful_step_count=40,
    deadline=None,
    suppress_health_check=[HealthCheck.too_slow, HealthCheck.filter_too_much],
)
TestGrammars.pytestmark = [pytest.mark.timeout(1800)]  # with ten times the examples
