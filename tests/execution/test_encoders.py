"""Encoders against `transformers`: vectors and scores of each family, and the same bits in any batch."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np
import pytest

from inflight.core.policies.fcfs import Fcfs
from inflight.core.scheduling.config import SchedulerConfig
from inflight.core.scheduling.scheduler import Scheduler
from inflight.core.strategies import Strategy
from inflight.core.strategies.chunked import Chunked
from inflight.core.strategies.static import Static
from inflight.core.types.events import PooledEvent
from inflight.core.types.plan import Capacity
from inflight.core.types.request import Request
from inflight.core.types.sampling import NO_SAMPLING, PoolingParams
from inflight.engine.clock import MonotonicClock
from inflight.engine.loop import EngineLoop
from inflight.execution.backends import open_backend
from inflight.execution.checkpoints.checkpoint import Checkpoint
from inflight.execution.kv.kv_groups import kv_groups
from inflight.execution.memory import kv_shape
from inflight.execution.model import Model
from inflight.execution.runner import ModelRunner
from inflight.execution.weights import load_weights
from inflight.models.arithmetic import parameters
from inflight.models.pooler import with_pooling
from inflight.models.registry import read_folder
from inflight.models.spec import Pooling

from .backends.torch.opened import on_device
from .driver import BLOCK, backends

if TYPE_CHECKING:
    from .encoders import Encoder

EncoderOf = Callable[[str], "Encoder"]
NAMES = (
    *("bert", "bert_relu", "bert_classifier", "roberta", "xlm_roberta_reranker", "distilbert", "distilbert_classifier"),
    *(
        "mpnet",
        "mpnet_classifier",
        "modernbert",
        "modernbert_classifier",
        "qwen3",
        "qwen3_classifier",
        "llama_reward",
        "embedding_gemma",
    ),
)
ISAS = [*backends()[:2], *backends()[2:][-1:], "torch"]
LONGEST = 130
RAW = PoolingParams(normalize=False)
Text = tuple[np.ndarray, int | None]


@pytest.fixture(scope="module")
def encoder_of(tmp_path_factory: pytest.TempPathFactory) -> EncoderOf:
    built: dict[str, Encoder] = {}

    def get(name: str) -> Encoder:
        if name not in built:
            from .encoders import build

            built[name] = build(name, tmp_path_factory.mktemp(name))
        return built[name]

    return get


class Pools:
    """An engine of one model that is asked for vectors."""

    def __init__(
        self,
        folder: Path,
        isa: str,
        dtype: Any = "float32",
        pooling: Pooling | None = None,
        budget: int = 256,
        strategy: Strategy | None = None,
        pass_tokens: int = 256,
    ):
        spec = read_folder(folder, to_run=True)
        spec = spec if pooling is None else with_pooling(spec, pooling)
        backend = on_device(dtype) if isa == "torch" else open_backend(dtype, 2, isa)
        assert spec.pooler is not None
        self.capacity = Capacity(
            *(96, BLOCK, 8, LONGEST, spec.vocab_size),
            embedding_size=spec.pooler.outputs(spec.hidden_size),
            generates=spec.head is not None,
            encoder_only=spec.pools_all_tokens,
        )
        weights = load_weights(spec, Checkpoint(folder), backend, min(LONGEST, spec.longest_model_len))
        shape = kv_shape(spec, BLOCK, groups=kv_groups(spec, BLOCK, LONGEST))
        decoder = Model(spec, weights, backend, pass_tokens, 3)
        self.runner = ModelRunner(decoder, backend, backend.kv_cache(shape, 97), self.capacity)
        self._strategy = strategy or Chunked(budget)

    def vectors(self, *texts: Text, params: PoolingParams = RAW) -> list[np.ndarray]:
        loop = EngineLoop(
            Scheduler(SchedulerConfig(self.capacity, self._strategy, Fcfs())), self.runner, MonotonicClock()
        )
        for number, (tokens, second_at) in enumerate(texts):
            loop.add(
                Request(
                    request_id=str(number),
                    prompt_token_ids=tuple(tokens.tolist()),
                    params=NO_SAMPLING,
                    pooling=params,
                    second_text_at=second_at,
                )
            )
        found = {event.request_id: event.vector for event in loop.run() if isinstance(event, PooledEvent)}
        return [np.array(found[str(number)], np.float32) for number in range(len(texts))]


def texts(*lengths: int, vocabulary: int = 320) -> list[Text]:
    chance = np.random.default_rng(5)
    return [(chance.integers(2, vocabulary, length).astype(np.int32), None) for length in lengths]


def oracle(encoder: Encoder, name: str, text: Text) -> np.ndarray:
    from .encoders import ENCODERS

    pooling = ENCODERS[name][2]
    if pooling is None:
        return encoder.scores(*text)
    hidden = encoder.hidden(*text)
    return hidden.mean(0) if pooling == "mean" else hidden[0 if pooling == "cls" else -1]


@pytest.mark.parametrize("isa", ISAS)
@pytest.mark.parametrize("name", NAMES)
def test_vectors_and_scores_are_the_oracles(encoder_of: EncoderOf, name: str, isa: str) -> None:
    encoder, given = encoder_of(name), texts(1, 37, 64, 128)
    for text, found in zip(given, Pools(encoder.folder, isa).vectors(*given), strict=True):
        wanted = oracle(encoder, name, text)
        np.testing.assert_allclose(found, wanted, rtol=0, atol=2e-4 * max(1.0, np.abs(wanted).max()))


@pytest.mark.parametrize("name", NAMES)
def test_parameters_are_those_of_the_oracle(encoder_of: EncoderOf, name: str) -> None:
    encoder = encoder_of(name)
    # A vector is not what goes through this product, which classifiers alone have a use for.
    unused = ("pooler.",) if name in ("bert", "bert_relu", "roberta", "mpnet") else ()
    elements = [one.numel() for name, one in encoder.model.named_parameters() if not name.startswith(unused)]
    assert parameters(read_folder(encoder.folder, to_run=True)) == sum(elements)


@pytest.mark.parametrize("isa", ISAS[:2])
@pytest.mark.parametrize("name", ["bert", "roberta", "modernbert", "qwen3"])
def test_means_of_all_tokens(encoder_of: EncoderOf, name: str, isa: str) -> None:
    encoder, given = encoder_of(name), texts(5, 37, 128)
    for text, found in zip(given, Pools(encoder.folder, isa, pooling="mean").vectors(*given), strict=True):
        np.testing.assert_allclose(found, encoder.hidden(*text).mean(0), rtol=0, atol=5e-4)


@pytest.mark.parametrize("isa", ISAS)
def test_the_second_text_of_a_pair_is_another_type(encoder_of: EncoderOf, isa: str) -> None:
    encoder, (text,) = encoder_of("bert"), texts(40)
    pair = (text[0], 23)
    (found,) = Pools(encoder.folder, isa, pooling="mean").vectors(pair)
    np.testing.assert_allclose(found, encoder.hidden(*pair).mean(0), rtol=0, atol=1e-3)
    assert np.abs(encoder.hidden(*pair) - encoder.hidden(*text)).mean(0).max() > 0.05


@pytest.mark.parametrize("dtype", ["float32", "bfloat16"])
@pytest.mark.parametrize(
    ("isa", "name"),
    [
        pytest.param(isa, name, marks=pytest.mark.wide if isa != ISAS[1] and name != "bert" else ())
        for isa in ISAS[:-1]
        for name in ("bert", "mpnet_classifier", "modernbert", "qwen3_classifier", "embedding_gemma")
    ],
)
def test_company_changes_no_bit(encoder_of: EncoderOf, name: str, isa: str, dtype: str) -> None:
    folder, given = encoder_of(name).folder, texts(17, 3, 128, 64, 65, 1, 100, 30, 90)
    alone = [Pools(folder, isa, dtype).vectors(one)[0] for one in given]
    for pools in (
        Pools(folder, isa, dtype),
        Pools(folder, isa, dtype, budget=20),  # every text goes alone, and longer than the budget
        Pools(folder, isa, dtype, strategy=Static(4, 0.0), pass_tokens=130),  # padded, in passes of a text or two
    ):
        for one, found in zip(alone, pools.vectors(*given), strict=True):
            np.testing.assert_array_equal(found, one)


@pytest.mark.parametrize("isa", ISAS[1:2])
@pytest.mark.parametrize("name", ["bert", "roberta", "distilbert", "mpnet_classifier", "modernbert", "embedding_gemma"])
def test_bf16_is_near(encoder_of: EncoderOf, name: str, isa: str) -> None:
    encoder, given = encoder_of(name), texts(37, 128)
    for text, found in zip(given, Pools(encoder.folder, isa, "bfloat16").vectors(*given), strict=True):
        wanted = oracle(encoder, name, text)
        assert found @ wanted / np.linalg.norm(found) / np.linalg.norm(wanted) > 0.999


def test_vectors_as_they_are_wanted(encoder_of: EncoderOf) -> None:
    pools, (text,) = Pools(encoder_of("bert").folder, "reference"), texts(20)
    (raw,) = pools.vectors(text)
    (cut,) = pools.vectors(text, params=PoolingParams(dimensions=8))
    np.testing.assert_allclose(cut, raw[:8] / np.linalg.norm(raw[:8]), rtol=1e-6)
    (chances,) = pools.vectors(text, params=PoolingParams(normalize=False, activation="softmax"))
    np.testing.assert_allclose(chances, np.exp(raw - raw.max()) / np.exp(raw - raw.max()).sum(), rtol=1e-4)
    (each,) = pools.vectors(text, params=PoolingParams(normalize=False, activation="sigmoid"))
    np.testing.assert_allclose(each, 1 / (1 + np.exp(-raw)), rtol=1e-4)
