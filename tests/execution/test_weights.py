"""Packing: dtypes, tying, progress, and random weights that load without a checkpoint."""

from __future__ import annotations

import json
import time
from pathlib import Path
from typing import Any, Literal

import numpy as np
import pytest
from msgspec.structs import replace

from inflight.execution.backends import open_backend
from inflight.execution.backends.bf16 import from_bf16
from inflight.execution.backends.grouped import PackedMatrix
from inflight.execution.backends.matrices import Int4Matrix, Int8Matrix, Matrix, ReorderedMatrix
from inflight.execution.backends.protocol import Quantization
from inflight.execution.checkpoints.checkpoint import Checkpoint
from inflight.execution.checkpoints.dummy import DummyWeights
from inflight.execution.mlps.moe import MoEWeights
from inflight.execution.sizes import weight_bytes
from inflight.execution.weights import load_weights
from inflight.models import arithmetic
from inflight.models.arithmetic import parameters
from inflight.models.errors import ModelError
from inflight.models.registry import read_folder, read_spec
from inflight.models.spec import WeightFormat
from inflight.simulate.hardware import packing

from .conftest import OracleOf
from .driver import Driver, backends

REFERENCE = open_backend("float32", 1, "reference")


def load(folder: Path, **settings: Any) -> Any:
    config = read_folder(folder, to_run=True)
    return load_weights(config, Checkpoint(folder), REFERENCE, 16, **settings)


def variant_of(folder: Path, target: Path, tensors: dict[str, Any] | None = None, **changes: Any) -> Path:
    """A copy of a saved model with other tensors or another config."""
    from safetensors.torch import load_file, save_file

    held = load_file(folder / "model.safetensors")
    for name, value in (tensors or {}).items():
        if value is None:
            held.pop(name)
        else:
            held[name] = value
    save_file(held, target / "model.safetensors")
    data = json.loads((folder / "config.json").read_text())
    (target / "config.json").write_text(json.dumps({**data, **changes}))
    return target


@pytest.mark.parametrize("dtype", ["float16", "bfloat16"])
def test_narrow_checkpoints_load_exactly(oracle_of: OracleOf, tmp_path: Path, dtype: str) -> None:
    """A checkpoint of 16 bits in an f32 engine answers as transformers does with the same rounded weights."""
    import copy

    import torch

    oracle = oracle_of("qwen2")
    rounded = copy.deepcopy(oracle.model).to(getattr(torch, dtype))
    rounded.save_pretrained(tmp_path)
    assert read_folder(tmp_path, to_run=True).checkpoint_dtype == dtype
    expected = oracle.loaded(tmp_path, torch.float32)(oracle.prompt[:40])
    driver = Driver.of(tmp_path, "float32", "reference")
    logits = driver.prefill(driver.start(oracle.prompt[:40]), 40)
    assert np.abs(logits - expected).max() < 1e-4 * np.abs(expected).max()


def test_a_tied_table_is_held_once(oracle_of: OracleOf) -> None:
    weights = load(oracle_of("qwen3_tied").folder)
    assert weights.output is weights.table.linear
    config = read_folder(oracle_of("qwen3_tied").folder, to_run=True)
    rope = sum(table.cos.nbytes + table.sin.nbytes for table in weights.ropes.values())
    assert weights.nbytes == 4 * parameters(config) + rope


def test_an_untied_model_has_an_output_of_its_own(oracle_of: OracleOf) -> None:
    weights = load(oracle_of("llama2").folder)
    config = read_folder(oracle_of("llama2").folder, to_run=True)
    assert weights.table.linear is None and weights.output.rows == config.vocab_size
    rope = sum(table.cos.nbytes + table.sin.nbytes for table in weights.ropes.values())
    assert weights.nbytes == 4 * parameters(config) + rope


def test_a_tied_model_may_be_saved_under_either_name_or_both(oracle_of: OracleOf, tmp_path: Path) -> None:
    import torch

    folder = oracle_of("qwen3_tied").folder
    table = torch.from_numpy(Checkpoint(folder).tensor("model.embed_tokens.weight", (320, 64)).copy())
    (tmp_path / "both").mkdir()
    same = variant_of(folder, tmp_path / "both", {"lm_head.weight": table.clone()})
    assert load(same).table.linear is not None
    (tmp_path / "head").mkdir()
    renamed = {"model.embed_tokens.weight": None, "lm_head.weight": table}
    assert load(variant_of(folder, tmp_path / "head", renamed)).table.linear is not None
    (tmp_path / "other").mkdir()
    different = variant_of(folder, tmp_path / "other", {"lm_head.weight": table + 1})
    weights = load(different)
    assert weights.table.linear is None, "two different tables are not tied, whatever the config says"
    assert np.array_equal(weights.output.parts[0], (table + 1).numpy())


def test_an_untied_model_without_its_head_is_refused(oracle_of: OracleOf, tmp_path: Path) -> None:
    folder = variant_of(oracle_of("qwen3_tied").folder, tmp_path, tie_word_embeddings=False)
    with pytest.raises(ModelError, match=r"lacks tensor 'lm_head\.weight'"):
        load(folder)


def test_progress_ends_at_the_whole_model(oracle_of: OracleOf) -> None:
    seen: list[tuple[int, int]] = []
    load(oracle_of("qwen3_biases").folder, progress=lambda done, total: seen.append((done, total)))
    total = parameters(read_folder(oracle_of("qwen3_biases").folder, to_run=True))
    assert seen == sorted(seen) and seen[-1] == (total, total)


def test_every_tensor_is_released_once_packed(oracle_of: OracleOf) -> None:
    class Counting(Checkpoint):
        def __init__(self, folder: Path) -> None:
            super().__init__(folder)
            self.held: set[str] = set()
            self.most = 0

        def tensor(self, name: str, shape: Any) -> Any:
            self.held.add(name)
            self.most = max(self.most, len(self.held))
            return super().tensor(name, shape)

        def matrix(self, name: str, shape: tuple[int, int]) -> Any:
            self.held.add(name)
            self.most = max(self.most, len(self.held))
            return super().matrix(name, shape)

        def release(self, name: str) -> None:
            self.held.remove(name)
            super().release(name)

    for folder in (oracle_of("qwen2").folder, oracle_of("mixtral").folder):
        source = Counting(folder)
        load_weights(read_folder(folder, to_run=True), source, REFERENCE, 16)
        assert source.held == set() and source.most <= 3


@pytest.mark.parametrize("variant", ["llama2", "qwen3_tied"])
def test_int8_packs_the_matrices_it_names(oracle_of: OracleOf, variant: str) -> None:
    folder = oracle_of(variant).folder
    tied = read_folder(folder, to_run=True).head.tied
    sizes = []

    def width(part: Any) -> int:
        return int(part.values.itemsize if isinstance(part, PackedMatrix) else part.itemsize)

    for quantization, layers, output in (("none", 4, 4), ("int8", 1, 4), ("int8-all", 1, 1)):
        got = load(folder, quantization=quantization)
        sizes.append(got.nbytes)
        for layer in got.layers:
            mixer, mlp = layer.mixer, layer.mlp
            matrices = (mixer.qkv, mixer.output, mlp.gate_up.both, mlp.down)
            assert {width(part) for matrix in matrices for part in matrix.parts} == {layers}
        assert width(got.output.parts[0]) == output
        assert width(got.table.weight) == (output if tied else 4)
    assert sizes[0] > sizes[1] > sizes[2]


@pytest.mark.parametrize("quantization", ["none", "int8", "int8-all"])
@pytest.mark.parametrize("variant", ["qwen2_moe", "qwen3_moe_some_dense"])
def test_experts_take_what_is_counted(oracle_of: OracleOf, variant: str, quantization: Quantization) -> None:
    """Routers and shared gates are never quantized."""
    folder = oracle_of(variant).folder
    got, config = load(folder, quantization=quantization), read_folder(folder, to_run=True)
    held = got.nbytes - sum(one.cos.nbytes + one.sin.nbytes for one in got.ropes.values())
    assert held == pytest.approx(weight_bytes(config, "float32", quantization), rel=0.02)  # the last group is shorter
    routers = [layer.mlp.router for layer in got.layers if isinstance(layer.mlp, MoEWeights)]
    assert routers and {router.parts[0].itemsize for router in routers} == {4}


# Widths that fill whole groups, so that bytes are those that are counted.
LATENT = {
    **{"model_type": "deepseek_v3", "vocab_size": 96, "hidden_size": 64, "intermediate_size": 96},
    **{"num_hidden_layers": 2, "num_attention_heads": 4, "max_position_embeddings": 64, "first_k_dense_replace": 1},
    **{"n_routed_experts": 4, "n_group": 1, "topk_group": 1, "num_experts_per_tok": 2, "moe_intermediate_size": 32},
    **{"q_lora_rank": 32, "kv_lora_rank": 64, "qk_rope_head_dim": 16, "qk_nope_head_dim": 32, "v_head_dim": 32},
}
CONFIG = {
    **{"model_type": "gemma4_text", "vocab_size": 96, "hidden_size": 64, "intermediate_size": 96, "head_dim": 16},
    **{"num_hidden_layers": 3, "num_attention_heads": 4, "num_key_value_heads": 1, "max_position_embeddings": 64},
    **{"layer_types": ["sliding_attention", "sliding_attention", "full_attention"], "global_head_dim": 16},
    **{"hidden_size_per_layer_input": 32, "vocab_size_per_layer_input": 100, "tie_word_embeddings": True},
}


UNCOUNTED = 256  # bytes: corrections of routers, norms whose weight is 1


@pytest.mark.parametrize("came", [None, "fp8"])
@pytest.mark.parametrize("quantization", ["none", "int8", "int4", "int4-all"])
def test_keys_of_latent_attention_take_what_is_counted(quantization: Quantization, came: str | None) -> None:
    """They are held turned; where they come quantized, as plain numbers."""
    spec = replace(read_spec(LATENT, to_run=True), weight_format=FORMATS[came] if came else None)
    got = load_weights(spec, DummyWeights("float32", 0, spec.weight_format), REFERENCE, 16, quantization=quantization)
    held = got.nbytes - sum(one.cos.nbytes + one.sin.nbytes for one in got.ropes.values())
    assert abs(held - weight_bytes(spec, "float32", quantization)) < UNCOUNTED


@pytest.mark.parametrize("quantization", ["none", "int8", "int4", "int4-all"])
def test_the_table_of_token_inputs_takes_what_is_counted(quantization: Quantization) -> None:
    """In int8, a scale for each layer's share of a row, as soon as matrices are quantized."""
    spec = read_spec(CONFIG, to_run=True)
    got = load_weights(spec, DummyWeights("float32", 0, None), REFERENCE, 16, quantization=quantization)
    held = got.nbytes - sum(one.cos.nbytes + one.sin.nbytes for one in got.ropes.values())
    assert abs(held - weight_bytes(spec, "float32", quantization)) < UNCOUNTED
    assert got.token_inputs is not None
    assert got.token_inputs.table.nbytes == 100 * (3 * 32 * 4 if quantization == "none" else 3 * 32 + 3 * 4)


PLANNED = {
    **{"model_type": "llama", "vocab_size": 96, "hidden_size": 64, "intermediate_size": 96, "num_hidden_layers": 2},
    **{"num_attention_heads": 4, "num_key_value_heads": 2, "head_dim": 16, "max_position_embeddings": 64},
}


@pytest.mark.parametrize("precision", ["int8", "int4"])
def test_matrices_take_what_plans_count(precision: Literal["int8", "int4"]) -> None:
    spec, packed = read_spec(PLANNED, to_run=True), packing(precision)
    got = load_weights(spec, DummyWeights("float32", 0, None), REFERENCE, 16, quantization=precision)
    held = 0
    for layer in got.layers:
        mixer, mlp = layer.mixer, layer.mlp
        matrices = (mixer.qkv, mixer.output, mlp.gate_up.both, mlp.down)
        held += sum(part.nbytes for matrix in matrices for part in matrix.parts)
    others = replace(packed, matrix=0, matrix_scale=0, values=0)
    assert held == arithmetic.weight_bytes(spec, packed) - arithmetic.weight_bytes(spec, others)


FORMATS = {
    "gptq": WeightFormat("gptq", 4, 32, symmetric=True),
    "gptq, act-order": WeightFormat("gptq", 4, 32, symmetric=True, act_order=True),
    "awq": WeightFormat("awq", 4, 32, symmetric=False),
    "gptq, 8 bits": WeightFormat("gptq", 8, 32, symmetric=False),
    "gptq, 8 bits, act-order": WeightFormat("gptq", 8, 32, symmetric=False, act_order=True),
    "int8 by channel, zero points": WeightFormat("compressed-tensors", 8, symmetric=False),
    "groups of 16, 8 bits": WeightFormat("compressed-tensors", 8, 16, symmetric=True),
    "fp8": WeightFormat("fp8", 8),
    "mxfp4": WeightFormat("mxfp4", 4, 32),
}


@pytest.mark.parametrize("format", FORMATS)
@pytest.mark.parametrize("variant", ["llama2", "gpt_oss", "mixtral"])
def test_quantized_matrices_take_what_is_counted(oracle_of: OracleOf, variant: str, format: str) -> None:
    """In MXFP4 only experts are quantized. With act-order a matrix has a number for each input beside, which of these
    small ones is some percent, and not counted."""
    spec = replace(read_folder(oracle_of(variant).folder, to_run=True), weight_format=FORMATS[format])
    got = load_weights(spec, DummyWeights("float32", 0, spec.weight_format), REFERENCE, 16)
    nbytes = got.nbytes - sum(one.cos.nbytes + one.sin.nbytes for one in got.ropes.values())
    counted = weight_bytes(spec, "float32")
    assert counted <= nbytes <= counted * (1.05 if FORMATS[format].act_order else 1.001)


def test_what_mxfp4_leaves_plain_may_be_quantized(oracle_of: OracleOf) -> None:
    spec = replace(read_folder(oracle_of("gpt_oss").folder, to_run=True), weight_format=FORMATS["mxfp4"])
    got = load_weights(spec, DummyWeights("float32", 0, spec.weight_format), REFERENCE, 16, quantization="int8")
    nbytes = got.nbytes - sum(one.cos.nbytes + one.sin.nbytes for one in got.ropes.values())
    assert nbytes == pytest.approx(weight_bytes(spec, "float32", "int8"), rel=0.01)


@pytest.mark.skipif(len(backends()) == 1, reason="the kernels are not built")
def test_experts_that_are_quantized_in_several_ways_are_refused_in_words(oracle_of: OracleOf) -> None:
    class SomePlain(DummyWeights):
        def matrix(self, name: str, shape: tuple[int, int]) -> Matrix:
            return self.tensor(name, shape) if ".experts.2." in name else super().matrix(name, shape)

    spec = replace(read_folder(oracle_of("mixtral").folder, to_run=True), weight_format=FORMATS["awq"])
    source = SomePlain("float32", 0, spec.weight_format)
    with pytest.raises(
        ModelError, match=r"the \d+ experts of a layer cannot be computed together .*held alike.*; take a"
    ):
        load_weights(spec, source, open_backend("float32", 1), 16)
    load_weights(spec, source, REFERENCE, 16)


@pytest.mark.parametrize("variant", ["mixtral", "qwen2_moe"])
def test_stacked_experts_are_the_same_experts(oracle_of: OracleOf, tmp_path: Path, variant: str) -> None:
    """As `transformers` holds them, and not as it saves them."""
    from safetensors.torch import save_file

    oracle = oracle_of(variant)
    save_file(
        {name: values.contiguous() for name, values in oracle.model.state_dict().items()},
        tmp_path / "model.safetensors",
    )
    (tmp_path / "config.json").write_text((oracle.folder / "config.json").read_text())
    assert "model.layers.0.mlp.experts.0.up_proj.weight" not in Checkpoint(tmp_path)
    drivers = [Driver.of(folder, "float32", "reference") for folder in (oracle.folder, tmp_path)]
    one, other = (driver.prefill(driver.start(oracle.prompt[:20]), 20) for driver in drivers)
    assert np.array_equal(one, other)


def test_more_positions_than_the_model_has_are_refused(oracle_of: OracleOf) -> None:
    folder = oracle_of("llama2").folder
    config = read_folder(folder, to_run=True)
    with pytest.raises(ModelError, match="--max-model-len is 161, but the model has 160 positions; give 1 to 160"):
        load_weights(config, Checkpoint(folder), REFERENCE, 161)


# -- random weights -----------------------------------------------------------------------------------------------
def test_random_weights_look_like_weights() -> None:
    source = DummyWeights("bfloat16")
    matrix = source.tensor("model.layers.0.mlp.up_proj.weight", (3000, 512))
    assert matrix.dtype == np.uint16
    values = from_bf16(matrix)
    assert abs(float(values.std()) - 0.02) < 1e-4 and abs(float(values.mean())) < 1e-4
    assert len(np.unique(matrix[:, :8], axis=0)) == 3000, "no two rows alike"
    norm = source.tensor("model.norm.weight", (512,))
    assert norm.dtype == np.float32 and abs(float(norm.mean()) - 1) < 0.01


@pytest.mark.parametrize(
    ("format", "kind"),
    [
        (WeightFormat("fp8", 8, block=(128, 128)), Int8Matrix),
        (WeightFormat("awq", 4, 128), Int4Matrix),
        (WeightFormat("gptq", 4, 128, symmetric=True, act_order=True), ReorderedMatrix),
    ],
)
def test_random_weights_of_a_quantized_model_are_quantized(format: WeightFormat, kind: type) -> None:
    source = DummyWeights("bfloat16", format=format)
    matrix = source.matrix("model.layers.0.mlp.up_proj.weight", (300, 256))
    assert isinstance(matrix, kind) and matrix.shape == (300, 256)
    values = matrix.dequantized()
    assert abs(float(values.std()) - 0.02) < 1e-3 and abs(float(values.mean())) < 1e-3
    held = matrix.matrix if isinstance(matrix, ReorderedMatrix) else matrix
    assert not isinstance(held, Int4Matrix) or (held.group, held.offsets is None) == (128, format.method == "gptq")
    for name in ("model.embed_tokens.weight", "lm_head.weight"):
        assert isinstance(source.matrix(name, (30, 16)), np.ndarray)
    experts = DummyWeights("bfloat16", format=WeightFormat("mxfp4", 4, 32))
    assert isinstance(experts.matrix("model.layers.0.self_attn.q_proj.weight", (32, 64)), np.ndarray)
    assert isinstance(experts.matrix("model.layers.0.mlp.experts.0.up_proj.weight", (32, 64)), Int4Matrix)


def test_random_weights_follow_seed_and_name() -> None:
    def draw(seed: int, name: str) -> np.ndarray:
        return DummyWeights("float32", seed).tensor(name, (40, 30))

    assert np.array_equal(draw(1, "a"), draw(1, "a"))
    assert not np.array_equal(draw(1, "a"), draw(2, "a"))
    assert not np.array_equal(draw(1, "a"), draw(1, "b"))


@pytest.mark.parametrize("variant", ["llama2", "qwen3_tied", "qwen2", "qwen2_moe", "mixtral"])
def test_random_weights_make_a_model_of_any_config(oracle_of: OracleOf, variant: str) -> None:
    config = read_folder(oracle_of(variant).folder, to_run=True)
    weights = load_weights(config, DummyWeights("float32"), REFERENCE, 16)
    assert len(weights.layers) == len(config.layers)
    assert (weights.table.linear is not None) == config.head.tied


def test_random_weights_of_a_large_matrix_are_quick() -> None:
    source = DummyWeights("bfloat16")
    started = time.perf_counter()
    source.tensor("model.embed_tokens.weight", (32_000, 896))
    assert time.perf_counter() - started < 2, "copying 57 MB takes milliseconds; drawing 29 million normals does not"
