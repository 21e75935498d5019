"""Masks against the slow way: every token tried, one by one, on the text that it would make."""

from __future__ import annotations

import json
import random
import re
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import suppress

import numpy as np
import pytest
from text.builders import byte_level

from inflight.core.types.plan import BatchPlan, Chunk, NewRequest, Sampled
from inflight.core.types.request import RequestRefused
from inflight.core.types.sampling import Grammar, SamplingParams
from inflight.execution.grammars import compiled_grammars, grammar_row, grammar_rows
from inflight.execution.grammars.compiled_grammars import CompiledGrammars
from inflight.execution.grammars.compiling import GrammarError
from inflight.execution.grammars.grammar_row import GrammarRow
from inflight.execution.grammars.grammar_rows import GrammarRows
from inflight.execution.grammars.slow_masks import MaskThread, SlowMask
from inflight.execution.grammars.vocabulary import Vocabulary
from inflight.text import Tokenizer

from .vocabularies import vocabulary_of

TOKENIZER = Tokenizer(byte_level())
SIZE = 384  # as a model's embedding that is padded
END = TOKENIZER.token_to_id("<|end|>")
THINK_END = (5, 6, 5, 7)
PROMPT = (1, 2, 3)
assert END is not None


@pytest.fixture(scope="module")
def compiled() -> Iterator[CompiledGrammars]:
    vocabulary = vocabulary_of(TOKENIZER, SIZE, END)
    grammars = CompiledGrammars(lambda: vocabulary)
    yield grammars
    grammars.close()


class Row:
    """One row as a runner asks for it."""

    def __init__(self, compiled: CompiledGrammars, grammar: Grammar, output: tuple[int, ...] = ()) -> None:
        self.rows, self.known = GrammarRows(compiled, SIZE), len(PROMPT) + len(output)
        params = SamplingParams()
        with suppress(RequestRefused):
            compiled.check(grammar)
        new = NewRequest(4, PROMPT + output, len(PROMPT), params, seed=0, sample_index=0, grammar=grammar)
        self.rows.start((), [new])

    def allowed(self, *drafts: int) -> list[list[int] | None]:
        """Behind what is known, and behind each draft."""
        chunk = self._chunk(drafts)
        masks = self.rows.fill([chunk])
        assert masks is not None
        return [None if one is None else tokens_of(one) for one in masks.take(1 + len(drafts))]

    def drawn(self, *token_ids: int) -> tuple[int, ...]:
        """Return the only tokens that may follow."""
        plan = BatchPlan(0, (self._chunk(()),))
        (result,) = self.rows.sampled(plan, [Sampled(9, token_ids)])
        self.known += len(token_ids)
        return result.forced_token_ids

    def fault(self) -> str | None:
        (result,) = self.rows.sampled(BatchPlan(0, (self._chunk(()),)), [Sampled(9, (), error="nothing to draw")])
        return result.error

    def _chunk(self, drafts: tuple[int, ...]) -> Chunk:
        count = 1 + len(drafts)
        return Chunk(9, 4, self.known - 1, count, (), count, draft_token_ids=drafts, num_drafts=len(drafts))


def tokens_of(bits: np.ndarray) -> list[int]:
    return np.flatnonzero(np.unpackbits(bits.view(np.uint8), bitorder="little")[:SIZE]).tolist()


def tried(pattern: str, output: bytes, partial: str) -> list[int]:
    """Tokens behind which the text can still become one of the pattern (`partial`: its beginnings), and the end where
    it is one."""
    found = []
    for token_id in range(TOKENIZER.vocab_size):
        if token_id == END:
            if re.fullmatch(pattern, output.decode()):
                found.append(token_id)
        elif token_id not in TOKENIZER.special_token_ids:
            more = TOKENIZER.token_bytes(token_id)
            if more and re.fullmatch(partial, (output + more).decode("latin-1")):
                found.append(token_id)
    return found


def test_masks_are_those_of_trying_every_token(compiled: CompiledGrammars) -> None:
    pattern, partial = (
        "[a-f]{3,9}(,[0-9]{2}){1,3}",
        "[a-f]{0,9}|[a-f]{3,9}(,[0-9]{2}){0,2},[0-9]{0,2}|[a-f]{3,9}(,[0-9]{2}){3}",
    )
    chance = random.Random(3)
    for _ in range(6):
        row, output = Row(compiled, Grammar("regex", pattern)), b""
        for _ in range(30):
            (allowed,) = row.allowed()
            # The compiler leaves out what the tokenizer would spell otherwise; nothing that cannot follow comes in.
            assert allowed and set(allowed) <= set(tried(pattern, output, partial))
            assert (END in allowed) == (re.fullmatch(pattern, output.decode()) is not None)
            assert any(len(TOKENIZER.token_bytes(one)) == 1 or one == END for one in allowed)
            token_id = chance.choice(allowed)
            if token_id == END:
                break
            output += TOKENIZER.token_bytes(token_id)
            row.drawn(token_id)
        assert re.fullmatch(pattern, output.decode())


def test_behind_drafts_masks_are_those_of_the_tokens_drawn(compiled: CompiledGrammars) -> None:
    grammar = Grammar("json_schema", '{"type":"array","items":{"enum":["ab","cd",12]},"maxItems":4}')
    chance, drafted, output = random.Random(5), Row(compiled, grammar), list[int]()
    while END not in output:
        drafts: list[int] = []
        for place in range(4):
            behind = tuple(output + drafts)
            allowed = drafted.allowed(*drafts)[place]
            assert allowed and allowed == Row(compiled, grammar, behind).allowed()[0]
            drafts.append(chance.choice(allowed))
        assert drafted.allowed(300, *drafts)[0] == drafted.allowed()[0]  # a wrong one changes nothing
        drafted.drawn(drafts[0])  # the others were wrong
        output.append(drafts[0])
    assert json.loads(TOKENIZER.decode(output)) is not None


def test_behind_a_token_that_alone_may_come_the_rest_of_its_run_is_reported(compiled: CompiledGrammars) -> None:
    row = Row(compiled, Grammar("choice", '["<<abcdef", "<<abcxyz"]'))
    run = TOKENIZER.encode("<<abc")
    (first,) = row.allowed()
    assert first == [run[0]]
    forced = row.drawn(run[0])
    assert list(forced) == run[1 : 1 + len(forced)] and len(forced) > 1
    allowed = row.allowed(*forced)
    assert allowed[:-1] == [[one] for one in forced]
    assert row.drawn(*forced) == ()  # there is a choice behind them
    free = Row(compiled, Grammar("regex", "[ab]{9}"))
    free.allowed()
    assert free.drawn(TOKENIZER.encode("a")[0]) == ()


def test_a_row_that_begins_anew_goes_on_where_it_was(compiled: CompiledGrammars) -> None:
    grammar = Grammar("regex", "[a-c]{4}")
    row, output = Row(compiled, grammar), []
    for _ in range(4):
        token_id = row.allowed()[0][0]
        row.drawn(token_id)
        output.append(token_id)
        assert Row(compiled, grammar, tuple(output)).allowed() == row.allowed()


def test_behind_its_end_nothing_but_ends_may_come(compiled: CompiledGrammars) -> None:
    row = Row(compiled, Grammar("choice", '["yes", "no"]'))
    while (allowed := row.allowed()[0]) != [END]:
        row.drawn(allowed[0])
    row.drawn(END)
    row.drawn(END)  # ignore_eos
    assert row.allowed() == [[END]]


def test_a_grammar_begins_behind_the_end_of_reasoning(compiled: CompiledGrammars) -> None:
    row = Row(compiled, Grammar("regex", "[ab]{2}", after_token_ids=THINK_END))
    free = [one for one in range(SIZE) if one != END]
    assert row.allowed() == [free]
    row.drawn(20, 5, 6, 5, 6)  # almost, and again from its second token on
    allowed = row.allowed(5, 7, 300)
    assert allowed[:2] == [free, free]
    assert allowed[2] == Row(compiled, Grammar("regex", "[ab]{2}")).allowed()[0]
    row.drawn(5, 7)
    assert row.allowed()[0] == allowed[2]


def test_reasoning_ends_where_its_budget_does(compiled: CompiledGrammars) -> None:
    row = Row(compiled, Grammar("none", after_token_ids=THINK_END, max_tokens_before=3))
    everything = list(range(SIZE))
    assert row.allowed(30, 31) == [everything] * 3
    row.drawn(30, 31, 5)  # which begins the end
    for token_id in THINK_END[1:]:
        assert row.allowed() == [[token_id]]
        row.drawn(token_id)
    assert row.allowed() == [everything]


OPENING = tuple(TOKENIZER.encode("<th>"))
assert len(OPENING) > 1


def test_an_output_that_does_not_open_reasoning_is_bound_from_its_first_token_on(compiled: CompiledGrammars) -> None:
    plain = Grammar("regex", "<(ab){2}|x")
    either = Grammar("regex", plain.source, THINK_END, opening_token_ids=OPENING)
    (first,) = Row(compiled, either).allowed()
    assert first == sorted({*(Row(compiled, plain).allowed()[0] or ()), OPENING[0]})
    for output in (TOKENIZER.encode("x"), TOKENIZER.encode("<ab"), [*TOKENIZER.encode("<ab"), OPENING[0]]):
        drafted = Row(compiled, either).allowed(*output)
        for count in range(1, len(output)):
            bound, row = Row(compiled, plain, tuple(output[:count])).allowed(), Row(compiled, either)
            row.allowed()
            row.drawn(*output[:count])
            want = set(bound[0] or ())
            if tuple(output[:count]) == OPENING[:count]:
                want.add(OPENING[count])
            assert row.allowed() == Row(compiled, either, tuple(output[:count])).allowed() == [sorted(want)]
            assert drafted[count] == sorted(want)


def test_an_output_that_opens_reasoning_is_bound_behind_it(compiled: CompiledGrammars) -> None:
    plain = Grammar("regex", "<(ab){2}|x")
    either = Grammar("regex", plain.source, THINK_END, max_tokens_before=4, opening_token_ids=OPENING)
    output = (*OPENING, 30, *THINK_END, *TOKENIZER.encode("x"))
    drafted, row = Row(compiled, either).allowed(*output), Row(compiled, either)
    opened = Row(compiled, Grammar("regex", plain.source, THINK_END, max_tokens_before=4), OPENING)
    for count, token_id in enumerate(output):
        assert row.allowed() == [drafted[count]] == Row(compiled, either, output[:count]).allowed()
        if count >= len(OPENING):
            assert opened.allowed() == row.allowed()
            opened.drawn(token_id)
        row.drawn(token_id)
    assert row.allowed() == [[END]]


def test_a_budget_of_reasoning_limits_no_output_that_has_none(compiled: CompiledGrammars) -> None:
    grammar = Grammar("none", after_token_ids=THINK_END, max_tokens_before=0, opening_token_ids=OPENING[:1])
    everything = list(range(SIZE))
    row = Row(compiled, grammar)
    assert row.allowed(30, 31) == [everything] * 3
    row.drawn(30, 31)
    assert row.allowed() == [everything]
    assert Row(compiled, grammar, OPENING[:1]).allowed(*THINK_END) == [[one] for one in THINK_END] + [everything]


def test_rows_without_a_grammar_are_not_asked_for(compiled: CompiledGrammars) -> None:
    rows = GrammarRows(compiled, SIZE)
    rows.start((), [NewRequest(1, PROMPT, 3, SamplingParams(), 0, 0)])
    assert not rows.rows and rows.fill([Chunk(1, 1, 0, 3, (), 1)]) is None
    scripted = NewRequest(2, PROMPT, 3, SamplingParams(), 0, 0, forced_token_ids=(7,), grammar=Grammar("json_object"))
    rows.start((), [scripted])
    assert not rows.rows


def test_what_a_step_drew_late_is_not_taken_for_its_rows_next_owners(compiled: CompiledGrammars) -> None:
    """An engine that was interrupted forgets steps in flight, and gives their rows to others."""
    row = Row(compiled, Grammar("regex", "[ab]{3}"))
    row.allowed()
    late = BatchPlan(0, (row._chunk(()),))
    grammar = Grammar("regex", "[xy]{3}")
    compiled.check(grammar)
    row.rows.start((), [NewRequest(4, PROMPT, len(PROMPT), SamplingParams(), seed=0, sample_index=0, grammar=grammar)])
    row.rows.sampled(late, [Sampled(9, (65,))])
    masks = row.rows.fill([Chunk(10, 4, len(PROMPT) - 1, 1, (), 1)])
    assert masks is not None
    (mask,) = masks.take(1)
    assert mask is not None and tokens_of(mask) == Row(compiled, grammar).allowed()[0]


def test_masks_of_a_pass_stand_where_its_draws_do(compiled: CompiledGrammars) -> None:
    rows = GrammarRows(compiled, SIZE)
    choices = [(1, Grammar("choice", '["a"]')), (3, Grammar("choice", '["b"]'))]
    for _, grammar in choices:
        compiled.check(grammar)
    bound = [NewRequest(row, PROMPT, 3, SamplingParams(), 0, 0, grammar=grammar) for row, grammar in choices]
    rows.start((), [*bound, NewRequest(2, PROMPT, 3, SamplingParams(), 0, 0)])
    masks = rows.fill(
        [Chunk(7, 3, 0, 3, (), 1), Chunk(8, 2, 0, 3, (), 1), Chunk(9, 1, 0, 2, (), 0), Chunk(6, 1, 0, 3, (), 1)]
    )
    assert masks is not None
    first, second = masks.take(2), masks.take(1)
    assert first[1] is None
    assert [tokens_of(one) for one in (first[0], second[0])] == [TOKENIZER.encode("b"), TOKENIZER.encode("a")]


@pytest.mark.parametrize(
    ("grammar", "said"),
    [
        (Grammar("json_schema", "{"), "not JSON"),
        (Grammar("json_schema", "3"), "no schema"),
        (Grammar("json_schema", "[" * 5000), "not JSON"),
        (Grammar("json_schema", '{"items":' * 500 + "{}" + "}" * 500), "more than 200 deep"),
        (Grammar("json_schema", '{"$ref":"https://example.org/s.json"}'), "https://example.org/s.json"),
        (Grammar("json_schema", '{"type":"integer","minimum":5,"maximum":3}'), "minimum (5)"),
        (Grammar("json_schema", '{"type":"array","items":{"type":"strin"}}'), "type 'strin' at #/items/type"),
        (Grammar("json_schema", '{"title":"' + "x" * 200_000 + '"}'), "200,"),
        (Grammar("regex", "(" * 9000 + "a" + ")" * 9000), "regex"),
        (Grammar("regex", "[a"), "regex"),
        (Grammar("choice", "[]"), "no list"),
        (Grammar("lark", "start: " + "(" * 20_000 + '"a"' + ")" * 20_000), "nested"),
        (Grammar("lark", "start: missing"), "missing"),
        (Grammar("structural_tag", '{"structures":[]}'), "structural tag"),
        (Grammar("structural_tag", '{"structures":[{"begin":"<f>","schema":{}}],"triggers":["<g"]}'), "trigger"),
    ],
)
def test_what_cannot_be_followed_is_refused_in_words(compiled: CompiledGrammars, grammar: Grammar, said: str) -> None:
    for _ in range(2):  # the second time it is known already
        with pytest.raises(RequestRefused, match=r"^The .*\.$") as refusal:
            compiled.check(grammar)
        assert said in str(refusal.value) and len(str(refusal.value)) < 600
        assert refusal.value.field == "grammar"


@pytest.mark.parametrize(
    "grammar",
    [
        Grammar("regex", "(a|b)*a(a|b){25}c"),
        Grammar("regex", "((a{1,1000}){1,1000}){1,1000}"),
        Grammar("json_schema", '{"$ref":"#"}'),
        Grammar("json_schema", '{"type":"object","properties":{"c":{"$ref":"#"}},"required":["c"]}'),
        Grammar("json_schema", json.dumps({"enum": [f"v{n}" for n in range(5000)]})),
    ],
)
def test_what_explodes_comes_to_an_end_in_words(compiled: CompiledGrammars, grammar: Grammar) -> None:
    """It is refused, or answers, or ends its own request."""
    try:
        compiled.check(grammar)
    except RequestRefused as refusal:
        assert str(refusal).endswith(".")
        return
    row, chance = Row(compiled, grammar), random.Random(1)
    for _ in range(60):
        (allowed,) = row.allowed()
        if not allowed:
            assert "dead end" in (row.fault() or "")
            return
        row.drawn(chance.choice(allowed))


def test_the_same_grammar_is_compiled_once(compiled: CompiledGrammars) -> None:
    before, grammar = compiled.stats(), Grammar("regex", "once[0-9]")
    notices: list[str] = []
    if not compiled.prepare([grammar, grammar], lambda: notices.append("ready")).is_ready:
        compiled.check(grammar)
    assert compiled.prepare([grammar], lambda: notices.append("again")).is_ready
    Row(compiled, grammar).allowed()
    after = compiled.stats()
    assert (after.compiled - before.compiled, notices) == (1, ["ready"])
    assert after.cache_hits >= before.cache_hits + 3 and after.masks == before.masks + 1


def test_what_every_grammar_needs_is_made_before_the_first_one_comes() -> None:
    grammars = CompiledGrammars(lambda: vocabulary_of(TOKENIZER, SIZE, END or 0))
    assert grammars.mask_words == 0
    grammars.warm_up()
    while not grammars.mask_words:
        time.sleep(0.001)
    assert grammars.stats().compiled == 0
    grammars.close()


def test_a_model_without_a_tokenizer_says_so_at_the_first_grammar_and_not_before() -> None:
    def none() -> Vocabulary:
        raise GrammarError("cannot be used, since this model has no tokenizer, which says what its tokens mean")

    grammars = CompiledGrammars(none)
    grammars.warm_up()
    with pytest.raises(RequestRefused, match="no tokenizer"):
        grammars.check(Grammar("regex", "a"))
    grammars.close()


AMBIGUOUS = Grammar("lark", 'start: s\ns: s s s | s s | "a" | "b" | ""')


def waits(row: Row) -> int:
    """Its draw sits out; the transfer that it waits for."""
    assert row.allowed() == [[]]
    (result,) = row.rows.sampled(BatchPlan(0, (row._chunk(()),)), [Sampled(9, (), error="nothing to draw")])
    assert (result.token_ids, result.error) == ((), None) and result.waits_for < 0
    return result.waits_for


def ended(rows: GrammarRows) -> list[int]:
    while not (transfer_ids := rows.poll()):
        assert transfer_ids is not None, "a draw waits"
        time.sleep(0.001)
    return transfer_ids


@pytest.mark.parametrize("slow", ["when it was filled", "while it is filled", "not compiled any more"])
def test_a_row_whose_mask_takes_long_sits_out_and_has_it_later(
    compiled: CompiledGrammars, monkeypatch: pytest.MonkeyPatch, slow: str
) -> None:
    row = Row(compiled, Grammar("regex", "[ab]{30}"))
    (expected,) = row.allowed()
    row.drawn(64)
    if slow == "when it was filled":
        monkeypatch.setattr(grammar_row, "SLOW_SECONDS", 0.0)
        assert row.allowed() == [expected]  # from the next one on
        row.drawn(64)
    elif slow == "while it is filled":
        release = threading.Event()
        monkeypatch.setattr(GrammarRow, "took", lambda *_: release.wait())
        monkeypatch.setattr(MaskThread, "is_overdue", True)
    else:
        row = Row(compiled, Grammar("regex", "[ab]{40}"))
        compiled._entries.clear()
    transfer_id = waits(row)
    if slow == "while it is filled":
        assert row.rows.poll() == []
        release.set()
    assert ended(row.rows) == [transfer_id] and row.rows.poll() is None
    assert row.allowed() == [expected] and row.fault() == "nothing to draw"


def test_a_preempted_row_goes_on_with_the_mask_that_it_waited_for(
    compiled: CompiledGrammars, monkeypatch: pytest.MonkeyPatch
) -> None:
    row = Row(compiled, Grammar("regex", "[ab]{30}"))
    (expected,) = row.allowed()
    monkeypatch.setattr(grammar_row, "SLOW_SECONDS", 0.0)
    row.allowed()
    waits(row)
    ended(row.rows)
    new = NewRequest(4, PROMPT, len(PROMPT), SamplingParams(), 0, 0, grammar=Grammar("regex", "[ab]{30}"))
    row.rows.start((4,), [new])
    assert row.allowed() == [expected]


def test_a_row_that_comes_back_before_its_mask_is_filled_waits_for_the_same_mask_again(
    compiled: CompiledGrammars, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Two threads would move one matcher; and its transfer comes for the later draw, too, where it was polled
    before."""
    row = Row(compiled, Grammar("regex", "[ab]{30}"))
    (expected,) = row.allowed()
    fillings: list[tuple[SlowMask, Callable[[], None]]] = []
    monkeypatch.setattr(row.rows._slow, "fill", lambda *given: fillings.append(given))
    monkeypatch.setattr(row.rows.rows[4], "is_slow", True)
    transfer_id = waits(row)
    row.rows.start(
        (4,), [NewRequest(4, PROMPT, len(PROMPT), SamplingParams(), 0, 0, grammar=Grammar("regex", "[ab]{30}"))]
    )
    assert row.allowed(300) == [[], []] and len(fillings) == 1
    ((mask, fill),) = fillings
    fill()
    mask.done = True
    assert row.rows.poll() == [transfer_id]
    (result,) = row.rows.sampled(BatchPlan(0, (row._chunk((300,)),)), [Sampled(9, ())])
    assert result.waits_for == transfer_id and row.rows.poll() == [transfer_id]
    assert row.allowed() == [expected]


@pytest.mark.parametrize("is_parallel", [False, True])
def test_an_output_whose_masks_take_too_long_ends_alone(
    compiled: CompiledGrammars, monkeypatch: pytest.MonkeyPatch, is_parallel: bool
) -> None:
    monkeypatch.setattr(grammar_rows, "_IS_PARALLEL", is_parallel)
    monkeypatch.setattr(grammar_row, "SLOW_SECONDS", 0.0)
    monkeypatch.setattr(grammar_row, "MAX_SLOW_SECONDS", 0.0)
    row = Row(compiled, AMBIGUOUS)
    assert row.allowed() == [[]]
    assert "make it less ambiguous" in (row.fault() or "")


def test_a_grammar_that_leaves_the_cache_while_a_mask_is_filled_is_not_compiled_again(
    compiled: CompiledGrammars, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The pass would wait for that."""
    grammar = Grammar("regex", "leaves[0-9]")
    compiled.check(grammar)
    row = GrammarRow(grammar, compiled, 0, ())
    assert not row.lacks_grammar
    monkeypatch.setattr(compiled_grammars, "CACHE_BYTES", 0)
    compiled.check(Grammar("regex", "another[0-9]"))
    assert compiled.found(grammar) is None
    before = compiled.stats().compiled
    assert row.demand(np.full((1, 20), 0xFFFFFFFF, np.uint32), 0, ()) is not None
    assert compiled.stats().compiled == before
