"""Rotations as kernels against the definitions, and all that they leave in the KV cache."""

from __future__ import annotations

import pytest
import torch
from torch import Tensor

from inflight.execution import ops
from inflight.execution.backends.torch.definitions import Definitions
from inflight.execution.backends.torch.kernels import begin
from inflight.execution.backends.torch.tensors import LayerKV, PassTensors

from ..material import normal
from .compiled import Compiler
from .launched import LAYER, Given, define, launch
from .matrices import moved
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
        q_norm, k_norm, v_norm = (on(device, norm) for norm in norms)
        for by, layer, out in zip((launch, define), layers, outs, strict=True):
            given = Given(where, layer, act=act)
            by(ops.rope_and_write_kv, given, qkv, LAYER, rope, q_norm, k_norm, EPS, out, case.norms_last, v_norm)
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
    for by, layer, nope_out, q_out in zip((launch, define), layers, nopes, outs, strict=True):
        by(ops.rope_and_write_latent, Given(where, layer, act=act), q, kv, LAYER, rope, norm, EPS, nope_out, q_out)
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
        launch(ops.rope_and_write_kv, Given(where, layer), qkv, LAYER, None, None, None, EPS, q_out)
        scales = layer.key_scales
        assert scales[3, 14:16, 0].isnan().all() and scales.isnan().sum() == 2
        assert scales[8, 0, 0] == 0 and not layer.keys[8, 0, 0].float().any()


def test_begin(device: torch.device, monkeypatch: pytest.MonkeyPatch) -> None:
    """As many blocks as tokens, more, fewer, and none of either; by several programs."""
    monkeypatch.setattr(begin, "ENTRIES", 4)
    tokens = torch.arange(8 * 200, dtype=torch.int32, device=device).view(8, 200)
    for chunks, blocks in [(3, 5), (3, 1), (1, 11), (3, 0), (0, 2), (0, 0)]:
        both = [pass_on(device, metadata(chunks)) for _ in range(2)]
        entries = [[at % 2, at // 2 % 2, at // 4, 100 + at] for at in range(blocks)]
        appended = torch.tensor(entries, dtype=torch.int32, device=device).view(blocks, 4)
        begin.begin(appended, tokens, both[0])
        want = moved(both[1], torch.device("cpu"))
        Definitions().begin(appended.cpu(), tokens.cpu(), want)
        assert torch.equal(both[0].block_tables.cpu(), want.block_tables)
        assert torch.equal(both[0].token_ids.cpu(), want.token_ids)


def meta_pass() -> PassTensors:
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
    norms, rope = [on(META, norm) for norm in case.norms], rope_on(META, case.table)
    given = Given(meta_pass(), layer, act=torch.bfloat16)
    compiler.fits(
        lambda: launch(ops.rope_and_write_kv, given, qkv, LAYER, rope, *norms[:2], EPS, q_out, False, norms[2]),
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
    rope, norm = rope_on(META, rope_table(rotated)), torch.empty(rank, device=META)
    given = Given(meta_pass(), layer, act=torch.bfloat16)
    compiler.fits(
        lambda: launch(ops.rope_and_write_latent, given, q, kv, LAYER, rope, norm, EPS, *outs),
        registers=96,
        shared=4096,
    )


def test_what_a_beginning_takes(compiler: Compiler) -> None:
    whole, where = torch.empty(8, 200, dtype=torch.int32, device=META), meta_pass()
    compiler.fits(lambda: begin.begin(whole[:, :4], whole, where), registers=64, shared=0)
