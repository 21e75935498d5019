"""Attention by libraries' kernels: their arguments, that engines over them say the same, and which models are
refused. The libraries are modules that check their arguments (`attention_modules`)."""

from __future__ import annotations

import importlib
import importlib.util
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch
from models import write_model

from inflight.build import engine as building
from inflight.config.engine import EngineSettings
from inflight.config.setting import Resolved, SettingsError
from inflight.execution.attention_backends import AttentionBackend, AttentionUse, misfit
from inflight.execution.backends.torch import eager
from inflight.execution.backends.torch.attention_libraries.flash_attn import FlashAttention
from inflight.execution.backends.torch.attention_libraries.flashinfer import FlashInfer
from inflight.execution.backends.torch.attention_libraries.library import AttentionLibrary, LibraryOperations
from inflight.execution.backends.torch.backend import TorchBackend
from inflight.execution.backends.torch.buckets import Buckets, row_sizes
from inflight.execution.backends.torch.opening import with_library
from inflight.models.registry import read_folder

from ...conftest import OracleOf
from ...test_depth import requests, run
from ..pass_layouts import layout_of
from .attention_modules import FlashAttnModule, FlashInferModule
from .cached_tensors import CachedTensors
from .opened import on_cpu
from .test_engine import opened

CPU = torch.device("cpu")
DECODES = [(0, 299, 1), (1, 511, 1), (2, 0, 1), (3, 30, 1)]
MIXED = [(0, 290, 10), (1, 511, 1), (2, 0, 40), (3, 5, 26), (-1, 0, 1)]


def flash_attn() -> tuple[AttentionLibrary, FlashAttnModule]:
    module = FlashAttnModule()
    return FlashAttention(module), module


def flashinfer() -> tuple[AttentionLibrary, FlashInferModule]:
    module = FlashInferModule()
    return FlashInfer(module, CPU, 1 << 10), module


@pytest.mark.parametrize("chunks", [DECODES, MIXED], ids=["decodes", "mixed"])
@pytest.mark.parametrize(("window", "soft_cap"), [(0, 0.0), (1, 0.0), (100, 30.0)])
@pytest.mark.parametrize(("made", "block_size"), [(flash_attn, 256), (flashinfer, 16), (flashinfer, 256)])
def test_tokens_see_what_they_are_to_see(
    made: Callable[[], tuple[AttentionLibrary, Any]],
    block_size: int,
    window: int,
    soft_cap: float,
    chunks: list[tuple[int, int, int]],
) -> None:
    """Compare all but the padding row, whose numbers are not used."""
    cached = CachedTensors([300, 512, 40, 31], 2, 64, 64, act=torch.bfloat16, block_size=block_size)
    library, _ = made()
    pass_ = cached.over(chunks)._replace(layout=layout_of(chunks, len(cached.lengths)))
    if not library.takes(pass_):
        assert made is flashinfer and chunks is DECODES
        return
    q = cached.queries(chunks, 6)
    found, wanted = torch.empty_like(q), torch.empty_like(q)
    library.attend(q, cached.layer, 0.1, window, soft_cap, pass_, found)
    eager.attention(q, cached.layer, 0.1, window, soft_cap, None, True, pass_, wanted)
    own = slice(0, sum(count for i, _, count in chunks if i >= 0))
    torch.testing.assert_close(found[own], wanted[own], atol=2e-2, rtol=2e-2)
    assert not found[own].isnan().any()


def test_a_plan_is_made_once_for_each_pass_and_kind_of_layer() -> None:
    cached = CachedTensors([64], 2, 64, 64, act=torch.bfloat16)
    library, module = flashinfer()
    for chunks in ([(0, 0, 20)], [(0, 20, 30)]):
        pass_ = cached.over(chunks)._replace(layout=layout_of(chunks, 1))
        q = cached.queries(chunks, 2)
        for window in (0, 0, 16, 0):
            library.attend(q, cached.layer, 0.1, window, 0.0, pass_, torch.empty_like(q))
    assert [(one.plans, one.runs) for one in module.wrappers] == [(2, 6), (2, 2)]


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return write_model(tmp_path_factory.mktemp("wide"), "qwen3", head_dim=64)


@pytest.mark.parametrize("made", [flash_attn, flashinfer])
def test_an_engine_says_the_same(folder: Path, made: Callable[[], tuple[AttentionLibrary, Any]]) -> None:
    """Two steps in flight, passes filled up for graphs, prefixes that are shared."""
    library, module = made()
    operations: Any = LibraryOperations(eager, library)  # type: ignore[arg-type]
    backend = TorchBackend("bfloat16", CPU, operations, depth=2, buckets=Buckets(row_sizes(12)))
    shape: dict[str, Any] = {"max_num_seqs": 12, "block_size": 256, "num_blocks": 40}
    said = run(opened(folder, backend, **shape), requests(1))
    assert said == run(opened(folder, on_cpu("bfloat16", 2, Buckets(row_sizes(12))), **shape), requests(1))
    if isinstance(module, FlashAttnModule):
        assert {"decode", "any"} == set(module.calls)
    else:
        (wrapper,) = module.wrappers
        assert wrapper.runs > wrapper.plans > 1


# -- what is refused ---------------------------------------------------------------------------------------------------
FITS = AttentionUse(256, "bfloat16", False, False)


@pytest.mark.parametrize(
    ("name", "given", "sentence"),
    [
        (
            "flash-attn",
            {"block_size": 16},
            "reads blocks of a multiple of 256 tokens, and --block-size is 16; take --bl",
        ),
        ("flash-attn", {"dtype": "float32"}, "computes in bfloat16, and --dtype is float32"),
        ("flashinfer", {"quantized_kv": True}, "without a scale for each token; leave --kv-cache-dtype out"),
        ("flashinfer", {"batch_invariant": True}, "leave --batch-invariant out"),
    ],
)
def test_settings_that_do_not_fit_are_refused(
    folder: Path, name: AttentionBackend, given: dict[str, Any], sentence: str
) -> None:
    use = AttentionUse(**{one: given.get(one, getattr(FITS, one)) for one in FITS.__slots__})
    reason = misfit(name, read_folder(folder, to_run=True), use)
    assert reason is not None and sentence in reason and reason.startswith(f"--attention-backend {name}")


@pytest.mark.parametrize(
    ("variant", "sentence"),
    [
        ("gpt_oss", "without sinks, which this model's layers have"),
        ("deepseek_v3", "not written for latent attention"),
        ("qwen3_tied", "has heads of 64, 128 and 256, and this model's are"),
    ],
)
def test_models_that_do_not_fit_are_refused(oracle_of: OracleOf, variant: str, sentence: str) -> None:
    reason = misfit("flashinfer", read_folder(oracle_of(variant).folder, to_run=True), FITS)
    assert reason is not None and sentence in reason


def test_one_that_is_not_installed_is_reported_and_one_that_breaks(
    folder: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    reason = misfit("flash-attn", read_folder(folder, to_run=True), FITS)
    assert reason is not None and "pip install flash-attn" in reason
    monkeypatch.setattr(importlib.util, "find_spec", lambda name: object())
    assert misfit("flash-attn", read_folder(folder, to_run=True), FITS) is None

    def broken(name: str) -> Any:
        raise OSError("undefined symbol: _ZN3c10")

    monkeypatch.setattr(importlib, "import_module", broken)
    with pytest.raises(ValueError, match=r"flashinfer cannot be imported \(OSError: undefined symbol"):
        with_library(eager, "flashinfer", CPU)  # type: ignore[arg-type]
    assert with_library(eager, "auto", CPU) is eager  # type: ignore[arg-type, comparison-overlap]


def test_engines_refuse_it_before_weights_are_read(folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    with pytest.raises(SettingsError, match="known are auto, flash-attn, flashinfer"):
        EngineSettings(attention_backend="triton")  # type: ignore[arg-type]
    with pytest.raises(SettingsError, match="is for GPUs, but the device is the CPU"):
        opened(folder, on_cpu(), attention_backend="flashinfer")
    monkeypatch.setattr(building, "resolve_device", lambda settings: Resolved("cuda:0", "for a test"))
    with pytest.raises(SettingsError, match="take --block-size 256"):
        opened(folder, on_cpu(), attention_backend="flash-attn")
