"""Routing as a kernel: tokens' logits → their experts and weights, and pairs of both sorted by expert.

A program routes one token (`protocol.Routing` has the rules); pairs then lie in tiles that have one expert each. Sizes
follow from the number of tokens alone: how many meet an expert is known to the device only, so there are as many tiles
as there could be, and those that are left over have no expert.
"""

from __future__ import annotations

import torch
import triton
import triton.language as tl
from torch import Tensor

from inflight.execution.backends.torch.kernels.launching import SortedRows
from inflight.execution.backends.torch.weights import RoutingTensors

_MIN_SUM = tl.constexpr(1e-20)  # of sigmoids, which may all vanish
_NEVER = tl.constexpr(float("-inf"))
_PAIRS = 32  # of one program that puts them in their places


def route(logits: Tensor, routing: RoutingTensors, tile: int) -> tuple[Tensor, SortedRows]:
    """float32[T, X] → weights float32[T, top_k] in order of rank, and the pairs of tokens and experts, pair t · top_k +
    rank, sorted in tiles of `tile`. Their order within an expert is whatever comes: each is a row by itself."""
    tokens, count = logits.shape
    pairs = tokens * routing.top_k
    tiles = (pairs + min(count, pairs) * (tile - 1)) // tile  # every expert but for full tiles has one that is not
    found = torch.empty(2, tokens, routing.top_k, dtype=torch.int32, device=logits.device)
    weights = torch.empty(tokens, routing.top_k, dtype=torch.float32, device=logits.device)
    zeros = torch.zeros(count + tiles * (tile + 1), dtype=torch.int32, device=logits.device)
    counts, experts, rows = zeros.split([count, tiles, tiles * tile])
    if tokens:
        per_group = count // routing.groups
        route_kernel[tokens,](
            logits,
            routing.correction,
            routing.expert_scale,
            weights,
            *found,
            counts,
            count,
            routing.sum_offset,
            2 * routing.jitter,
            routing.scale,
            TOP_K=routing.top_k,
            SCORES=routing.scores,
            RENORMALIZE=routing.renormalize,
            GROUPS=routing.groups,
            TOP_GROUPS=routing.top_groups,
            GROUP_BEST=min(routing.group_best, per_group),
            PER_GROUP=per_group,
            G=triton.next_power_of_2(routing.groups),
            S=triton.next_power_of_2(per_group),
            R=triton.next_power_of_2(routing.top_k),
            num_warps=1 if count <= 128 else 4,
        )
        sort_kernel[(triton.cdiv(pairs, _PAIRS),)](
            *found, counts, rows, experts, pairs, count, TILE=tile, PAIRS=_PAIRS, X=triton.next_power_of_2(count)
        )
    return weights, SortedRows(rows, experts)


@triton.jit
def route_kernel(
    logits, correction, expert_scale,
    weights, experts,
    places,  # of each pair among those of its expert
    counts,  # int32[count], 0 before the first program
    count, sum_offset, jitter, scale,
    TOP_K: tl.constexpr, SCORES: tl.constexpr, RENORMALIZE: tl.constexpr,
    GROUPS: tl.constexpr, TOP_GROUPS: tl.constexpr, GROUP_BEST: tl.constexpr, PER_GROUP: tl.constexpr,
    G: tl.constexpr, S: tl.constexpr, R: tl.constexpr,
):  # fmt: skip
    """Route a token: its experts lie in a tile [G, S] of groups, padded to powers of two."""
    token = tl.program_id(0)
    groups, members = tl.arange(0, G)[:, None], tl.arange(0, S)[None, :]
    is_expert = (groups < GROUPS) & (members < PER_GROUP)
    numbers = tl.where(is_expert, groups * PER_GROUP + members, G * S)
    x = tl.load(logits + token.to(tl.int64) * count + numbers, mask=is_expert, other=_NEVER)
    scores = _scores(x, is_expert, SCORES)
    values = scores
    if correction is not None and SCORES != "sparsemixer":
        values += tl.load(correction + numbers, mask=is_expert, other=0.0)
    values = tl.where(values == values, values, _NEVER)
    if GROUPS > 1 and SCORES != "sparsemixer":
        values = tl.where(_in_best_groups(values, is_expert, GROUPS, TOP_GROUPS, GROUP_BEST, G, S), values, _NEVER)
    ranks = tl.arange(0, R)
    picked, found = tl.zeros([R], tl.int32), tl.zeros([R], tl.float32)
    left = is_expert
    for rank in tl.static_range(TOP_K):
        expert = _first(values, numbers, left, G * S)
        own = _sum(tl.where(numbers == expert, scores, 0.0))
        if SCORES == "sparsemixer":
            far = tl.div_rn(own - x, tl.maximum(tl.abs(x), own)) > jitter
            near = tl.where(left, tl.where(far, 0.0, tl.exp(x - own)), 0.0)
            own = 1.0 / _sum(near)
        picked, found = tl.where(ranks == rank, expert, picked), tl.where(ranks == rank, own, found)
        left = left & (numbers != expert)
    is_rank = ranks < TOP_K
    if RENORMALIZE and SCORES != "sparsemixer":
        total = tl.sum(found, axis=0) + sum_offset
        found = found / tl.where(total < _MIN_SUM, _MIN_SUM, total)
    if expert_scale is not None and SCORES != "sparsemixer":
        found = found * (scale * tl.load(expert_scale + picked, mask=is_rank, other=0.0))
    else:
        found = found * scale
    pairs = token * TOP_K + ranks
    place = tl.atomic_add(counts + picked, 1, mask=is_rank, sem="relaxed")
    tl.store(weights + pairs, found, mask=is_rank)
    tl.store(experts + pairs, picked, mask=is_rank)
    tl.store(places + pairs, place, mask=is_rank)


@triton.jit
def _scores(x, is_expert, SCORES: tl.constexpr):
    """float32[G, S] of logits, as the routing of that name has it (`protocol.parameters`)."""
    if SCORES == "sigmoid":
        return 1.0 / (1.0 + tl.exp(-x))
    elif SCORES == "softmax":
        powers = tl.where(is_expert, tl.exp(x - _most(x, is_expert)), 0.0)
        return powers / _sum(powers)
    else:
        tl.static_assert(SCORES == "sparsemixer")
        return x


@triton.jit(do_not_specialize=["pairs"])
def sort_kernel(
    experts, places, counts, rows, tile_experts, pairs, count, TILE: tl.constexpr, PAIRS: tl.constexpr, X: tl.constexpr
):
    """Put pairs, from 1, into the tiles of their experts; the first pair of each tile writes its expert."""
    pair, numbers = tl.program_id(0) * PAIRS + tl.arange(0, PAIRS), tl.arange(0, X)
    is_pair = pair < pairs
    expert = tl.load(experts + pair, mask=is_pair, other=0)
    place = tl.load(places + pair, mask=is_pair, other=0)
    tiles = tl.cdiv(tl.load(counts + numbers, mask=numbers < count, other=0), TILE)
    before = tl.sum(tl.where(numbers[None, :] < expert[:, None], tiles[None, :], 0), axis=1)
    tl.store(rows + before * TILE + place, pair + 1, mask=is_pair)
    tl.store(tile_experts + before + place // TILE, expert + 1, mask=is_pair & (place % TILE == 0))


@triton.jit
def _in_best_groups(
    values,
    is_expert,
    GROUPS: tl.constexpr,
    TOP_GROUPS: tl.constexpr,
    GROUP_BEST: tl.constexpr,
    G: tl.constexpr,
    S: tl.constexpr,
):
    """Whether each expert is of one of the groups with the largest sums of their best, bool[G, S]."""
    members = tl.arange(0, S)[None, :]
    left, best = is_expert, tl.zeros([G, 1], tl.float32)
    for _ in tl.static_range(GROUP_BEST):
        most = tl.max(tl.where(left, values, _NEVER), axis=1, keep_dims=True)
        first = tl.min(tl.where(left & (values == most), members, S), axis=1, keep_dims=True)
        best, left = best + most, left & (members != first)
    groups = tl.arange(0, G)[:, None]
    others, taken = groups < GROUPS, groups < 0
    for _ in tl.static_range(TOP_GROUPS):
        group = _first(best, groups, others, G)
        others, taken = others & (groups != group), taken | (groups == group)
    return taken


@triton.jit
def _first(values, numbers, among, none: tl.constexpr):
    """Return the number of the largest value, on a tie the lowest, `none` if there is nothing."""
    most = tl.max(tl.max(tl.where(among, values, _NEVER), axis=1), axis=0)
    return tl.min(tl.min(tl.where(among & (values == most), numbers, none), axis=1), axis=0)


@triton.jit
def _most(values, among):
    return tl.max(tl.max(tl.where(among, values, _NEVER), axis=1), axis=0)


@triton.jit
def _sum(values):
    return tl.sum(tl.sum(values, axis=1), axis=0)
