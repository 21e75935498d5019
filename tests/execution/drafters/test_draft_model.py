"""A model that drafts: what comes out is what comes out without it, and a model that thinks alike is always right."""

from __future__ import annotations

import logging
from itertools import product
from pathlib import Path
from typing import Any

import pytest
from breadth import first_of
from models import write_model

from inflight.core.types.request import Request
from inflight.core.types.sampling import SamplingParams
from inflight.execution.backends.null import NullBackend
from inflight.execution.backends.reference import ReferenceBackend
from inflight.execution.drafters import draft_model

from ..driver import backends
from ..threaded import Threaded
from .engine_rig import Account, Breaks, Rig, Said

SETTINGS: tuple[dict[str, Any], ...] = (
    {"temperature": 0},
    {"temperature": 0.9, "top_p": 0.9},
    {"temperature": 1.1, "top_k": 40, "repetition_penalty": 1.3, "frequency_penalty": 0.4},
    {"temperature": 0.7, "logprobs": 3, "min_tokens": 20, "presence_penalty": 0.2, "n": 2},
    {"temperature": 0.8, "allowed_token_ids": tuple(range(40, 200))},
    {"temperature": 1.0, "logit_bias": {50: 4.0, 51: 4.0}, "logprobs": 1, "stop_token_ids": (50,), "n": 3},
)
BEGINNING = tuple(range(30, 66))


def requests(**changes: Any) -> list[Request]:
    """Half of them begin alike, for longer than a block."""
    return [
        Request(
            request_id=str(number),
            prompt_token_ids=(BEGINNING if number % 2 else ()) + tuple(range(40 + number, 60 + 3 * number)),
            params=SamplingParams(**{"max_tokens": 40, **settings, **changes}),
            seed=number,
        )
        for number, settings in enumerate(SETTINGS)
    ]


ISAS, TYPES = backends()[:2], ("float32", "bfloat16")


@pytest.fixture(params=ISAS)
def isa(request: pytest.FixtureRequest) -> str:
    return str(request.param)


@pytest.fixture(scope="module")
def other(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A model of another family and size, of the same vocabulary."""
    sizes = {"num_hidden_layers": 1, "hidden_size": 32, "intermediate_size": 48, "num_attention_heads": 2}
    return write_model(tmp_path_factory.mktemp("other") / "m", "qwen3", **sizes)


CROWDED: dict[str, Any] = {"max_tokens": 23, "blocks": 22}


@pytest.mark.parametrize(("isa", "dtype"), [*product(ISAS[1:], TYPES), *first_of(product(ISAS[:1], TYPES))])
def test_tokens_and_logprobs_are_those_without_drafts(tiny: Path, other: Path, isa: str, dtype: str) -> None:
    for shape in ({}, CROWDED):
        rig = Rig(tiny, other, isa, dtype, **shape)
        plain, _ = rig.run(requests())
        drafted, account = rig.run(requests(), max_drafts=5)
        assert drafted == plain and account.drafted > 100 > 50 > account.accepted


@pytest.mark.parametrize("dtype", ["float32", "bfloat16"])
def test_the_same_model_is_always_right(tiny: Path, isa: str, dtype: str) -> None:
    """At every temperature, under every setting: both draw with the same words. Steps without drafts lie between."""
    rig = Rig(tiny, tiny, isa, dtype)
    plain, before = rig.run(requests())
    drafted, after = rig.run(requests(), max_drafts=5)
    assert drafted == plain and after.drafted == after.accepted > 100 and len(after.results) < len(before.results)


@pytest.mark.parametrize("scheduling", [{}, {"prefix_caching": False}, {"preemption": "swap"}])
def test_it_stays_right_where_sequences_come_again(tiny: Path, scheduling: dict[str, Any]) -> None:
    """Preempted and computed anew or swapped, behind cached prefixes, in two rounds: nothing else is kept of the draft
    model than what is right."""
    rig = Rig(tiny, tiny, backends()[-1], blocks=22, host_blocks=40 if scheduling.get("preemption") else 0)
    plain, _ = rig.run(requests(ignore_eos=True), **scheduling)
    executor = Account(rig.runner(rig.drafter()))
    for round_number in range(2):
        drafted = rig.run_on(executor, requests(ignore_eos=True), 5, round_number, **scheduling)
        assert drafted == plain and rig.scheduler.stats().preemptions > 0
        rig.scheduler.recover("", 0.0)
    assert executor.drafted == executor.accepted > 200


def test_prompts_are_caught_up_with_where_they_were_not_computed(tiny: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Start as after a time without drafts."""
    monkeypatch.setattr(draft_model, "PATIENCE", 0)
    rig = Rig(tiny, tiny, backends()[-1], blocks=22)
    plain, _ = rig.run(requests())
    drafted, account = rig.run(requests(), max_drafts=5)
    assert drafted == plain and account.drafted == account.accepted > 100


def test_who_lacks_much_catches_up_over_several_steps(tiny: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(draft_model, "PATIENCE", 0)
    rig = Rig(tiny, tiny, backends()[-1], max_tokens=16)
    plain, _ = rig.run(requests())
    drafted, account = rig.run(requests(), max_drafts=5)
    assert drafted == plain and 0 < account.accepted == account.drafted - account.lacking < account.drafted


def test_on_torch_too(tiny: Path, other: Path) -> None:
    """Which adds up in another order where a pass has more tokens: tokens alone are the same, and hardly ever not
    drafted so."""
    pytest.importorskip("torch")
    for draft in (tiny, other):
        rig = Rig(tiny, draft, "torch", blocks=22)
        plain, _ = rig.run(requests(max_tokens=25))
        drafted, account = rig.run(requests(max_tokens=25), max_drafts=5)
        assert tokens_of(drafted) == tokens_of(plain) and account.drafted > 40
        assert (account.accepted > 0.97 * account.drafted) == (draft is tiny)


def test_passes_that_are_replayed_draft_the_same(tiny: Path) -> None:
    """As on a GPU: decodes of both models are filled up to a few sizes, whose inputs lie where they lay before."""
    torch = pytest.importorskip("torch")
    from inflight.execution.backends.torch.backend import TorchBackend
    from inflight.execution.backends.torch.buckets import Buckets
    from inflight.execution.backends.torch.capture import CapturedDecoder
    from inflight.execution.backends.torch.definitions import Definitions

    from ..backends.torch.test_captured_engine import Replays

    backend = TorchBackend("float32", torch.device("cpu"), Definitions(), buckets=Buckets((1, 2, 4, 8), (2, 4, 8, 16)))
    rig = Rig(tiny, tiny, backend, blocks=22, logit_rows=8)
    plain, _ = rig.run(requests(max_tokens=20))
    graphs = Replays(), Replays()
    rig.decoders = [CapturedDecoder(one, of, backend.buckets) for one, of in zip(rig.decoders, graphs, strict=True)]  # type: ignore[misc]
    runner = rig.runner(rig.drafter())
    runner.capture_drafts_ahead(60.0)
    assert len(graphs[1].made) == len(backend.buckets.padding()) and not graphs[0].made
    account = Account(runner)
    drafted = rig.run_on(account, requests(max_tokens=20), 5)
    assert tokens_of(drafted) == tokens_of(plain) and account.accepted > 0.97 * account.drafted > 40
    assert sum(graph.count for graph in graphs[1].made) > 10


def test_on_the_backend_that_computes_nothing(tiny: Path) -> None:
    """Whose tokens come by a rule, whichever model is asked."""
    rig = Rig(tiny, tiny, NullBackend())
    plain, _ = rig.run(requests())
    drafted, account = rig.run(requests(), max_drafts=5)
    assert drafted == plain and account.drafted == account.accepted > 100


def tokens_of(said: Said) -> list[list[int]]:
    return [[token for token, _ in entries] for (_, sample), entries in sorted(said.items()) if sample >= 0]


@pytest.mark.parametrize("passes", [0, 1, 10])
def test_a_draft_model_that_fails_ends_drafting_alone(
    tiny: Path, isa: str, passes: int, caplog: pytest.LogCaptureFixture
) -> None:
    rig = Rig(tiny, tiny, isa, blocks=22)
    plain, before = rig.run(requests())
    rig.decoders[1] = Breaks(rig.decoders[1], passes)  # type: ignore[call-overload]
    with caplog.at_level(logging.ERROR):
        drafted, after = rig.run(requests(), max_drafts=5)
    assert drafted == plain and len(after.results) >= len(before.results) - 8 and (after.accepted > 0) == (passes > 1)
    assert [one.message for one in caplog.records] == [
        "drafting (draft-model) failed, and there are no drafts from now on"
    ]


def test_prompts_cost_nothing_without_drafts(tiny: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    rig = Rig(tiny, tiny, backends()[-1])
    rig.decoders[1] = counted = Counts(rig.decoders[1])  # type: ignore[call-overload]
    given = requests(max_tokens=20)
    executor = Account(rig.runner(rig.drafter()))
    rig.run_on(executor, given, 0)
    assert counted.passes > 0
    counted.passes = 0
    monkeypatch.setattr(draft_model, "PATIENCE", len(executor.results) - 1)
    rig.run_on(executor, given, 0)
    assert counted.passes == 0


class Counts:
    """A draft model's decoder, and its passes."""

    def __init__(self, inner: Any) -> None:
        self._inner, self.passes = inner, 0

    def __getattr__(self, name: str) -> Any:
        return getattr(self._inner, name)

    def forward(self, batch: Any) -> None:
        self.passes += 1
        self._inner.forward(batch)


def test_a_step_reports_how_long_its_drafts_took(tiny: Path) -> None:
    rig = Rig(tiny, tiny, backends()[-1])
    _, account = rig.run(requests(), max_drafts=5)
    took = [one.draft_seconds for one in account.results]
    assert any(took) and not all(took) and all(0 <= one.draft_seconds <= one.seconds for one in account.results)
    _, account = rig.run(requests())
    assert not any(one.draft_seconds for one in account.results)


@pytest.mark.parametrize("family", ["gemma2", "cohere2", "deepseek_v3"])
def test_beside_several_kv_groups_and_other_layers(tiny: Path, tmp_path: Path, family: str) -> None:
    """Take models with windows, whose blocks are freed behind them, and latent attention. The draft model lies in the
    blocks of the group that sees all."""
    model = write_model(tmp_path / "m", family)
    rig = Rig(model, model, backends()[-1], blocks=40)
    plain, _ = rig.run(requests(max_tokens=80))
    drafted, account = rig.run(requests(max_tokens=80), max_drafts=5)
    assert drafted == plain and account.drafted == account.accepted > 100


def test_two_steps_in_flight(tiny: Path) -> None:
    backend = Threaded(ReferenceBackend("float32"))
    try:
        rig = Rig(tiny, tiny, backend, blocks=22)
        plain, _ = rig.run(requests())
        drafted, account = rig.run(requests(), max_drafts=5, depth=2)
    finally:
        backend.end()
    assert drafted == plain and account.drafted == account.accepted > 10
