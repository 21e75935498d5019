"""Models in GGUF answer what the folders that they were made of answer."""

from __future__ import annotations

from pathlib import Path

import gguf
import numpy as np
import pytest
from gguf import GGMLQuantizationType as Type
from gguf_files import add, convert, finish, plain
from models import write_model
from safetensors.numpy import load_file, save_file

from inflight import LLM, SamplingParams
from inflight.execution.backends import open_backend
from inflight.execution.backends.bf16 import from_bf16
from inflight.execution.backends.matrices import BlockMatrix, Int4Matrix, Int8Matrix
from inflight.execution.checkpoints.checkpoint import Checkpoint, open_checkpoint
from inflight.execution.checkpoints.gguf.gguf_checkpoint import GGUFCheckpoint
from inflight.execution.sizes import packing, weight_bytes
from inflight.execution.weights import load_weights
from inflight.models.errors import ModelError
from inflight.models.gguf.gguf_file import GGUFFile
from inflight.models.registry import read_folder
from inflight.models.spec import ModelSpec

from .. import driver

PROMPTS = ["hello world, <think>two words", {"prompt_token_ids": [5, 9, 77, 200]}]
GREEDY = SamplingParams(temperature=0, max_tokens=48)
UP, QUERIES = "model.layers.1.mlp.up_proj.weight", "model.layers.0.self_attn.q_proj.weight"


def answers(model: Path, dtype: str = "float32", **settings: object) -> list[tuple[list[int], list[int], str]]:
    llm = LLM(str(model), dtype=dtype, kv_memory=0.05, **settings)
    outputs = llm.generate(PROMPTS, GREEDY)
    return [(list(one.prompt_token_ids), list(one.outputs[0].token_ids), one.outputs[0].text) for one in outputs]


@pytest.mark.parametrize("family", ["llama", "qwen2", "qwen3"])
def test_greedy_tokens_are_those_of_the_folder(family: str, tmp_path: Path) -> None:
    folder = write_model(tmp_path / family, family)
    expected = answers(folder)
    assert answers(convert(folder, tmp_path / f"{family}.gguf", family)) == expected


def test_a_mistral_is_a_llama(tmp_path: Path) -> None:
    folder = write_model(tmp_path / "mistral", "mistral", sliding_window=None)
    assert answers(convert(folder, tmp_path / "mistral.gguf", "llama")) == answers(folder)


KINDS = {
    "Q4_0": lambda part: Type.Q4_0,
    "Q8_0": lambda part: Type.Q8_0,
    "mixed": lambda part: {"attn_v": Type.Q8_0, "ffn_down": Type.Q5_1, "token_embd": Type.Q8_0}.get(part, Type.Q4_1),
    "halves": lambda part: Type.F16 if part.startswith("ffn") else Type.BF16,
}


@pytest.mark.parametrize("kinds", KINDS)
def test_blocks_are_computed_with_as_their_numbers(kinds: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Beside a folder with the numbers of its blocks: halves as closely as float32 goes, the others but for how
    quantized matrices meet activations."""

    def kind(name: str, values: np.ndarray) -> Type:
        return KINDS[kinds](name.split(".")[-2])

    folder = write_model(tmp_path / "llama")
    file = convert(folder, tmp_path / "model.gguf", "llama", kind)
    source, numbers = GGUFCheckpoint(file), load_file(folder / "model.safetensors")
    for name, values in numbers.items():
        held = source.tensor(name, values.shape)
        numbers[name] = np.ascontiguousarray(from_bf16(held) if held.dtype == np.uint16 else held, np.float32)
    save_file(numbers, folder / "model.safetensors")
    monkeypatch.setattr(driver, "Checkpoint", open_checkpoint)
    prompt = np.arange(3, 43)
    both = [driver.Driver.of(one, "float32", "reference") for one in (folder, file)]
    expected, found = (one.prefill(one.start(prompt), 16) for one in both)
    error = np.sqrt(((found - expected) ** 2).mean() / (expected**2).mean())
    assert error < (1e-6 if kinds == "halves" else 0.1)


@pytest.fixture
def mixed(tmp_path: Path) -> tuple[Path, Path]:
    """A folder, and the same model in several types."""

    def kinds(name: str, values: np.ndarray) -> Type:
        return {"attn_q": Type.Q4_0, "attn_k": Type.Q8_0, "attn_v": Type.F16, "ffn_up": Type.BF16}.get(
            name.split(".")[-2], Type.F32
        )

    folder = write_model(tmp_path / "llama")
    return folder, convert(folder, tmp_path / "model.gguf", "llama", kinds)


def test_tensors_come_as_the_file_has_them(mixed: tuple[Path, Path]) -> None:
    folder, found = Checkpoint(mixed[0]), open_checkpoint(mixed[1])
    up = found.tensor(UP, (96, 64))
    assert up.dtype == np.uint16 and np.abs(from_bf16(up) - folder.tensor(UP, (96, 64))).max() < 0.01
    values = found.tensor("model.layers.0.self_attn.v_proj.weight", (32, 64))
    assert values.dtype == np.float16 and not values.flags.writeable
    norm = found.tensor("model.layers.0.input_layernorm.weight", (64,))
    assert np.array_equal(norm, folder.tensor("model.layers.0.input_layernorm.weight", (64,)))
    assert "lm_head.weight" not in found and "nothing" not in found and "model.layers.0.nothing.weight" not in found
    found.release(UP)
    assert np.array_equal(up, found.tensor(UP, (96, 64)))


def test_matrices_keep_their_blocks_and_rows_come_in_order(mixed: tuple[Path, Path]) -> None:
    found = GGUFCheckpoint(mixed[1])
    queries = found.matrix(QUERIES, (64, 64))
    assert isinstance(queries, BlockMatrix) and isinstance(queries.unpacked(), Int4Matrix)
    assert np.array_equal(queries.dequantized(), found.tensor(QUERIES, (64, 64)))
    keys = found.matrix(QUERIES.replace("q_proj", "k_proj"), (32, 64))
    assert isinstance(keys, BlockMatrix) and isinstance(keys.unpacked(), Int8Matrix)
    assert np.allclose(keys.dequantized(), found.tensor(QUERIES.replace("q_proj", "k_proj"), (32, 64)), atol=0.01)
    assert found.matrix(UP, (96, 64)).dtype == np.uint16  # type: ignore[union-attr]


@pytest.mark.parametrize("kind", [Type.Q4_0, Type.Q4_1, Type.Q5_1, Type.Q8_0])
def test_a_tied_table_is_weighed_as_it_is_held(kind: Type, tmp_path: Path) -> None:
    folder = write_model(tmp_path / "llama", tie_word_embeddings=True, hidden_size=256, vocab_size=512)
    path = convert(folder, tmp_path / "model.gguf", "llama", lambda *_: kind)
    spec = read_folder(path, to_run=True)
    assert spec.head.tied
    held = load_weights(spec, open_checkpoint(path), open_backend("float32", 1, "reference"), 64)
    nbytes = held.nbytes - sum(one.cos.nbytes + one.sin.nbytes for one in held.ropes.values())
    assert nbytes == pytest.approx(weight_bytes(spec, "float32"), rel=0.01)


def test_a_file_is_weighed_by_what_its_matrices_are_held_in(tmp_path: Path) -> None:
    folder = write_model(tmp_path / "llama")
    plain = weight_bytes(read_folder(folder), "bfloat16")
    for kind, share in ((Type.F16, 1.0), (Type.Q8_0, 0.53125), (Type.Q4_0, 0.28125), (Type.Q4_1, 0.3125)):
        spec = read_folder(convert(folder, tmp_path / "model.gguf", "llama", lambda *_, kind=kind: kind), to_run=True)
        assert (spec.weight_format is None) == (kind == Type.F16)
        assert layer_bytes(spec) == pytest.approx(share * layer_bytes(read_folder(folder)), rel=0.03)
        assert weight_bytes(spec, "bfloat16") <= plain


def layer_bytes(spec: ModelSpec) -> float:
    """Take a matrix of a hundred thousand elements."""
    return packing(spec, "bfloat16").matrix * 1e5


@pytest.mark.parametrize("kind", [Type.Q8_0, Type.Q4_1, Type.F16])
def test_a_table_comes_as_its_blocks_or_plain(kind: Type, tmp_path: Path) -> None:
    """Damaged blocks, too, whose scales may be no numbers."""
    folder = write_model(tmp_path / "qwen2", "qwen2")
    path = convert(folder, tmp_path / "model.gguf", "qwen2", lambda name, values: kind)
    entry = GGUFCheckpoint(path)._model.tensors["token_embd.weight"][1]
    content, random = bytearray(path.read_bytes()), np.random.default_rng(1)
    for place in random.integers(entry.begin, entry.end, 300):
        content[place] = random.integers(256)
    path.write_bytes(content)
    source, table = GGUFCheckpoint(path), ("model.embed_tokens.weight", (384, 64))
    (rows,) = source.pieces(*table)
    assert isinstance(rows, BlockMatrix) == (kind != Type.F16)
    numbers = rows.numbers() if isinstance(rows, BlockMatrix) else rows
    np.testing.assert_array_equal(numbers, source.tensor(*table))
    with pytest.raises(ModelError, match="has shape"):
        list(source.pieces(table[0], (383, 64)))


def test_a_table_of_merged_groups_comes_in_pieces_of_its_rows(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    writer = gguf.GGUFWriter(tmp_path / "model.gguf", "qwen2")
    blocks = np.random.default_rng(2).integers(0, 256, (384, 2 * 84), np.uint8)
    writer.add_tensor("token_embd.weight", blocks, raw_dtype=Type.Q2_K)
    source, table = GGUFCheckpoint(finish(writer, tmp_path / "model.gguf")), ("model.embed_tokens.weight", (384, 512))
    monkeypatch.setattr("inflight.execution.checkpoints.gguf.gguf_checkpoint._PIECE", 5 * 512)
    pieces = list(source.pieces(*table))
    assert len(pieces) == 77
    np.testing.assert_array_equal(np.concatenate(pieces), source.tensor(*table))


def test_a_file_is_opened_once_for_a_start(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Its header has hundreds of thousands of texts to walk through."""
    file, opened, real = (
        convert(write_model(tmp_path / "llama"), tmp_path / "model.gguf", "llama"),
        [],
        GGUFFile.__init__,
    )

    def noted(self: GGUFFile, path: Path) -> None:
        opened.append(path)
        real(self, path)

    monkeypatch.setattr(GGUFFile, "__init__", noted)
    answers(file)
    assert opened == [file]


def test_a_stack_of_experts_is_asked_for_one_by_one(tmp_path: Path) -> None:
    writer = gguf.GGUFWriter(tmp_path / "model.gguf", "qwen3moe")
    stack = np.random.default_rng(0).standard_normal((4, 24, 64)).astype(np.float32)
    add(writer, "blk.0.ffn_gate_exps.weight", stack, lambda *_: Type.Q8_0)
    add(writer, "blk.0.ffn_gate_inp.weight", stack[0, :4])
    found = GGUFCheckpoint(finish(writer, tmp_path / "model.gguf"))
    for expert in range(4):
        name = f"model.layers.0.mlp.experts.{expert}.gate_proj.weight"
        assert np.abs(found.tensor(name, (24, 64)) - stack[expert]).max() < 0.02
        assert found.matrix(name, (24, 64)).shape == (24, 64)
    assert np.array_equal(found.tensor("model.layers.0.mlp.gate.weight", (4, 64)), stack[0, :4])
    with pytest.raises(ModelError, match="stacks 4 experts, and not 5"):
        found.tensor("model.layers.0.mlp.experts.4.gate_proj.weight", (24, 64))


def test_what_is_missing_or_has_another_shape_is_named(mixed: tuple[Path, Path]) -> None:
    found = GGUFCheckpoint(mixed[1])
    with pytest.raises(
        ModelError, match=r"lacks tensor 'model.layers.7.mlp.up_proj.weight' \(blk.7.ffn_up.weight there\)"
    ):
        found.tensor("model.layers.7.mlp.up_proj.weight", (96, 64))
    with pytest.raises(ModelError, match=r"lacks tensor 'vision.weight', which"):
        found.tensor("vision.weight", (96, 64))
    with pytest.raises(ModelError, match=r"'blk.1.ffn_up.weight' .* has shape \[96, 64\], but .* ask for \[64, 96\]"):
        found.tensor(UP, (64, 96))


def test_a_tensor_that_no_layer_asks_for_is_not_passed_over(tmp_path: Path) -> None:
    """A bias of one layer makes of a Llama something else."""
    folder = write_model(tmp_path / "llama")
    tensors = load_file(folder / "model.safetensors")
    save_file(
        {**tensors, "model.layers.1.self_attn.o_proj.bias": np.zeros(64, np.float32)}, folder / "model.safetensors"
    )
    file = convert(folder, tmp_path / "model.gguf", "llama")
    with pytest.raises(ModelError, match=r"weights, 64 more than models of the shape in its metadata have"):
        read_folder(file, to_run=True)
    # Nor does it pass where a key of another architecture says that no layer has keys of its own.
    other = convert(folder, tmp_path / "other.gguf", "llama", attention__shared_kv_layers=99)
    with pytest.raises(ModelError, match=r"weights, 64 more than models of the shape in its metadata have"):
        read_folder(other, to_run=True)
    assert read_folder(file).family == "llama"  # to be planned with


def test_types_that_are_not_read_are_named(tmp_path: Path) -> None:
    writer = gguf.GGUFWriter(tmp_path / "model.gguf", "llama")
    writer.add_tensor("t", np.zeros((2, 66), np.uint8), raw_dtype=Type.IQ2_XXS)
    with pytest.raises(
        ModelError, match=r"tensors of the types IQ2_XXS, which are not read; read are F32, F16, BF16, Q4_0"
    ):
        open_checkpoint(finish(writer, tmp_path / "model.gguf"))


def test_llama_rows_are_put_back_in_halves(tmp_path: Path) -> None:
    """The converter's order, undone: by hand for one head of four rows."""
    writer = gguf.GGUFWriter(tmp_path / "model.gguf", "llama")
    writer.add_block_count(1)
    writer.add_head_count(1)
    add(writer, "blk.0.attn_q.weight", np.array([[0.0], [2.0], [1.0], [3.0]], np.float32), plain)
    found = GGUFCheckpoint(finish(writer, tmp_path / "model.gguf"))
    assert found.tensor(QUERIES, (4, 1)).ravel().tolist() == [0, 1, 2, 3]


@pytest.mark.parametrize("shape", [(96,), (8, 12), (3, 8, 5)])
def test_keys_of_latent_attention_that_are_no_matrices_are_refused(shape: tuple[int, ...], tmp_path: Path) -> None:
    """Beside values [2, 4, 12], of two heads."""
    writer = gguf.GGUFWriter(tmp_path / "model.gguf", "deepseek2")
    writer.add_tensor("blk.0.attn_k_b.weight", np.zeros(shape, np.float32))
    writer.add_tensor("blk.0.attn_v_b.weight", np.zeros((2, 4, 12), np.float32))
    found = GGUFCheckpoint(finish(writer, tmp_path / "model.gguf"))
    with pytest.raises(ModelError, match=r"attn_k_b.weight and .* have shapes .* but the metadata ask for \[16, 12\]"):
        found.tensor("model.layers.0.self_attn.kv_b_proj.weight", (16, 12))
