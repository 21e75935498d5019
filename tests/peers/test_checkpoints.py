"""Checkpoints of random weights: what every engine must be able to load."""

from __future__ import annotations

import shutil
import sys
from pathlib import Path

import pytest

from benchmarks.peers.checkpoints import Checkpoints, Environments, ExportFailed
from benchmarks.peers.tokenizer import END, write_tokenizer
from benchmarks.shapes import LLAMA32_1B, QWEN3_06B, QWEN25_05B
from inflight.api import LLM, SamplingParams
from inflight.text import Tokenizer

SMALL = {
    "hidden_size": 64,
    "num_hidden_layers": 2,
    "num_attention_heads": 4,
    "num_key_value_heads": 2,
    "head_dim": 16,
    "intermediate_size": 96,
    "vocab_size": 1024,
}


@pytest.mark.parametrize("vocab_size", [300, 1024, 151_936])
def test_a_tokenizer_of_any_size_gives_every_id_a_text(tmp_path: Path, vocab_size: int) -> None:
    write_tokenizer(tmp_path, vocab_size)
    tokenizer = Tokenizer.load(tmp_path)
    assert tokenizer.vocab_size == vocab_size
    assert tokenizer.eos_token_id == tokenizer.token_to_id(END) == vocab_size - 3
    text = "Ten requests wait; naïve 日本 \n batching"
    assert tokenizer.decode(tokenizer.encode(text)) == text
    assert all(tokenizer.decode([token]) for token in range(vocab_size - 3))


@pytest.mark.parametrize("shape", [QWEN25_05B, LLAMA32_1B, QWEN3_06B], ids=["qwen2.5", "llama3.2", "qwen3"])
def test_each_family_loads(tmp_path: Path, shape: dict[str, object]) -> None:
    pytest.importorskip("torch")
    folder = Checkpoints(tmp_path, {**shape, **SMALL}).plain()
    with LLM(str(folder), num_blocks=8, max_model_len=64) as llm:
        (output,) = llm.generate([[3, 5, 7]], SamplingParams(temperature=0, max_tokens=4, ignore_eos=True))
    assert len(output.outputs[0].token_ids) == 4


def test_the_int8_copy_is_the_same_model_but_for_rounding(tmp_path: Path) -> None:
    torch = pytest.importorskip("torch")
    from safetensors.torch import load_file

    checkpoints = Checkpoints(tmp_path, {**QWEN25_05B, **SMALL})
    plain = load_file(checkpoints.plain() / "model.safetensors")
    int8 = load_file(checkpoints.vllm_int8() / "model.safetensors")
    matrices = [name for name in plain if name.endswith("_proj.weight")]
    assert len(matrices) == 2 * 7
    for name in matrices:
        scale = int8[name.removesuffix("weight") + "weight_scale"].float()
        assert int8[name].dtype == torch.int8
        assert (int8[name].abs().amax(dim=1) >= 126).all(), "every channel uses the whole range"
        error = (int8[name].float() * scale - plain[name].float()).abs()
        assert (error <= 0.5 * scale + 0.005 * plain[name].float().abs() + 1e-6).all(), (
            "half a step, and the scale's own"
        )
    assert torch.equal(int8["model.embed_tokens.weight"], plain["model.embed_tokens.weight"])


def test_an_export_that_fails_leaves_no_copy(tmp_path: Path) -> None:
    """The environment of these tests has no exporter."""
    pytest.importorskip("torch")
    environments = Environments(Path(sys.executable), Path(sys.executable), Path(sys.executable))
    checkpoints = Checkpoints(tmp_path, {**QWEN25_05B, **SMALL}, environments)
    with pytest.raises(ExportFailed, match=r"its export to int8 failed: .*optimum"):
        checkpoints.openvino("int8")
    assert not (tmp_path / "openvino-int8").exists()


def test_a_copy_is_made_once_and_never_taken_half_made(tmp_path: Path) -> None:
    pytest.importorskip("torch")
    checkpoints = Checkpoints(tmp_path, {**QWEN25_05B, **SMALL})
    (tmp_path / "bf16.unfinished").mkdir()
    (tmp_path / "bf16.unfinished" / "model.safetensors").write_bytes(b"half")
    folder = checkpoints.plain()
    written = (folder / "model.safetensors").stat()
    assert written.st_size > 1000
    assert not (tmp_path / "bf16.unfinished").exists()
    assert (checkpoints.plain() / "model.safetensors").stat().st_mtime_ns == written.st_mtime_ns


def test_what_a_tool_could_not_make_is_not_tried_again(tmp_path: Path) -> None:
    pytest.importorskip("torch")
    environments = Environments(Path(sys.executable), Path(sys.executable), Path(sys.executable))
    checkpoints = Checkpoints(tmp_path, {**QWEN25_05B, **SMALL}, environments)
    with pytest.raises(ExportFailed) as first:
        checkpoints.onnx("int4")
    shutil.rmtree(tmp_path / "bf16")  # of which a second try would be made
    with pytest.raises(ExportFailed) as second:
        checkpoints.onnx("int4")
    assert str(second.value) == str(first.value)
    assert not (tmp_path / "bf16").exists()
