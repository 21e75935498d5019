"""Heads under the real scheduler: tokens as without them, the reference's drafts, and a head that is always right."""

from __future__ import annotations

import json
import logging
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from models import write_model
from safetensors.numpy import load_file, save_file

from inflight.core.types.plan import Chunk
from inflight.core.types.request import Request
from inflight.execution.batch.input_batch import InputBatch
from inflight.execution.checkpoints.checkpoint import Checkpoint
from inflight.execution.drafters.heads.eagle3 import load_eagle3
from inflight.execution.drafters.heads.head_decoder import HeadDecoder
from inflight.execution.drafters.heads.head_drafter import HeadDrafter
from inflight.execution.drafters.heads.mtp import load_mtp
from inflight.execution.drafters.heads.recent_hidden import RecentHidden
from inflight.execution.drafters.step_drafting import StepDrafter

from ..driver import backends
from .engine_rig import BLOCK, LENGTH, Account, Breaks, Rig
from .test_draft_model import CROWDED, requests
from .test_heads import HeadReferenceOf, reference_of

__all__ = ["reference_of"]

DTYPES = ("float32", "bfloat16")


class HeadRig(Rig):
    """head: a folder; None: in the model's checkpoint."""

    def __init__(self, model: Path, head: Path | None, *arguments: Any, **sizes: Any) -> None:
        super().__init__(model, model, *arguments, **sizes)
        self._model, self._head = model, head
        self.made: list[HeadDrafter] = []

    def drafter(self) -> StepDrafter:
        backend, decoder = self.backend, self.decoders[0]
        assert not isinstance(backend, str)
        if self._head is None:
            head = load_mtp(self.spec, decoder.weights, Checkpoint(self._model), backend)
        else:
            head = load_eagle3(self._head, self.spec, decoder.weights, backend, LENGTH)
        own = HeadDecoder(head, backend, self.spec.hidden_size, decoder.max_tokens, 3)
        capacity = self.capacity
        cache = backend.kv_cache(head.kv_shape(BLOCK, False), capacity.num_blocks + 1, capacity.host_blocks)
        taps = decoder.taps(head.taps)
        recent = RecentHidden(backend, taps, self.spec.hidden_size, capacity.max_rows + 1, decoder.max_tokens)
        self.made.append(HeadDrafter(own, own, recent, backend, cache, capacity))
        return self.made[-1]


@pytest.fixture(params=backends()[:2])
def isa(request: pytest.FixtureRequest) -> str:
    return str(request.param)


@pytest.fixture(autouse=True)
def nothing_fails(request: pytest.FixtureRequest, caplog: pytest.LogCaptureFixture) -> Iterator[None]:
    """A head that fails drafts no more, and tokens stay what they are: it must be seen."""
    yield
    if "passes" not in request.fixturenames:
        assert [one.message for one in caplog.records if one.levelno >= logging.ERROR] == []


@pytest.fixture(scope="module")
def bigrams(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A model whose layers add nothing, so that a token follows from the one before it alone; and an MTP layer that
    adds nothing to the token's embedding: what it predicts behind a token is what the model will."""
    folder = write_model(tmp_path_factory.mktemp("bigrams") / "m")
    config = json.loads((folder / "config.json").read_text())
    layers, width = config["num_hidden_layers"], config["hidden_size"]
    tensors = load_file(folder / "model.safetensors")
    for name, tensor in tensors.items():
        if name.endswith(("o_proj.weight", "down_proj.weight")):
            tensors[name] = np.zeros_like(tensor)
    last, at = f"model.layers.{layers - 1}.", f"model.layers.{layers}."
    tensors |= {name.replace(last, at): tensor for name, tensor in tensors.items() if name.startswith(last)}
    for norm in ("enorm", "hnorm"):
        tensors[f"{at}{norm}.weight"] = np.ones(width, np.float32)
    tensors[at + "shared_head.norm.weight"] = tensors["model.norm.weight"]
    tensors[at + "eh_proj.weight"] = np.concatenate([np.eye(width), np.zeros((width, width))], 1).astype(np.float32)
    save_file(tensors, folder / "model.safetensors")
    return folder


@pytest.mark.parametrize(
    ("name", "dtype", "isa"),
    [
        *[(one, dtype, backends()[-1]) for one in ("eagle3", "deepseek_v3", "mimo") for dtype in DTYPES],
        ("eagle3", "float32", "torch"),  # whose passes share the memory of their inputs
    ],
)
def test_tokens_and_logprobs_are_those_without_drafts(
    reference_of: HeadReferenceOf, name: str, dtype: str, isa: str
) -> None:
    reference = reference_of(name)
    for shape in (dict[str, Any](), CROWDED):
        rig = HeadRig(reference.folder, reference.head, isa, dtype, **shape)
        plain, _ = rig.run(requests())
        drafted, account = rig.run(requests(), max_drafts=5)
        assert drafted == plain and account.drafted > 50


@pytest.mark.parametrize("dtype", ["float32", "bfloat16"])
def test_a_head_that_predicts_what_the_model_does_is_right(bigrams: Path, isa: str, dtype: str) -> None:
    """At every temperature, under every setting. bfloat16 rounds what is normed twice: then nearly always."""
    rig = HeadRig(bigrams, None, isa, dtype)
    plain, before = rig.run(requests())
    drafted, after = rig.run(requests(), max_drafts=5)
    assert drafted == plain and after.drafted > 100 and len(after.results) < len(before.results)
    assert after.accepted >= (1 if dtype == "float32" else 0.9) * after.drafted


@pytest.mark.parametrize("scheduling", [{}, {"prefix_caching": False}, {"preemption": "swap"}])
def test_it_stays_right_where_sequences_come_again(bigrams: Path, scheduling: dict[str, Any]) -> None:
    """Draft nothing for a step of a sequence that comes back from the host without hidden states."""
    rig = HeadRig(bigrams, None, backends()[-1], blocks=22, host_blocks=40 if scheduling.get("preemption") else 0)
    plain, _ = rig.run(requests(ignore_eos=True), **scheduling)
    executor = Account(rig.runner(rig.drafter()))
    for round_number in range(2):
        drafted = rig.run_on(executor, requests(ignore_eos=True), 5, round_number, **scheduling)
        assert drafted == plain and rig.scheduler.stats().preemptions > 0
        rig.scheduler.recover("", 0.0)
    assert executor.drafted > 200
    assert executor.accepted >= (0.9 if scheduling.get("preemption") else 1) * executor.drafted


class Heard:
    """Notes what was drafted behind which tokens."""

    def __init__(self, inner: Any) -> None:
        self._inner = inner
        self.drafts: list[tuple[list[int], tuple[int, ...]]] = []

    def __getattr__(self, name: str) -> Any:
        return getattr(self._inner, name)

    def draft(self, chunks: Sequence[Chunk], batch: InputBatch) -> list[tuple[int, ...]]:
        found: list[tuple[int, ...]] = self._inner.draft(chunks, batch)
        for chunk, drafts in zip(chunks, found, strict=True):
            known = chunk.start + chunk.length - chunk.num_drafts
            self.drafts.append((batch.tokens[chunk.row, :known].tolist(), drafts))
        return found


@pytest.mark.parametrize("name", ["eagle3", "glm4_moe"])
def test_drafts_are_those_of_the_reference(reference_of: HeadReferenceOf, name: str) -> None:
    """Behind prompts in pieces, beginnings that are shared, sequences that were computed anew, and steps without."""
    reference = reference_of(name)
    rig = HeadRig(reference.folder, reference.head, backends()[-1], max_tokens=40, blocks=22)
    asked = [
        Request(
            request_id=one.request_id,
            prompt_token_ids=one.prompt_token_ids,
            params=type(one.params)(max_tokens=30, temperature=0, ignore_eos=True),
            seed=0,
        )
        for one in requests()
    ]
    heard = Heard(rig.drafter())
    executor = Account(rig.runner(heard))
    rig.run_on(executor, asked, 3)
    assert rig.scheduler.stats().preemptions > 0
    drafted = [(tokens, list(drafts)) for tokens, drafts in heard.drafts if drafts]
    assert len(drafted) > 40
    for tokens, drafts in drafted[::4]:
        assert drafts == reference.drafts(tokens, len(drafts))


@pytest.mark.parametrize("passes", [0, 1, 10])
def test_a_head_that_fails_ends_drafting_alone(
    bigrams: Path, isa: str, passes: int, caplog: pytest.LogCaptureFixture
) -> None:
    rig = HeadRig(bigrams, None, isa, blocks=22)
    plain, _ = rig.run(requests())
    drafter = rig.drafter()
    assert isinstance(drafter, HeadDrafter)
    drafter._passes = Breaks(drafter._passes, passes)  # type: ignore[assignment, arg-type]
    executor = Account(rig.runner(drafter))
    with caplog.at_level(logging.ERROR):
        assert rig.run_on(executor, requests(), 5) == plain
    assert [one.message for one in caplog.records] == ["drafting (mtp) failed, and there are no drafts from now on"]
