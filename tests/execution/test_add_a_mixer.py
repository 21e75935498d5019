"""docs/add-a-mixer.md: the mixer of the page, one file, runs, is counted, is cut over devices, and is refused."""

from __future__ import annotations

import json
import re
import sys
from collections.abc import Iterator
from importlib import import_module
from pathlib import Path
from types import ModuleType
from typing import Any

import numpy as np
import pytest
from models import SIZES, asked_for
from msgspec.structs import replace
from safetensors.numpy import save_file
from text.builders import byte_level

from inflight import LLM, SamplingParams
from inflight.execution.backends.protocol import Activation, Linear
from inflight.execution.backends.reference import ReferenceBackend
from inflight.execution.checkpoints.dummy import DummyWeights
from inflight.execution.kv.kv_groups import one_group
from inflight.execution.layers.norm import Residual
from inflight.execution.memory import states_of
from inflight.execution.model import Model
from inflight.execution.packer import Packer
from inflight.execution.parallel.shards import Shard, cut_model, kept_whole
from inflight.execution.parts import PartWeights, computes
from inflight.execution.program import Program
from inflight.execution.weights import load_weights
from inflight.models import families
from inflight.models.arithmetic import layer_flops_per_token, parameters
from inflight.models.errors import ModelError
from inflight.models.mixers.mamba import Mamba
from inflight.models.parts import Mixer, Mlp, Weights
from inflight.models.registry import read_folder, read_spec
from inflight.models.runnable import refuse_what_does_not_run
from inflight.models.sequence_memory import kv_bytes_per_token, state_bytes
from inflight.models.spec import ModelSpec

from .driver import Driver, backends
from .parallel.together import Together

PAGE = Path(__file__).parents[2] / "docs/add-a-mixer.md"
CONFIG: dict[str, Any] = {
    **SIZES,
    "architectures": ["SwiftForCausalLM"],
    "model_type": "swift",
    "num_hidden_layers": 3,
    "average_width": 48,
    "average_kernel": 4,
}
TOKENS = np.random.default_rng(2).integers(0, 300, 40)


@pytest.fixture(scope="module")
def page(tmp_path_factory: pytest.TempPathFactory) -> Iterator[ModuleType]:
    """The page's code, as one file among the families."""
    code = tmp_path_factory.mktemp("families")
    source = "\n\n".join(re.findall(r"```python\n(.*?)```", PAGE.read_text(encoding="utf-8"), re.DOTALL))
    (code / "swift.py").write_text(source, encoding="utf-8")
    families.__path__.append(str(code))
    yield import_module(f"{families.__name__}.swift")
    families.__path__.remove(str(code))
    sys.modules.pop(f"{families.__name__}.swift")


@pytest.fixture(scope="module")
def folder(page: ModuleType, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A checkpoint with random tensors of whatever names its loading asks for."""
    folder = tmp_path_factory.mktemp("swift")
    (folder / "config.json").write_text(json.dumps(CONFIG))
    save_file(asked_for(CONFIG), folder / "model.safetensors")
    byte_level().save(str(folder / "tokenizer.json"))
    return folder


def with_mixer(spec: ModelSpec, mixer: Mixer) -> ModelSpec:
    return replace(spec, layers=(replace(spec.layers[0], mixer=mixer), *spec.layers[1:]))


def logits(driver: Driver, chunks: tuple[int, ...]) -> np.ndarray:
    """Return the logits after every token, computed in such chunks."""
    sequence = driver.start(TOKENS)
    found = np.concatenate([driver.step([(sequence, count)]) for count in chunks])
    driver.end(sequence)
    return found


def test_chunks_of_a_prompt_have_the_logits_of_the_whole(folder: Path) -> None:
    driver = Driver.of(folder, "float32", "reference")
    whole = logits(driver, (40,))
    np.testing.assert_allclose(logits(driver, (17, 1, 1, 21)), whole, atol=1e-5 * np.abs(whole).max())
    driver = Driver.of(folder, "float32", backends()[0])
    np.testing.assert_allclose(logits(driver, (17, 1, 1, 21)), whole, atol=1e-4 * np.abs(whole).max())


def test_the_engine_runs_it(folder: Path) -> None:
    llm = LLM(str(folder), dtype="float32", threads=1)
    params = SamplingParams(temperature=0, max_tokens=12, ignore_eos=True)
    output = llm.generate({"prompt_token_ids": TOKENS.tolist()}, params)[0].outputs[0]
    assert output.token_ids == Driver.of(folder, "float32", "reference").greedy(TOKENS, 12)


def test_it_is_counted(folder: Path) -> None:
    spec, tensors = read_folder(folder, to_run=True), asked_for(CONFIG)
    assert parameters(spec) == sum(one.size for one in tensors.values())
    assert kv_bytes_per_token(spec) == 2 * 2 * 2 * 16, "of the layer of attention alone"
    assert one_group(spec).of_layer == (None, None, 0)
    assert [one and (one.inputs, one.channels) for one in states_of(spec)] == [(3, 48), (3, 48), None]
    assert state_bytes(spec) == 2 * 3 * 48 * 2
    matrices = 2 * 3 * 48 * 64 + 64 * (64 + 2 * 32 + 64) + 3 * 3 * 64 * 96
    assert layer_flops_per_token(spec) == 2 * matrices


def test_two_devices_compute_what_one_does(folder: Path) -> None:
    spec = read_folder(folder, to_run=True)
    alone = logits(Driver.of(folder, "float32", "reference"), (40,))
    together = Together(2)
    first, second = together.each(
        lambda rank: logits(Driver(folder, together.backend(rank), shard=Shard(spec, rank, 2)), (23, 16, 1))
    )
    np.testing.assert_array_equal(first, second)
    np.testing.assert_allclose(first, alone, atol=1e-4 * np.abs(alone).max())
    assert cut_model(spec, 2).layers[0].mixer.recurrent_state(64).channels == 24
    assert kept_whole(spec) == ()


def test_what_devices_cannot_share_is_refused_or_computed_by_each(page: ModuleType, folder: Path) -> None:
    spec = read_folder(folder, to_run=True)
    odd = with_mixer(spec, replace(spec.layers[0].mixer, width=45))
    with pytest.raises(ModelError, match="the model has averages of 45 channels, which 2 devices cannot share"):
        cut_model(odd, 2)
    alone = with_mixer(spec, page.GatedAverage(width=45, kernel=4))
    assert kept_whole(alone) == ("layers of GatedAverage",)
    assert cut_model(alone, 2).layers[0].mixer is alone.layers[0].mixer


def test_what_is_not_computed_is_refused(folder: Path) -> None:
    with pytest.raises(ModelError, match="the family swift has convolutions of over 16 tokens, which is described"):
        read_spec({**CONFIG, "average_kernel": 17}, to_run=True)
    spec = read_folder(folder, to_run=True)
    mamba = with_mixer(spec, Mamba(inner=64, state=4, dt_rank=4, kernel=4))
    with pytest.raises(ModelError, match="the family swift has layers of Mamba and Dense, which is described"):
        refuse_what_does_not_run(mamba)
    with pytest.raises(ModelError, match="layers of Mamba are described, but not computed by this decoder"):
        load_weights(mamba, DummyWeights("float32"), ReferenceBackend("float32"), 64)


class Plain(Mlp, frozen=True, kw_only=True):
    """One product of the input with a square matrix."""

    passed_width: int

    def weights(self, hidden: int) -> Weights:
        return Weights(((hidden, hidden),))


@computes(Plain)
class PlainWeights(PartWeights, frozen=True):
    product: Linear
    residual: Residual

    @classmethod
    def load(cls, packer: Packer, spec: Plain, layer: int, after: str | None) -> PlainWeights:
        shape = (packer.model.hidden_size, packer.model.hidden_size)
        return cls(packer.linear([(f"model.layers.{layer}.mlp.proj.weight", shape)]), Residual.load(packer, after))

    def forward(self, program: Program, x: Activation, hidden: Activation) -> None:
        self.residual.add(program, x, self.product, hidden)


def test_an_mlp_is_one_file_too(folder: Path) -> None:
    spec = read_folder(folder, to_run=True)
    plain = replace(spec, layers=tuple(replace(layer, mlp=Plain(passed_width=64)) for layer in spec.layers))
    assert parameters(spec) - parameters(plain) == 3 * (3 * 64 * 96 - 64 * 64)
    assert kept_whole(plain) == ("layers of Plain",)
    weights = load_weights(plain, DummyWeights("float32"), ReferenceBackend("float32"), 64)
    assert [type(layer.mlp) for layer in weights.layers] == [PlainWeights] * 3
    Model(plain, weights, ReferenceBackend("float32"), 8, 8)  # records its passes


def test_the_page_names_every_answer_and_what_it_names_is_there() -> None:
    text = PAGE.read_text(encoding="utf-8")
    answers = {name for kind in Mixer.__mro__[:2] for name in vars(kind) if not name.startswith("_")}
    assert not {name for name in answers if f"`{name}`" not in text and f"def {name}" not in text} - {"module"}
    for name in re.findall(r"`((?:src|tests)/[\w/.-]+?)/?`", text):
        assert (PAGE.parents[1] / name).exists(), name
