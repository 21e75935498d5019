"""Kernels of attention against the definition, the sameness of their bits, and what they take of a GPU.

Tolerances: products and sums differ in the order of additions; over numbers in 8 bits a weight is rounded to `act` with
its value's scale, on the other side not at all.
"""

from __future__ import annotations

from collections.abc import Callable
from itertools import product

import numpy as np
import pytest
import torch
import triton.language as tl
from breadth import first_of, usual_of
from torch import Tensor

from inflight.execution import ops
from inflight.execution.backends.torch.kernels import attention_decode, attention_prefill
from inflight.execution.backends.torch.tensors import LayerKV, PassTensors

from ..material import normal, position_bias
from .cached_tensors import CachedTensors, Chunk, Held
from .compiled import ARCHS, Compiler
from .launched import LAYER, Given, define, launch
from .launches import launches

PADDING: Chunk = (-1, 0, 1)


@pytest.fixture
def small_splits(monkeypatch: pytest.MonkeyPatch, device: torch.device) -> None:
    """So that short sequences have many, and double them, where kernels are interpreted."""
    if device.type == "cpu":
        monkeypatch.setattr(attention_decode, "SPLIT_SIZES", {0: 16})
        monkeypatch.setattr(attention_decode, "SPLITS", tl.constexpr(8))


def attended(
    case: CachedTensors,
    chunks: list[Chunk],
    heads: int,
    window: int = 0,
    soft_cap: float = 0,
    sinks: bool = False,
    by: Callable[..., None] = launch,
    longest_context: int = 0,
    causal: bool = True,
    distances: bool = False,
    invariant: bool = False,
) -> Tensor:
    bias = torch.from_numpy(position_bias(heads, max(case.lengths))).to(case.device) if distances else None
    own = torch.from_numpy(3 * normal(8, heads)).to(case.device) if sinks else None
    q = case.queries(chunks, heads)
    given = Given(case.over(chunks, longest_context), case.layer, act=case.act, invariant=invariant)
    out = torch.full((len(q), heads * (case.value_dim or case.key_dim - 6)), torch.nan, dtype=case.act).to(case.device)
    by(ops.attention, given, q, LAYER, 0.3, window, out, soft_cap, own, causal, bias)
    return out.cpu()


def close(case: CachedTensors, chunks: list[Chunk], heads: int, **settings: object) -> Tensor:
    found = attended(case, chunks, heads, **settings)
    want = attended(case, chunks, heads, by=define, **settings)
    bound = dict(atol=4e-6, rtol=2e-5) if case.act == torch.float32 else dict(atol=4e-3, rtol=4e-3)
    real = [at for at, (i, _, count) in enumerate(chunks) for _ in range(count) if i >= 0]
    np.testing.assert_allclose(found[real].float(), want[real].float(), **bound)
    return found


def test_decodes(act: torch.dtype, device: torch.device) -> None:
    lengths = [1, 16, 17, 70, 300]
    case = CachedTensors(lengths, act=act, device=device)
    close(case, [*((i, n - 1, 1) for i, n in enumerate(lengths)), PADDING], 8)


@pytest.mark.parametrize(("kv_heads", "heads"), first_of([(1, 7), (2, 16), (1, 1), (1, 40)], 2))
def test_heads_of_decodes(small_splits: None, device: torch.device, kv_heads: int, heads: int) -> None:
    case = CachedTensors([17, 40], kv_heads, device=device)
    close(case, [(1, 39, 1), (0, 16, 1)], heads)


@pytest.mark.parametrize("window", first_of([7, 16, 1, 100]))
def test_a_window_hides_what_lies_before_it_and_blocks_that_are_given_up(
    small_splits: None, device: torch.device, window: int
) -> None:
    case = CachedTensors([70, 200], 1, device=device)
    case.forget(1, (180 - window + 1) // 16)
    close(case, [(1, 180, 1), (0, 69, 1), (0, 0, 1)], 2, window=window)
    close(case, [(1, 180, 20), (0, 40, 18), (0, 69, 1)], 2, window=window)


@pytest.mark.parametrize("held", ["int8", "fp8"])
@pytest.mark.parametrize("dims", [(16, 16), (22, 0)])
def test_over_8_bits(act: torch.dtype, device: torch.device, held: Held, dims: tuple[int, int]) -> None:
    case = CachedTensors([17, 70], 1, *dims, held, act, device=device)
    close(case, [(1, 69, 1), (0, 0, 17)], 4)


@pytest.mark.parametrize("dims", [(80, 48), (10, 12), (54, 0), (38, 0)])
def test_widths(device: torch.device, dims: tuple[int, int]) -> None:
    """Take keys in two parts and one, filled up; and values that are the keys' first numbers."""
    case = CachedTensors([17, 40], 1, *dims, device=device)
    close(case, [(1, 39, 1), (0, 0, 17)], 3)


@pytest.mark.parametrize(("soft_cap", "sinks"), first_of([(2.0, True), (2.0, False), (0.0, True)]))
def test_scores_are_capped_and_sinks_take_their_share(
    small_splits: None, device: torch.device, soft_cap: float, sinks: bool
) -> None:
    case = CachedTensors([40, 70], device=device)
    close(case, [(1, 69, 1), (0, 5, 35)], 4, soft_cap=soft_cap, sinks=sinks)


def test_prompts_and_decodes_in_one_pass(act: torch.dtype, device: torch.device) -> None:
    case = CachedTensors([1, 17, 70, 150], act=act, device=device, block_size=48)
    close(case, [(2, 69, 1), (3, 100, 50), (0, 0, 1), (1, 0, 17), (2, 60, 3), PADDING], 4)


@pytest.mark.parametrize(("kv_heads", "heads"), first_of([(1, 7), (1, 2), (2, 16), (1, 24)]))
def test_heads_of_prompts(device: torch.device, kv_heads: int, heads: int) -> None:
    case = CachedTensors([17, 40], kv_heads, device=device)
    close(case, [(1, 39, 1), (0, 0, 17)], heads)


def test_more_chunks_than_are_looked_at_together(
    monkeypatch: pytest.MonkeyPatch, device: torch.device, small_splits: None
) -> None:
    together = 4 if device.type == "cpu" else 128
    monkeypatch.setattr(attention_prefill, "_CHUNKS", tl.constexpr(together))
    case = CachedTensors([20] * (together + 3), 1, device=device)
    close(case, [*((i, 2, 1) for i in range(together)), (together, 0, 18), (together + 1, 2, 17), (0, 19, 1)], 1)


@pytest.mark.parametrize(
    ("window", "distances"),
    first_of([(7, True), (0, False), *product([0, 1, 64], [True]), *product([1, 7, 64], [False])]),
)
def test_both_sides_of_bidirectional_input(
    act: torch.dtype, device: torch.device, window: int, distances: bool
) -> None:
    """Texts of one token, of a tile's and of several tiles', a window on each side; with numbers for distances."""
    lengths = [1, 17, 70, 128, 150]
    case, texts = CachedTensors(lengths, act=act, device=device), [*((i, 0, n) for i, n in enumerate(lengths)), PADDING]
    close(case, texts, 4, window=window, causal=False, distances=distances)


@pytest.mark.parametrize("window", first_of([20, 0]))
def test_chunks_of_no_tokens_are_left_alone(small_splits: None, device: torch.device, window: int) -> None:
    """As many chunks as tokens, as a graph has them; what the short ones' splits yield lies token by token."""
    case = CachedTensors([70, 40, 24], 1, device=device)
    real = [(0, 62, 5), (1, 39, 1), (2, 4, 20), PADDING]
    found = close(case, [*real, *[(-1, 0, 0)] * 23], 2, window=window, longest_context=300)
    assert torch.equal(found[:26], attended(case, real, 2, window=window)[:26])


# -- sameness ----------------------------------------------------------------------------------------------------------
def test_who_else_is_there_changes_no_bit_of_a_decode(
    monkeypatch: pytest.MonkeyPatch, small_splits: None, device: torch.device
) -> None:
    """Compare bits whatever else decodes, beside prompts, and in a graph for longer sequences and fewer programs for
    each."""
    case = CachedTensors([40, 200, 70], 1, device=device)
    alone = attended(case, [(1, 199, 1)], 4)
    for others, longest in (([(0, 39, 1), (2, 1, 1)], 0), ([(0, 20, 20)], 0), ([PADDING] * 2, 4096)):
        assert torch.equal(attended(case, [*others, (1, 199, 1)], 4, longest_context=longest)[-1:], alone)
    monkeypatch.setattr(attention_decode, "PROGRAMS", 3)
    assert torch.equal(attended(case, [(1, 199, 1)], 4), alone)


@pytest.mark.parametrize("window", first_of([20, 0]))
def test_drafts_have_the_bits_of_decodes(small_splits: None, device: torch.device, window: int) -> None:
    """Over a block's border, and a split's."""
    case = CachedTensors([70, 70], 1, device=device)
    one_by_one = [attended(case, [(0, at, 1)], 2, window=window) for at in range(62, 67)]
    assert torch.equal(attended(case, [(1, 3, 1), (0, 62, 5)], 2, window=window)[1:], torch.cat(one_by_one))


@pytest.mark.parametrize("window", first_of([20, 0]))
def test_neither_company_nor_cuts_change_a_bit_of_a_prompt(device: torch.device, window: int) -> None:
    case = CachedTensors([60, 40], 1, device=device)
    whole = attended(case, [(0, 0, 60)], 4, window=window)
    parts = [
        attended(case, chunks, 4, window=window)[-count:]
        for *chunks, count in ([(1, 3, 9), (0, 0, 27), 27], [(0, 27, 14), 14], [(1, 39, 1), (0, 41, 19), 19])
    ]
    assert torch.equal(torch.cat(parts), whole)


def test_a_decode_may_have_the_bits_of_a_prompt(device: torch.device) -> None:
    case = CachedTensors([60, 40], 1, device=device)
    whole = attended(case, [(0, 0, 60)], 4)
    chunks = [(0, 59, 1), (1, 3, 9)]
    alone = attended(case, chunks, 4, invariant=True)
    assert torch.equal(alone[:1], whole[-1:])


@pytest.mark.parametrize("count", [1, 9])
def test_garbage_beside_what_is_seen_changes_no_bit(device: torch.device, count: int) -> None:
    """A sequence that ends where a longer one goes on with other numbers."""
    long, short = CachedTensors([64], device=device), CachedTensors([21], device=device)
    for ours, theirs in zip(long.layer[1:3], short.layer[1:3], strict=True):
        blocks, others = long.table(0), short.table(0)
        ours[blocks[:2]] = theirs[others[:2]]
        ours[blocks[1], 5:] = torch.nan
    q = short.queries([(0, 21 - count, count)], 4)
    found = []
    for case in (long, short):
        found.append(torch.full_like(q, torch.nan))
        given = Given(case.over([(0, 21 - count, count)]), case.layer)
        launch(ops.attention, given, q, LAYER, 0.3, 0, found[-1])
    assert torch.equal(*found)


# -- what they take of a GPU -------------------------------------------------------------------------------------------
def call_of(
    tokens: int,
    heads: tuple[int, int],
    dims: tuple[int, int],
    held: Held,
    window: int,
    soft_cap: float,
    sinks: bool,
    chunks: int | None = None,
    longest: int = 8192,
    causal: bool = True,
    distances: bool = False,
) -> Callable[[], None]:
    """32 decodes or one prompt, if the number of chunks is not given, over tensors without numbers. heads: of keys and
    values, and of queries. longest: context."""
    kind = {"act": torch.bfloat16, "int8": torch.int8, "fp8": torch.float8_e4m3fn}[held]
    block, (kv_heads, query_heads) = 16, heads
    chunks = chunks or (32 if tokens == 32 else 1)

    def empty(*shape: int, kind: torch.dtype = torch.int32) -> Tensor:
        return torch.empty(shape, dtype=kind, device="meta")

    memory = empty(100, 2 * block * kv_heads * sum(dims), kind=kind)
    scales = None if held == "act" else empty(100, block, kv_heads, kind=torch.float32)
    keys, values = (memory[:, : block * kv_heads * dim].unflatten(1, (block, kv_heads, dim)) for dim in dims)
    layer = LayerKV(0, keys, values, scales, scales) if dims[1] else LayerKV(0, keys, None, scales)
    each, of_chunks = [empty(tokens) for _ in range(3)], [empty(chunks), empty(chunks + 1), empty(chunks)]
    pass_ = PassTensors(*each, *of_chunks, empty(1, chunks + 1, 512), block, tokens // chunks, longest)
    q, out = (empty(tokens, query_heads * dim, kind=torch.bfloat16) for dim in (dims[0], dims[1] or 512))
    of_heads = empty(query_heads, kind=torch.float32) if sinks else None
    bias = empty(query_heads * (2 * longest + 63), kind=torch.float32) if distances else None
    given = Given(pass_, layer, act=torch.bfloat16)
    return lambda: launch(ops.attention, given, q, LAYER, 0.1, window, out, soft_cap, of_heads, causal, bias)


# Heads and their widths, how they are held, window, soft cap, sinks; of a decode, registers (168 let three programs of
# four warps be on a multiprocessor) and bytes; of a prompt, bytes; GPUs that have the format and registers enough.
MODELS = {
    "Llama": ((8, 32), (128, 128), "act", 0, 0.0, False, 168, 73_000, 135_000, ARCHS),
    "DeepSeek": ((1, 16), (576, 0), "act", 0, 0.0, False, 255, 135_000, 115_000, ARCHS),
    "Qwen2.5": ((2, 14), (64, 64), "act", 0, 0.0, False, 128, 55_000, 68_000, ARCHS),
    "gpt-oss": ((8, 64), (64, 64), "act", 128, 0.0, True, 128, 55_000, 68_000, ARCHS),
    "Gemma 2": ((8, 16), (256, 256), "act", 4096, 50.0, False, 240, 75_000, 166_000, ARCHS[1:]),
    "Llama, int8": ((8, 32), (128, 128), "int8", 0, 0.0, False, 168, 73_000, 100_000, ARCHS[1:]),
    "Llama, fp8": ((8, 32), (128, 128), "fp8", 0, 0.0, False, 168, 73_000, 100_000, ARCHS[1:]),
}


@pytest.mark.parametrize("name", usual_of(MODELS, "Llama", "DeepSeek"))
def test_what_they_take_of_a_gpu(compiler: Compiler, name: str) -> None:
    *model, registers, of_decode, of_prompt, archs = MODELS[name]
    compiler.fits(call_of(32, *model), registers, of_decode, archs)
    compiler.fits(call_of(2048, *model), 255, of_prompt, archs, spilled=64)  # on sm_80, which has no warp groups


@pytest.mark.parametrize("window", first_of([64, 0]))
def test_what_bidirectional_input_takes_of_a_gpu(compiler: Compiler, window: int) -> None:
    call = call_of(2048, (12, 12), (64, 64), "act", window, 0.0, False, 16, causal=False)
    compiler.fits(call, 255, 68_000)


def test_a_kernel_is_compiled_once_for_any_number_of_chunks_and_splits() -> None:
    """To compile one anew takes seconds, which all requests would wait."""
    model = MODELS["Llama"][:6]
    passes = [(chunks, longest) for chunks in (1, 3, 16) for longest in (200, 1000, 4096)]  # 1, 4 and 16 splits
    for length in (1, 100):
        found = [launches(call_of(chunks * length, *model, chunks, longest)) for chunks, longest in passes]
        compiled = {(one.name, tuple(one.arguments.items())) for launched in found for one in launched}
        names = {"split_kernel", "combine_kernel"} | ({"prefill_kernel"} if length > 1 else set())
        assert sorted(name for name, _ in compiled) == sorted(names)
