"""`--speculation`: what it may say, and what is in force on a model, with its reason."""

from __future__ import annotations

import pytest
from core.builders import request

from inflight.config.assembly import scheduler_for
from inflight.config.engine import EngineSettings
from inflight.config.scheduling import SchedulingSettings
from inflight.config.setting import SettingsError
from inflight.config.speculation import (
    MAX_DRAFT_TOKENS,
    DraftSource,
    DraftSupport,
    parse_speculation,
    resolve_speculation,
)
from inflight.core.sequence import SequenceView
from inflight.core.speculation.speculation import Proposal
from inflight.core.types.events import FinishedEvent
from inflight.core.types.plan import Capacity
from inflight.engine.clock import VirtualClock
from inflight.engine.loop import EngineLoop
from inflight.testing.null import NullExecutor

FORMS = ("auto", "off", "suffix", "draft:org/small", "draft:./models/a:b", "heads", "heads:./eagle")


@pytest.mark.parametrize("text", FORMS)
def test_the_setting_is_shown_as_written(text: str) -> None:
    assert str(parse_speculation(text)) == text
    assert parse_speculation("draft:owner/name:Q4_K_M") == DraftSource("draft", "owner/name:Q4_K_M")
    assert SchedulingSettings(speculation=text).draft_source == parse_speculation(text)


@pytest.mark.parametrize(
    ("text", "sentence"),
    [
        ("", "--speculation is ''; known are auto, off, suffix, draft:MODEL, heads and heads:FOLDER."),
        ("ngram", "--speculation is 'ngram'; known are auto,"),
        ("suffix:model", "--speculation is 'suffix:model'; known are auto,"),
        ("draft", "names no model; give a folder or a hub id: draft:MODEL."),
        ("draft:", "names no model; give a folder or a hub id: draft:MODEL."),
        ("heads:", "names no model; give a folder, or leave the colon out for the model's own: heads:MODEL."),
    ],
)
def test_what_is_not_known_is_refused(text: str, sentence: str) -> None:
    with pytest.raises(SettingsError) as refused:
        SchedulingSettings(speculation=text)
    assert sentence in str(refused.value)


@pytest.mark.parametrize("number", [0, -1, MAX_DRAFT_TOKENS + 1])
def test_drafts_are_bounded(number: int) -> None:
    with pytest.raises(SettingsError, match=rf"--speculation-max-tokens is {number}; give a number above 0"):
        SchedulingSettings(speculation="suffix", speculation_max_tokens=number)
    with pytest.raises(SettingsError, match="--speculation-max-tokens has no effect with --speculation off"):
        SchedulingSettings(speculation="off", speculation_max_tokens=4)


def test_what_was_set_bounds_every_source_else_each_has_its_own() -> None:
    suffix, model = parse_speculation("suffix"), parse_speculation("draft:small")
    given = SchedulingSettings(speculation="auto", speculation_max_tokens=3)
    assert given.drafting_from(suffix).max_drafts == given.drafting_from(model).max_drafts == 3
    off = given.drafting_from(parse_speculation("off"))
    assert (off.speculation, off.speculation_max_tokens) == ("off", None)
    unset = SchedulingSettings(speculation="auto")
    most = [unset.drafting_from(source).max_drafts for source in (suffix, model)]
    assert MAX_DRAFT_TOKENS >= most[0] > most[1] > 0


PLAIN = DraftSupport()


@pytest.mark.parametrize(
    ("model", "source", "why"),
    [
        (PLAIN, "suffix", "auto: drafts from earlier text"),
        (DraftSupport(ranks=4), "suffix", "auto: drafts from earlier text"),
        (DraftSupport(has_state=True), "off", "auto: this model's layers keep a recurrent state"),
        (DraftSupport(own_kernels=False), "off", "auto: with transformers the bits of an answer may depend"),
        (DraftSupport(is_invariant=False), "off", "auto: without --batch-invariant the bits of an answer may depend"),
    ],
)
def test_auto_takes_what_the_model_allows_and_says_why(model: DraftSupport, source: str, why: str) -> None:
    in_force, shown = resolve_speculation(parse_speculation("auto"), model)
    assert in_force.kind == shown.value == source
    assert shown.reason.startswith(why)


@pytest.mark.parametrize(
    ("model", "asked", "why"),
    [
        (DraftSupport(has_state=True), "suffix", "recurrent state, which cannot be rolled back after rejected drafts"),
        (DraftSupport(has_state=True), "draft:small", "recurrent state"),
        (DraftSupport(ranks=2), "draft:small", "the model is shared by 2 devices, and models draft on one"),
        (DraftSupport(ranks=2), "heads", "the model is shared by 2 devices"),
        (DraftSupport(own_kernels=False), "heads:eagle", "--backend is transformers"),
    ],
)
def test_what_was_asked_for_and_cannot_be_had_is_refused(model: DraftSupport, asked: str, why: str) -> None:
    with pytest.raises(SettingsError) as refused:
        resolve_speculation(parse_speculation(asked), model)
    sentence = str(refused.value)
    assert sentence.startswith(f"--speculation is {asked}, but ") and why in sentence
    assert sentence.endswith("; leave it out, or give off.")


@pytest.mark.parametrize(
    ("model", "asked"),
    [
        (PLAIN, "draft:small"),
        (PLAIN, "heads:eagle"),
        (DraftSupport(ranks=2), "suffix"),
        (DraftSupport(has_state=True), "off"),
    ],
)
def test_what_was_asked_for_is_in_force_where_it_can_be(model: DraftSupport, asked: str) -> None:
    in_force, shown = resolve_speculation(parse_speculation(asked), model)
    assert str(in_force) == shown.value == asked


class Failing:
    """A drafter whose native part breaks."""

    name = "failing"
    asked = 0

    def propose(self, view: SequenceView, max_drafts: int) -> Proposal:
        self.asked += 1
        raise MemoryError("no more")

    def finished(self, view: SequenceView) -> None:
        """Ignore it."""


def test_a_failing_drafter_is_reported_once_and_the_engine_goes_on(capsys: pytest.CaptureFixture[str]) -> None:
    capacity, failing = Capacity(64, 16, 4, 512, 100), Failing()
    scheduler = scheduler_for(capacity, EngineSettings(), SchedulingSettings(speculation="suffix"), drafter=failing)
    loop = EngineLoop(scheduler, NullExecutor(capacity, lambda plan: 0.05), VirtualClock())
    loop.add(request("a", output=60))
    assert sum(isinstance(event, FinishedEvent) for event in loop.run()) == 1
    assert failing.asked == 1
    err = capsys.readouterr().err
    assert err.count("The drafter 'failing' failed in propose (MemoryError: no more); decoding token by token") == 1
