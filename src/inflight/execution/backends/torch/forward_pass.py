"""A pass on a device: handles become tensors, and operations over these are called.

Knows which tensors of a pass, of slots and of memory an operation is told; what it computes is the operations' own
(`operations`). Nothing here waits for the device.
"""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
import torch
from torch import Tensor

from inflight.core.types.plan import Chunk
from inflight.execution.backends.protocol import Array, Nonlinearity
from inflight.execution.backends.torch.memory import DeviceActivation, DeviceKVCache
from inflight.execution.backends.torch.operations import DeviceOperations
from inflight.execution.backends.torch.results import (
    DrawnRows,
    PassOutcome,
    PooledRows,
    ScoredRows,
    fetched,
    fetched_draws,
)
from inflight.execution.backends.torch.sampling_tensors import Scores
from inflight.execution.backends.torch.slots import DeviceSlots, PassStart
from inflight.execution.backends.torch.tensors import LayerStates, RopeTensors, StateTensors
from inflight.execution.backends.torch.upload import Upload
from inflight.execution.backends.torch.weights import (
    DeviceExperts,
    DeviceGateUp,
    DeviceHeads,
    DeviceLinear,
    DeviceTable,
)


class TorchPass:
    def __init__(
        self,
        operations: DeviceOperations,
        start: PassStart,
        kv_cache: DeviceKVCache,
        slots: DeviceSlots,
        chunks: Sequence[Chunk],
        upload: Upload,
    ):
        self._operations, self._kv_cache, self._slots, self._upload = operations, kv_cache, slots, upload
        self._layout, self._tensors, self._moves = start.layout, start.tensors, start.states
        self.num_tokens, self.bucket = len(start.layout.positions), start.bucket
        self._outcome = PassOutcome(chunks, slots.tokens.device)
        operations.begin(start.appended, slots.tokens, start.tensors)

    # -- on rows ----------------------------------------------------------------------------------------------------
    def embed(self, table: DeviceTable, out: DeviceActivation) -> None:
        self._operations.embed(table, self._tensors.token_ids, out.take(self.num_tokens))

    def gather(self, x: DeviceActivation, places: Sequence[int], out: DeviceActivation) -> None:
        """By places alone: who replayed a graph told no activation what was written."""
        if places == range(len(places)) or list(places) == list(range(len(places))):
            out.take(len(places)).copy_(x.tensor[: len(places)])
            return
        (at,) = self._upload.send([np.array(places, np.int32)])
        torch.index_select(x.tensor, 0, at, out=out.take(len(places)))

    def clear(self, out: DeviceActivation) -> None:
        out.take(self.num_tokens).zero_()

    def to_act(self, x: DeviceActivation, out: DeviceActivation) -> None:
        out.take(x.rows).copy_(x.written)

    def rms_norm(self, x: DeviceActivation, weight: Tensor, eps: float, out: DeviceActivation) -> None:
        self._operations.rms_norm(x.written, weight, eps, out.take(x.rows))

    def layer_norm(
        self, x: DeviceActivation, weight: Tensor, bias: Tensor | None, eps: float, out: DeviceActivation
    ) -> None:
        self._operations.layer_norm(x.written, weight, bias, eps, out.take(x.rows))

    def add(self, x: DeviceActivation, norm: Tensor | None, eps: float, factor: float, out: DeviceActivation) -> None:
        self._operations.add(x.written, norm, eps, factor, out.written)

    def scale(self, x: DeviceActivation, factor: float) -> None:
        x.written.mul_(factor)

    def soft_cap(self, x: DeviceActivation, cap: float) -> None:
        x.written.div_(cap).tanh_().mul_(cap)

    def activate(
        self,
        x: DeviceActivation,
        activation: Nonlinearity,
        out: DeviceActivation,
        parameters: Tensor | None = None,
        by: DeviceActivation | None = None,
        first: int = 0,
    ) -> None:
        factors = None if by is None else by.written[:, first : first + x.width]
        self._operations.activate(x.written, activation, parameters, factors, out.take(x.rows))

    def add_gated(self, x: DeviceActivation, gate: DeviceActivation, out: DeviceActivation) -> None:
        self._operations.add_gated(x.written, gate.written, out.written)

    def gate(self, gate: DeviceActivation, x: DeviceActivation) -> None:
        self._operations.gate(gate.written, x.written)

    # -- with packed weights ----------------------------------------------------------------------------------------
    def linear(self, x: DeviceActivation, weight: DeviceLinear, out: DeviceActivation) -> None:
        self._operations.linear(x.written, weight, out.take(x.rows))

    def linear_residual(self, x: DeviceActivation, weight: DeviceLinear, out: DeviceActivation) -> None:
        self._operations.linear_residual(x.written, weight, out.written)

    def gate_up(
        self, x: DeviceActivation, weight: DeviceGateUp, out: DeviceActivation, activation: Nonlinearity = "silu"
    ) -> None:
        self._operations.gate_up(x.written, weight, activation, out.take(x.rows))

    def experts(
        self, x: DeviceActivation, logits: DeviceActivation, weight: DeviceExperts, out: DeviceActivation
    ) -> None:
        self._operations.experts(x.written, logits.written, weight, out.written)

    def by_head(self, x: DeviceActivation, weight: DeviceHeads, out: DeviceActivation) -> None:
        self._operations.by_head(x.written, weight, out.take(x.rows))

    # -- on the KV cache --------------------------------------------------------------------------------------------
    def rope_and_write_kv(
        self,
        qkv: DeviceActivation,
        layer: int,
        rope: RopeTensors | None,
        q_norm: Tensor | None,
        k_norm: Tensor | None,
        eps: float,
        q_out: DeviceActivation,
        norms_last: bool = False,
        v_norm: Tensor | None = None,
    ) -> None:
        self._operations.rope_and_write_kv(
            qkv.written,
            self._kv_cache.layer(layer),
            rope,
            q_norm,
            k_norm,
            v_norm,
            eps,
            norms_last,
            self._tensors,
            q_out.take(qkv.rows),
        )

    def rope_and_write_latent(
        self,
        q: DeviceActivation,
        kv: DeviceActivation,
        layer: int,
        rope: RopeTensors,
        kv_norm: Tensor,
        eps: float,
        nope_out: DeviceActivation,
        q_out: DeviceActivation,
    ) -> None:
        self._operations.rope_and_write_latent(
            q.written,
            kv.written,
            self._kv_cache.layer(layer),
            rope,
            kv_norm,
            eps,
            self._tensors,
            nope_out.take(q.rows),
            q_out.take(q.rows),
        )

    def attention(
        self,
        q: DeviceActivation,
        layer: int,
        scale: float,
        window: int,
        out: DeviceActivation,
        soft_cap: float = 0.0,
        sinks: Tensor | None = None,
    ) -> None:
        cached = self._kv_cache.layer(layer)
        self._operations.attention(q.written, cached, scale, window, soft_cap, sinks, self._tensors, out.take(q.rows))

    # -- on states --------------------------------------------------------------------------------------------------
    def convolve(self, x: DeviceActivation, layer: int, weight: Tensor, out: DeviceActivation) -> None:
        states, moves = self._states(layer)
        self._operations.convolve(x.written, states, weight, self._tensors, moves, out.take(x.rows))

    def convolve_gated(
        self, x: DeviceActivation, layer: int, weight: Tensor, bias: Tensor | None, out: DeviceActivation
    ) -> None:
        states, moves = self._states(layer)
        self._operations.convolve_gated(x.written, states, weight, bias, self._tensors, moves, out.take(x.rows))

    def delta_rule(
        self,
        qkv: DeviceActivation,
        projected: DeviceActivation,
        gates: DeviceActivation,
        layer: int,
        key_heads: int,
        decay: Tensor,
        step_bias: Tensor,
        norm: Tensor,
        eps: float,
        out: DeviceActivation,
    ) -> None:
        states, moves = self._states(layer)
        self._operations.delta_rule(
            qkv.written,
            projected.written,
            gates.written,
            states,
            key_heads,
            decay,
            step_bias,
            norm,
            eps,
            self._tensors,
            moves,
            out.take(qkv.rows),
        )

    def _states(self, layer: int) -> tuple[LayerStates, StateTensors]:
        if self._slots.states is None or self._moves is None:
            raise ValueError("the slots of this pass were made without states of recurrent layers")
        return self._slots.states.layer(layer), self._moves

    # -- what comes of it -------------------------------------------------------------------------------------------
    def sample(self, logits: DeviceActivation, places: Sequence[int]) -> None:
        of, rows, positions = self._placed(places)
        draws = self._slots.draws(rows, positions)
        drawn = self._operations.sample(logits.tensor[: len(places)], draws)
        self._slots.keep(draws, drawn.token_ids)
        settings = self._slots.settings  # as they are now: another may have the row when the result is asked for
        wanted = settings.want_logprobs[rows], settings.integers[2, rows]
        self._outcome.drawn.append(DrawnRows(of, positions, *wanted, fetched_draws(drawn)))

    def score(self, logits: DeviceActivation, places: Sequence[int]) -> None:
        of, rows, positions = self._placed(places)
        token_ids, wanted = self._slots.following(rows, positions), self._slots.settings.prompt_logprobs[rows]
        most = min(int(wanted.max(initial=0)), logits.width)
        scores = self._operations.score(logits.tensor[: len(places)], token_ids, most)
        scores = Scores(*(fetched(one) for one in scores))
        self._outcome.scored.append(ScoredRows(of, positions, wanted, fetched(token_ids), scores))

    def pool(self, hidden: DeviceActivation, places: Sequence[int]) -> None:
        of, rows, _ = self._placed(places)
        vectors = hidden.tensor[: len(places)].to(torch.float32, copy=True)
        self._outcome.pooled.append(PooledRows(of, self._slots.settings.normalize[rows], fetched(vectors)))

    def finish(self) -> PassOutcome:
        return self._outcome.finish()

    def _placed(self, places: Sequence[int]) -> tuple[Array, Array, Array]:
        """Of these tokens of the pass the chunks, the rows and the positions."""
        at = np.fromiter(places, np.int32, len(places))
        of = self._layout.chunk_of[at]
        return of, self._layout.rows[of], self._layout.positions[at]
