"""Operations of a pass with random inputs: what they are called with, what comes out, what they read and multiply.

Sizes of the full ones are those of models that are served: Llama-3.1-8B, with the experts of Qwen3-30B-A3B, the
recurrent layers of Qwen3-Next and the latent attention of DeepSeek-V3.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, replace
from typing import Any, NamedTuple

import numpy as np
import torch
from torch import Tensor

from inflight.execution import ops
from inflight.execution.backends.packed_adapter import PackedAdapter
from inflight.execution.backends.protocol import Delta, LowRank
from inflight.execution.backends.torch.adapted_matrix import AdapterRows, tiled
from inflight.execution.backends.torch.adapters import AdapterTables
from inflight.execution.backends.torch.device_pass import DevicePass
from inflight.execution.backends.torch.launcher import Launcher
from inflight.execution.backends.torch.packing import Packer
from inflight.execution.backends.torch.sampling_tensors import Draws, DrawSettings
from inflight.execution.backends.torch.tensors import LayerKV, LayerStates, PassTensors, RopeTensors, StateTensors
from inflight.execution.backends.torch.upload import Upload
from inflight.execution.backends.torch.weights import (
    DeviceExperts,
    DeviceGateUp,
    DeviceLinear,
    DeviceTable,
    Fp8Matrix,
    GroupedMatrix,
    Int8Matrix,
    PackedMatrix,
    PlainMatrix,
    RoutingTensors,
)

BLOCK = 16
GROUP = 32  # inputs that share a scale in int4, and in int8 where an output has several
ADAPTERS, RANK = 8, 16


@dataclass(frozen=True, slots=True)
class Sizes:
    """rows: of decodes. prompt: tokens of a chunk. context: of a decode."""

    rows: Sequence[int]
    prompt: int
    context: int
    hidden: int
    heads: int
    kv_heads: int
    head_dim: int
    width: int
    vocab: int
    experts: int
    top_k: int
    expert_width: int
    key_heads: int
    state_heads: int
    state_dim: int
    latent_heads: int
    rank: int
    rotated: int


FULL = Sizes((1, 32, 256), 2048, 1024, 4096, 32, 8, 128, 14336, 128256, 128, 8, 768, 16, 32, 128, 128, 512, 64)
TINY = Sizes((2,), 20, 40, 64, 4, 2, 16, 96, 300, 4, 2, 32, 2, 4, 16, 2, 32, 16)


class Case(NamedTuple):
    """call(launcher, buffers): computes into buffers, or what it returns; all that is compared. read, operations: of
    the device at least. exact: whole numbers that must be the same."""

    name: str
    buffers: tuple[Tensor, ...]
    call: Callable[[Launcher, Sequence[Tensor]], Sequence[Tensor]]
    read: float
    operations: float


class Numbers:
    """Random tensors on a device."""

    def __init__(self, device: torch.device, act: torch.dtype, drawn_on_cpu: bool = False) -> None:
        """drawn_on_cpu: they are the same on every device."""
        self.device, self.act = device, act
        self._random = torch.Generator(device="cpu" if drawn_on_cpu else device)
        self._random.manual_seed(0)

    def normal(self, *shape: int, scale: float = 1.0, kind: torch.dtype = torch.float32) -> Tensor:
        drawn = torch.empty(shape, dtype=kind, device=self._random.device)
        return drawn.normal_(0, scale, generator=self._random).to(self.device)

    def whole(self, below: int, *shape: int, kind: torch.dtype = torch.int32) -> Tensor:
        drawn = torch.randint(0, below, shape, dtype=kind, device=self._random.device, generator=self._random)
        return drawn.to(self.device)

    def of(self, values: Sequence[int] | Sequence[Sequence[int]]) -> Tensor:
        return torch.tensor(values, dtype=torch.int32, device=self.device)

    def zeros(self, *shape: int, kind: torch.dtype = torch.float32) -> Tensor:
        return torch.zeros(shape, dtype=kind, device=self.device)

    def matrix(self, rows: int, columns: int) -> PlainMatrix:
        return PlainMatrix(self.normal(rows, columns, scale=0.02, kind=self.act))

    def quantized(self, held: str, rows: int, columns: int) -> PackedMatrix:
        if held == "int8":
            codes = (self.whole(255, rows, columns) - 127).to(torch.int8)
            return Int8Matrix(codes, self.normal(rows).abs() * 2e-4)
        if held == "fp8":
            codes = self.normal(rows, columns, kind=self.act).to(torch.float8_e4m3fn)
            return Fp8Matrix(codes, self.normal(rows).abs() * 0.02)
        scales = self.normal(rows, columns // GROUP).abs()
        if held == "int8 in groups":
            codes = (self.whole(255, rows, columns) - 127).to(torch.int8)
            return GroupedMatrix(codes, scales * 2e-4, None, GROUP)
        return GroupedMatrix(self.whole(256, rows, columns // 2, kind=torch.uint8), scales * 5e-3, None, GROUP)

    def chunks(self, rows: int, length: int, context: int) -> PassTensors:
        """rows sequences in separate blocks, of which each computes `length` tokens up to `context`."""
        first, width = context - length, -(-context // BLOCK)
        order = torch.randperm(rows * width, device=self._random.device, generator=self._random)
        order = order.to(self.device, torch.int32)
        tokens = rows * length
        return PassTensors(
            token_ids=self.whole(100, tokens),
            positions=torch.arange(first, context, dtype=torch.int32, device=self.device).repeat(rows),
            chunk_of=torch.arange(rows, dtype=torch.int32, device=self.device).repeat_interleave(length),
            rows=torch.arange(rows, dtype=torch.int32, device=self.device),
            query_start=torch.arange(rows + 1, dtype=torch.int32, device=self.device) * length,
            context_len=torch.full((rows,), first, dtype=torch.int32, device=self.device),
            block_tables=order.view(1, rows, width),
            block_size=BLOCK,
            longest_chunk=length,
            longest_context=context,
        )

    def cache(self, blocks: int, heads: int, key_dim: int, value_dim: int) -> LayerKV:
        """value_dim 0: values are a part of the keys."""
        keys = self.normal(blocks, BLOCK, heads, key_dim, kind=self.act)
        return LayerKV(0, keys, self.normal(blocks, BLOCK, heads, value_dim, kind=self.act) if value_dim else None)

    def over(
        self,
        pass_: PassTensors,
        layer: LayerKV | None = None,
        states: LayerStates | None = None,
        moves: StateTensors | None = None,
    ) -> DevicePass:
        """Return a pass whose layers all are these."""
        kept: Any = (layer, states)
        return DevicePass(
            self.act,
            pass_,
            lambda number: kept[0],
            lambda: np.zeros(pass_.num_tokens, np.int32),
            lambda values: torch.from_numpy(values).to(self.device),
            lambda number: kept[1],
            moves,
        )

    def no_snapshots(self, chunks: int) -> StateTensors:
        return StateTensors(self.of([0] * (chunks + 1)), self.of([0] * chunks), self.of([0] * chunks))


def cases(numbers: Numbers, sizes: Sizes) -> Iterator[Case]:
    """By kind of operation, and of each for rows that decode and for a prompt. Made one after the other: a case's
    tensors can go before the next one's come."""
    for tokens in (*sizes.rows, sizes.prompt):
        yield from _of_rows(numbers, sizes, tokens)
        yield from _products(numbers, sizes, tokens)
        yield _adapters(numbers, sizes, tokens)
        yield _experts(numbers, sizes, tokens)
    for rows, length in (*((rows, 1) for rows in sizes.rows), (1, sizes.prompt)):
        context = max(sizes.context, length)
        yield from _attention(numbers, sizes, rows, length, context)
        yield _latent(numbers, sizes, rows, length, context)
        yield from _recurrence(numbers, sizes, rows, length, context)
    for rows in sizes.rows:
        yield from _draws(numbers, sizes, rows)


def _of_rows(numbers: Numbers, sizes: Sizes, tokens: int) -> Iterator[Case]:
    hidden, item = sizes.hidden, numbers.act.itemsize
    x, weight = numbers.normal(tokens, hidden), numbers.normal(hidden)
    out = numbers.zeros(tokens, hidden, kind=numbers.act)

    on = numbers.over(numbers.chunks(tokens, 1, 1))

    def rms_norm(launcher: Launcher, buffers: Sequence[Tensor]) -> Sequence[Tensor]:
        launcher.launch(ops.rms_norm, on, (x, weight, 1e-5, buffers[0]))
        return buffers

    yield Case(f"RMS norm, {tokens} tokens", (out,), rms_norm, tokens * hidden * (4 + item), 0)
    held = numbers.normal(sizes.vocab, hidden, kind=numbers.act)
    table = DeviceTable(PlainMatrix(held), sizes.vocab, hidden, held.nbytes)

    def embed(launcher: Launcher, buffers: Sequence[Tensor]) -> Sequence[Tensor]:
        launcher.launch(ops.embed, on, (table, buffers[0]))
        return buffers

    yield Case(f"embedding, {tokens} tokens", (numbers.zeros(tokens, hidden),), embed, tokens * hidden * (4 + item), 0)


def _products(numbers: Numbers, sizes: Sizes, tokens: int) -> Iterator[Case]:
    hidden, width, on = sizes.hidden, sizes.width, numbers.over(numbers.chunks(tokens, 1, 1))
    x = numbers.normal(tokens, hidden, kind=numbers.act)
    rounded = ("fp8",) if numbers.act == torch.bfloat16 else ()  # Triton's interpreter does not round to it
    for held in ("bf16", *rounded, "int8", "int8 in groups", "int4"):
        matrix = numbers.matrix(hidden, hidden) if held == "bf16" else numbers.quantized(held, hidden, hidden)
        nbytes = _nbytes(matrix)
        weight = DeviceLinear((matrix,), hidden, hidden, nbytes)

        def linear(launcher: Launcher, buffers: Sequence[Tensor], weight: DeviceLinear = weight) -> Sequence[Tensor]:
            launcher.launch(ops.linear, on, (x, weight, buffers[0]))
            return buffers

        work = 2.0 * tokens * hidden * hidden
        yield Case(f"product in {held}, {tokens} tokens", (numbers.zeros(tokens, hidden),), linear, nbytes, work)
    both = numbers.matrix(2 * width, hidden)
    pair = DeviceGateUp(DeviceLinear((both,), 2 * width, hidden, both.values.nbytes))

    def gate_up(launcher: Launcher, buffers: Sequence[Tensor]) -> Sequence[Tensor]:
        launcher.launch(ops.gate_up, on, (x, pair, buffers[0], "silu"))
        return buffers

    inner = numbers.zeros(tokens, width, kind=numbers.act)
    yield Case(f"gate and up, {tokens} tokens", (inner,), gate_up, pair.nbytes, 4.0 * tokens * hidden * width)


def _adapters(numbers: Numbers, sizes: Sizes, tokens: int) -> Case:
    """Return what they add to a product; the rows have them in turns."""
    hidden, matrix = sizes.hidden, numbers.matrix(sizes.hidden, sizes.hidden)
    weight = DeviceLinear((matrix,), hidden, hidden, int(matrix.values.nbytes))
    adapters: dict[int, PackedAdapter[Tensor]] = {}
    tables = AdapterTables(adapters, ADAPTERS, numbers.device, Upload(numbers.device))
    pack = Packer(numbers.act, numbers.device).plain
    for slot in range(ADAPTERS):
        down, up = numbers.normal(RANK, hidden, scale=0.02), numbers.normal(hidden, RANK)
        part = LowRank(0, down.cpu().numpy(), up.cpu().numpy())
        adapters[slot] = PackedAdapter([Delta(weight, (part,))], pack)
    tables.update(adapters)
    rows = AdapterRows(*(numbers.of(one.tolist()) for one in tiled(np.arange(tokens) % ADAPTERS, ADAPTERS)))
    x, held = numbers.normal(tokens, hidden, kind=numbers.act), min(tokens, ADAPTERS) * 2 * RANK * hidden

    on = replace(numbers.over(numbers.chunks(tokens, 1, 1)), adapters=tables.of, adapter_rows=rows)

    def linear(launcher: Launcher, buffers: Sequence[Tensor]) -> Sequence[Tensor]:
        launcher.launch(ops.linear, on, (x, weight, buffers[0]))
        return buffers

    read = float(held * numbers.act.itemsize + weight.nbytes)
    work = 2.0 * tokens * hidden * (hidden + 2 * RANK)
    return Case(f"product with adapters, {tokens} tokens", (numbers.zeros(tokens, hidden),), linear, read, work)


def _experts(numbers: Numbers, sizes: Sizes, tokens: int) -> Case:
    count, hidden, width, top = sizes.experts, sizes.hidden // 2, sizes.expert_width, sizes.top_k
    up = PlainMatrix(numbers.normal(count, 2 * width, hidden, scale=0.02, kind=numbers.act))
    down = PlainMatrix(numbers.normal(count, hidden, width, scale=0.02, kind=numbers.act))
    routing = RoutingTensors(top, "softmax", True, 0.0, 0.0, None, 1, 1, 2, 1.0, None)
    nbytes = _nbytes(up) + _nbytes(down)
    weight = DeviceExperts(up, down, None, None, routing, "silu", count, nbytes)
    x, logits = numbers.normal(tokens, hidden, kind=numbers.act), numbers.normal(tokens, count)
    on = numbers.over(numbers.chunks(tokens, 1, 1))

    def experts(launcher: Launcher, buffers: Sequence[Tensor]) -> Sequence[Tensor]:
        launcher.launch(ops.experts, on, (x, logits, weight, buffers[0]))
        return buffers

    touched = count * (1 - (1 - top / count) ** tokens)
    work = 6.0 * tokens * top * hidden * width
    out = numbers.zeros(tokens, hidden)
    return Case(f"{count} experts, {tokens} tokens", (out,), experts, nbytes * touched / count, work)


def _attention(numbers: Numbers, sizes: Sizes, rows: int, length: int, context: int) -> Iterator[Case]:
    heads, kv_heads, dim, tokens = sizes.heads, sizes.kv_heads, sizes.head_dim, rows * length
    pass_ = numbers.chunks(rows, length, context)
    cached = numbers.cache(pass_.block_tables.numel(), kv_heads, dim, dim)
    q, on = numbers.normal(tokens, heads * dim, kind=numbers.act), numbers.over(pass_, cached)
    what = f"{rows} x {context} positions" if length == 1 else f"a prompt of {length}"

    def attention(launcher: Launcher, buffers: Sequence[Tensor]) -> Sequence[Tensor]:
        launcher.launch(ops.attention, on, (q, 0, dim**-0.5, 0, buffers[0], 0.0, None, True, None))
        return buffers

    pairs = tokens * (2 * context - length + 1) / 2
    read = 2.0 * rows * context * kv_heads * dim * numbers.act.itemsize
    out = numbers.zeros(tokens, heads * dim, kind=numbers.act)
    yield Case(f"attention, {what}", (out,), attention, read, 4.0 * pairs * heads * dim)

    qkv = numbers.normal(tokens, (heads + 2 * kv_heads) * dim)
    angles = numbers.normal(context, dim // 2)
    rope, norm = RopeTensors(angles.cos(), angles.sin(), None), numbers.normal(dim)

    def write(launcher: Launcher, buffers: Sequence[Tensor]) -> Sequence[Tensor]:
        keys, values, queries = buffers
        into = numbers.over(pass_, LayerKV(0, keys, values))
        launcher.launch(ops.rope_and_write_kv, into, (qkv, 0, rope, norm, norm, 1e-6, queries, False, None))
        return buffers

    assert cached.values is not None
    held = torch.zeros_like(cached.keys), torch.zeros_like(cached.values), torch.zeros_like(q)
    yield Case(f"rotation and writing, {what}", held, write, qkv.nbytes * 1.5, 0)


def _latent(numbers: Numbers, sizes: Sizes, rows: int, length: int, context: int) -> Case:
    heads, rank, width = sizes.latent_heads, sizes.rank, sizes.rank + sizes.rotated
    pass_ = numbers.chunks(rows, length, context)
    cached = numbers.cache(pass_.block_tables.numel(), 1, width, 0)
    q, on = numbers.normal(rows * length, heads * width, kind=numbers.act), numbers.over(pass_, cached)

    def attention(launcher: Launcher, buffers: Sequence[Tensor]) -> Sequence[Tensor]:
        launcher.launch(ops.attention, on, (q, 0, width**-0.5, 0, buffers[0], 0.0, None, True, None))
        return buffers

    pairs = rows * length * (2 * context - length + 1) / 2
    read = rows * context * width * numbers.act.itemsize
    out = numbers.zeros(rows * length, heads * rank, kind=numbers.act)
    what = f"{rows} x {context} positions" if length == 1 else f"a prompt of {length}"
    return Case(f"latent attention, {what}", (out,), attention, read, 2.0 * pairs * heads * (width + rank))


def _recurrence(numbers: Numbers, sizes: Sizes, rows: int, length: int, context: int) -> Iterator[Case]:
    heads, dim, keys, tokens = sizes.state_heads, sizes.state_dim, sizes.key_heads, rows * length
    channels, inner = (2 * keys + heads) * dim, heads * dim
    pass_, moves = numbers.chunks(rows, length, context), numbers.no_snapshots(rows)
    inputs = numbers.normal(rows, 3, channels, kind=numbers.act)
    x, taps = numbers.normal(tokens, channels), numbers.normal(4 * channels)
    none = numbers.zeros(rows, 0, 0, 0)
    what = f"{rows} rows" if length == 1 else f"a prompt of {length}"

    def convolve(launcher: Launcher, buffers: Sequence[Tensor]) -> Sequence[Tensor]:
        on = numbers.over(pass_, states=LayerStates(buffers[0], none), moves=moves)
        launcher.launch(ops.convolve, on, (x, 0, taps, buffers[1]))
        return buffers

    yield Case(f"convolution, {what}", (inputs, torch.zeros_like(x)), convolve, 2.0 * x.nbytes, 0)
    z, gates = numbers.normal(tokens, channels + inner), numbers.normal(tokens, 2 * heads)
    decay, bias, norm = -numbers.normal(heads).exp(), numbers.normal(heads), numbers.normal(dim)

    def delta_rule(launcher: Launcher, buffers: Sequence[Tensor]) -> Sequence[Tensor]:
        on = numbers.over(pass_, states=LayerStates(inputs, buffers[0]), moves=moves)
        launcher.launch(ops.delta_rule, on, (x, z, gates, 0, keys, decay, bias, norm, 1e-6, buffers[1]))
        return buffers

    matrices, out = numbers.normal(rows, heads, dim, dim), numbers.zeros(tokens, inner, kind=numbers.act)
    yield Case(f"delta rule, {what}", (matrices, out), delta_rule, 2.0 * matrices.nbytes, 6.0 * tokens * inner * dim)


def _draws(numbers: Numbers, sizes: Sizes, rows: int) -> Iterator[Case]:
    """The reference draws the same tokens: random words are counted, and ties go to the lower number."""
    logits = numbers.normal(rows, sizes.vocab, scale=3.0)
    for name, temperature, top_p in (("greedy", 0.0, 1.0), ("drawn", 0.8, 1.0), ("top-p", 0.8, 0.9)):
        draws = _plain_draws(numbers, rows, temperature, top_p)

        def sample(launcher: Launcher, buffers: Sequence[Tensor], draws: Draws = draws) -> Sequence[Tensor]:
            buffers[0].copy_(logits)
            return [launcher.sample(buffers[0], draws).token_ids]

        yield Case(f"{rows} tokens, {name}", (torch.empty_like(logits),), sample, logits.nbytes, 0)


def _plain_draws(numbers: Numbers, rows: int, temperature: float, top_p: float) -> Draws:
    def all_of(value: float, kind: torch.dtype = torch.float32) -> Tensor:
        return torch.full((rows,), value, dtype=kind, device=numbers.device)

    places = torch.arange(rows, dtype=torch.int32, device=numbers.device)
    settings = DrawSettings(
        temperature=all_of(temperature),
        top_p=all_of(top_p),
        min_p=all_of(0),
        repetition_penalty=all_of(1),
        presence_penalty=all_of(0),
        frequency_penalty=all_of(0),
        top_k=all_of(0, torch.int32),
        seed=places.long() + 17,
        sample_index=all_of(0, torch.int64),
        prompt_length=all_of(1, torch.int32),
    )
    return Draws(
        settings=settings,
        rows=places,
        num_tokens=all_of(2, torch.int32),
        tokens=numbers.zeros(rows, 4, kind=torch.int32),
        needs_history=False,
        filters=top_p < 1,
        greedy=temperature == 0,
        longest_history=2,
        bias=None,
        bad=None,
        allowed=None,
        want_logprobs=False,
        top_logprobs=0,
    )


def _nbytes(matrix: PackedMatrix) -> int:
    if isinstance(matrix, PlainMatrix):
        return int(matrix.values.nbytes)
    return int(matrix.codes.nbytes + matrix.scales.nbytes)
