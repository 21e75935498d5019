"""`--speculation heads` and `heads:FOLDER`: engines that draft with heads, and heads that do not fit."""

from __future__ import annotations

import json
import logging
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from models import write_model
from safetensors.numpy import load_file, save_file

from inflight.build import drafting
from inflight.config.setting import SettingsError
from inflight.execution import computing
from inflight.execution.computing import KernelModel
from inflight.models.errors import ModelError
from inflight.testing.eager_speculation import EagerSpeculation

from .test_drafting import eager, engine, run

__all__ = ["eager"]


@pytest.fixture(scope="module")
def with_mtp(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A model with a layer behind its own that predicts, as DeepSeek-V3's checkpoints have it; it says noise."""
    folder = write_model(tmp_path_factory.mktemp("mtp") / "m")
    config = json.loads((folder / "config.json").read_text())
    layers, width = config["num_hidden_layers"], config["hidden_size"]
    tensors, random = load_file(folder / "model.safetensors"), np.random.default_rng(6)
    last, at = f"model.layers.{layers - 1}.", f"model.layers.{layers}."
    tensors |= {name.replace(last, at): tensor for name, tensor in tensors.items() if name.startswith(last)}
    for norm in ("enorm", "hnorm", "shared_head.norm"):
        tensors[f"{at}{norm}.weight"] = np.ones(width, np.float32)
    tensors[at + "eh_proj.weight"] = random.standard_normal((width, 2 * width), np.float32)
    save_file(tensors, folder / "model.safetensors")
    return folder


def write_eagle3(folder: Path, model: Path, **changes: Any) -> Path:
    """A head of noise for a model."""
    config = json.loads((model / "config.json").read_text())
    width, inner, vocab = config["hidden_size"], 48, config["vocab_size"]
    random = np.random.default_rng(7)
    said = {
        "architectures": ["LlamaForCausalLMEagle3"], "hidden_size": width, "vocab_size": vocab, "draft_vocab_size": 64,
        "intermediate_size": inner, "num_hidden_layers": 1, "num_attention_heads": 2, "num_key_value_heads": 1,
        "rms_norm_eps": 1e-5, "hidden_act": "silu", "max_position_embeddings": 64,
        "eagle_config": {"eagle_aux_hidden_state_layer_ids": [0, 0, 1]}, **changes,
    }  # fmt: skip
    shapes = {
        "fc": (width, 3 * width), "midlayer.self_attn.q_proj": (width, 2 * width), "lm_head": (64, width),
        "midlayer.self_attn.k_proj": (width // 2, 2 * width), "midlayer.self_attn.v_proj": (width // 2, 2 * width),
        "midlayer.self_attn.o_proj": (width, width), "midlayer.mlp.gate_proj": (inner, width),
        "midlayer.mlp.up_proj": (inner, width), "midlayer.mlp.down_proj": (width, inner),
    }  # fmt: skip
    tensors = {f"{name}.weight": random.standard_normal(shape, np.float32) for name, shape in shapes.items()}
    for name in ("midlayer.input_layernorm", "midlayer.hidden_norm", "midlayer.post_attention_layernorm", "norm"):
        tensors[f"{name}.weight"] = np.ones(width, np.float32)
    tensors["d2t"] = np.arange(64) * 4
    folder.mkdir(parents=True)
    (folder / "config.json").write_text(json.dumps(said))
    save_file(tensors, folder / "model.safetensors")
    return folder


@pytest.mark.parametrize("quantization", ["none", "int8"])
def test_tokens_are_those_of_an_engine_without(
    with_mtp: Path, tmp_path: Path, quantization: str, caplog: pytest.LogCaptureFixture
) -> None:
    plain = run(engine(with_mtp, num_blocks=14, quantization=quantization))
    for asked in ("heads", f"heads:{write_eagle3(tmp_path / 'head', with_mtp)}"):
        drafted = run(engine(with_mtp, asked, num_blocks=14, quantization=quantization))
        assert drafted.said == plain.said and drafted.steps.drafted > 50
        resolved = drafted.engine.settings
        assert resolved["speculation"].value == asked and "of it for drafts" in resolved["num_blocks"].reason
    assert [one.message for one in caplog.records if one.levelno >= logging.ERROR] == []


@pytest.mark.wide
def test_on_the_backend_of_a_gpu_tokens_are_the_same(
    with_mtp: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Two steps in flight, passes that are replayed."""
    from execution.backends.torch.opened import on_cpu
    from execution.backends.torch.test_captured_engine import Replays

    from inflight.execution.backends.torch.buckets import Buckets
    from inflight.execution.backends.torch.capture import CapturedDecoder

    graphs, buckets = Replays(), Buckets((1, 2, 4), (4, 16, 64))
    make = KernelModel.decoder
    monkeypatch.setattr(computing, "open_backend", lambda *given, **named: on_cpu("float32", 2, buckets))
    monkeypatch.setattr(
        KernelModel,
        "decoder",
        lambda *given: CapturedDecoder(make(*given), graphs, buckets),  # type: ignore[arg-type]
    )
    monkeypatch.setattr(drafting, "make_speculation", lambda drafter, *_: EagerSpeculation(drafter, 4, holds=True))
    plain = run(engine(with_mtp))
    for asked in ("heads", f"heads:{write_eagle3(tmp_path / 'head', with_mtp)}"):
        replayed = sum(one.count for one in graphs.made)
        drafted = run(engine(with_mtp, asked))
        assert drafted.said == plain.said and drafted.steps.drafted > 50 and drafted.engine.settings["depth"].value == 2
        assert sum(one.count for one in graphs.made) > replayed + 50


def test_heads_are_used_where_they_are_asked_for_alone(with_mtp: Path) -> None:
    assert engine(with_mtp, "auto").settings["speculation"].value == "suffix"
    assert engine(with_mtp, "heads").settings["speculation"].value == "heads"


def test_mtp_that_does_not_fit_is_refused(with_mtp: Path, tiny: Path, bare: Path, tmp_path: Path) -> None:
    with pytest.raises(ModelError, match=r"no layers that predict further tokens \(looked for: model.layers.2.eh_proj"):
        engine(tiny, "heads")
    with pytest.raises(ModelError, match="not of random weights"):
        engine(bare, "heads", load_format="dummy")
    with pytest.raises(SettingsError, match="recurrent state"):
        engine(write_model(tmp_path / "state", "qwen3_5"), "heads")
    lacking = tmp_path / "lacking"
    lacking.mkdir()
    for path in with_mtp.iterdir():
        (lacking / path.name).write_bytes(path.read_bytes())
    tensors = load_file(lacking / "model.safetensors")
    del tensors["model.layers.2.self_attn.q_proj.weight"]
    save_file(tensors, lacking / "model.safetensors")
    with pytest.raises(ModelError, match=r"lacks tensor 'model.layers.2.self_attn.q_proj.weight'"):
        engine(lacking, "heads")


@pytest.mark.parametrize(
    ("changes", "sentence"),
    [
        ({"architectures": ["LlamaForCausalLM"]}, "no EAGLE-3 head"),
        ({"hidden_size": 32}, r"trained for another model: it reads hidden states of a width of 32, but the model"),
        ({"target_hidden_size": 4096}, r"hidden states of a width of 4,096"),
        ({"vocab_size": 32_000}, r"a vocabulary of 32,000, but the model has 384"),
        ({"draft_vocab_size": 65}, r"has shape \[64, 64\], but config.json asks for \[65, 64\]"),
        ({"eagle_config": {"eagle_aux_hidden_state_layer_ids": [1, 14, 27]}}, "behind 2, 15, 28 layers, but the model"),
        ({"eagle_config": None}, r"behind 2, 1, -1 layers, but the model has 2"),
        ({"eagle_config": {"eagle_aux_hidden_state_layer_ids": [1]}}, "3 numbers are wanted"),
        ({"eagle_aux_hidden_state_layer_ids": [1, 1, 1]}, "outside of eagle_config"),
        ({"norm_before_residual": True}, "sets norm_before_residual"),
        ({"num_hidden_layers": 2}, "has 2 layers"),
        ({"transformer_layer_config": {}}, "speculators"),
    ],
)
def test_eagle3_that_does_not_fit_is_refused(
    tiny: Path, tmp_path: Path, changes: dict[str, Any], sentence: str
) -> None:
    with pytest.raises(ModelError, match=sentence):
        engine(tiny, f"heads:{write_eagle3(tmp_path / 'head', tiny, **changes)}")


@pytest.mark.parametrize(
    ("name", "tensor", "sentence"),
    [
        ("d2t", None, "no tensor d2t says which they are"),
        ("d2t", np.arange(64) * 100, "names tokens outside of the model's 384"),
        ("d2t", -np.arange(64), "or one of them twice"),
        ("d2t", np.zeros(64, np.float32), "whole numbers"),
        ("fc.weight", None, "lacks tensor 'fc.weight'"),
        ("midlayer.hidden_norm.weight", None, "lacks tensor 'midlayer.hidden_norm.weight'"),
    ],
)
def test_damaged_heads_are_refused(
    tiny: Path, tmp_path: Path, name: str, tensor: np.ndarray | None, sentence: str
) -> None:
    folder = write_eagle3(tmp_path / "head", tiny)
    tensors = load_file(folder / "model.safetensors")
    del tensors[name]
    if tensor is not None:
        tensors[name] = tensor
    save_file(tensors, folder / "model.safetensors")
    with pytest.raises(ModelError, match=sentence):
        engine(tiny, f"heads:{folder}")
