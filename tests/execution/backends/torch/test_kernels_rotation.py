"""Rotations as kernels against PyTorch's operations, and all that they leave in the KV cache."""

from __future__ import annotations

from importlib import import_module

import pytest
import torch
from torch import Tensor

from inflight.execution.backends.torch import eager, kernels
from inflight.execution.backends.torch.kernels import rotation
from inflight.execution.backends.torch.tensors import LayerKV

from ..material import normal
from .compiled import Compiler
from .rotations import EPS, ROTATIONS, Rotation, layer_on, metadata, on, pass_on, rope_on, rope_table

META = torch.device("meta")


def same(got: Tensor | None, want: Tensor | None) -> None:
    """Whole numbers, and bits of fp8, may be others where sums end in other last bits."""
    assert (got is None) == (want is None)
    if got is None:
        return
    if got.dtype == torch.float8_e4m3fn:
        torch.testing.assert_close(got.view(torch.uint8), want.view(torch.uint8), rtol=0, atol=1)
    elif got.dtype == torch.int8:
        torch.testing.assert_close(got, want, rtol=0, atol=1)
    else:
        torch.testing.assert_close(got, want, rtol=2**-10 if got.dtype == torch.float16 else 3e-6, atol=1e-5)


def cached_alike(got: LayerKV, want: LayerKV) -> None:
    for one, other in zip(got[1:], want[1:], strict=True):
        same(one, other)


FORMATS = [(torch.float32, "act"), (torch.float16, "act"), (torch.float32, "int8"), (torch.float16, "fp8")]
EACH = [
    pytest.param(case, *formats, marks=[pytest.mark.wide] if place > 1 and formats != FORMATS[0] else [])
    for place, case in enumerate(ROTATIONS)
    for formats in FORMATS
]


@pytest.mark.parametrize(("case", "act", "held"), EACH, ids=str)
def test_rope_and_write_kv(device: torch.device, case: Rotation, act: torch.dtype, held: str) -> None:
    for count in (0, 3):
        where = pass_on(device, metadata(count))
        qkv, rope, norms = on(device, case.qkv(where.num_tokens)), rope_on(device, case.table), case.norms
        layers = [layer_on(device, act, held, case.kv_heads, case.width, case.width) for _ in range(2)]
        outs = [torch.full((len(qkv), case.heads * case.width), torch.nan, dtype=act, device=device) for _ in range(2)]
        for module, layer, out in zip((rotation, eager), layers, outs, strict=True):
            module.rope_and_write_kv(
                qkv, layer, rope, *(on(device, norm) for norm in norms), EPS, case.norms_last, where, out
            )
        same(*outs)
        cached_alike(*layers)


@pytest.mark.parametrize(("act", "held"), FORMATS, ids=str)
@pytest.mark.parametrize(("heads", "nope", "rank", "rotated"), [(2, 8, 16, 4), (3, 7, 10, 6), (2, 1000, 16, 2)])
def test_rope_and_write_latent(
    device: torch.device, act: torch.dtype, heads: int, nope: int, rank: int, rotated: int, held: str
) -> None:
    where = pass_on(device, metadata())
    q = on(device, 3 * normal(1, where.num_tokens, heads * (nope + rotated)))
    kv, norm = on(device, normal(2, where.num_tokens, rank + rotated)), on(device, normal(3, rank))
    rope = rope_on(device, rope_table(rotated))
    layers = [layer_on(device, act, held, 1, rank + rotated, 0) for _ in range(2)]
    nopes, outs = (
        [torch.full((len(q), heads * width), -7, dtype=act, device=device) for _ in range(2)]
        for width in (nope, rank + rotated)
    )
    for module, layer, nope_out, q_out in zip((rotation, eager), layers, nopes, outs, strict=True):
        module.rope_and_write_latent(q, kv, layer, rope, norm, EPS, where, nope_out, q_out)
    same(*nopes)
    same(*outs)
    assert (outs[0].view(-1, heads, rank + rotated)[..., :rank] == -7).all()
    cached_alike(*layers)


def test_what_is_broken_is_seen_in_its_scale(device: torch.device) -> None:
    """And nowhere else."""
    case, where = ROTATIONS[1], pass_on(device, metadata())
    qkv = on(device, case.qkv(where.num_tokens))
    qkv[0, 4 * 16], qkv[1, 4 * 16], qkv[2, 4 * 16 : 5 * 16] = torch.nan, -torch.inf, 2.0**-104  # 2⁻¹⁰² when mixed
    for held in ("int8", "fp8"):
        layer, q_out = layer_on(device, torch.float32, held, 2, 16, 16), torch.empty(len(qkv), 64, device=device)
        rotation.rope_and_write_kv(qkv, layer, None, None, None, None, EPS, False, where, q_out)
        scales = layer.key_scales
        assert scales[3, 14:16, 0].isnan().all() and scales.isnan().sum() == 2
        assert scales[8, 0, 0] == 0 and not layer.keys[8, 0, 0].float().any()


def test_begin(device: torch.device, monkeypatch: pytest.MonkeyPatch) -> None:
    """As many blocks as tokens, more, fewer, and none of either; by several programs."""
    monkeypatch.setattr(import_module(kernels.begin.__module__), "ENTRIES", 4)
    tokens = torch.arange(8 * 200, dtype=torch.int32, device=device).view(8, 200)
    for chunks, blocks in [(3, 5), (3, 1), (1, 11), (3, 0), (0, 2), (0, 0)]:
        both = [pass_on(device, metadata(chunks)) for _ in range(2)]
        entries = [[at % 2, at // 2 % 2, at // 4, 100 + at] for at in range(blocks)]
        appended = torch.tensor(entries, dtype=torch.int32, device=device).view(blocks, 4)
        for module, where in zip((kernels, eager), both, strict=True):
            module.begin(appended, tokens, where)
        assert torch.equal(both[0].block_tables, both[1].block_tables)
        assert torch.equal(both[0].token_ids, both[1].token_ids)


def meta_pass() -> object:
    where = pass_on(torch.device("cpu"), metadata())
    return where._replace(**{n: t.to(META) for n, t in where._asdict().items() if isinstance(t, Tensor)})


TAKING = [
    (Rotation(heads=32, kv_heads=8, width=128, rotated=128, q_norm="head", k_norm="head"), "act"),
    (Rotation(heads=40, kv_heads=40, width=128, rotated=128, q_norm="all", k_norm="all"), "int8"),
    (Rotation(heads=8, kv_heads=2, width=512, rotated=128, q_norm="head", k_norm="head", v_norm=True), "fp8"),
]


@pytest.mark.parametrize(("case", "held"), TAKING, ids=str)
def test_what_it_takes(compiler: Compiler, case: Rotation, held: str) -> None:
    layer = layer_on(META, torch.bfloat16, held, case.kv_heads, case.width, case.width)
    qkv = torch.empty(5, (case.heads + 2 * case.kv_heads) * case.width, device=META)
    q_out = torch.empty(5, case.heads * case.width, dtype=torch.bfloat16, device=META)
    norms, rope, where = [on(META, norm) for norm in case.norms], rope_on(META, case.table), meta_pass()
    compiler.fits(
        lambda: rotation.rope_and_write_kv(qkv, layer, rope, *norms, EPS, False, where, q_out),
        registers=104,
        shared=32768 if held == "int8" else 16384,  # channels are mixed across threads
    )


@pytest.mark.parametrize("held", [pytest.param("act", marks=pytest.mark.wide), "int8"])
def test_what_latent_attention_takes(compiler: Compiler, held: str) -> None:
    """Compile for DeepSeek-V3's sizes."""
    heads, nope, rank, rotated = 128, 128, 512, 64
    layer = layer_on(META, torch.bfloat16, held, 1, rank + rotated, 0)
    q, kv = (torch.empty(5, width, device=META) for width in (heads * (nope + rotated), rank + rotated))
    outs = [torch.empty(5, heads * width, dtype=torch.bfloat16, device=META) for width in (nope, rank + rotated)]
    rope, norm, where = rope_on(META, rope_table(rotated)), torch.empty(rank, device=META), meta_pass()
    compiler.fits(
        lambda: rotation.rope_and_write_latent(q, kv, layer, rope, norm, EPS, where, *outs),
        registers=96,
        shared=4096,
    )


def test_what_a_beginning_takes(compiler: Compiler) -> None:
    whole, where = torch.empty(8, 200, dtype=torch.int32, device=META), meta_pass()
    compiler.fits(lambda: kernels.begin(whole[:, :4], whole, where), registers=64, shared=0)
