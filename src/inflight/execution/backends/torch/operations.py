"""Protocol of a device's operations over tensors; each exists twice, plainly and as a kernel of our own.

Knows shapes; `protocol.operations` has the meaning of each, by the same name, and what is rounded where. Modules
implement this: `eager`, in PyTorch's own operations, runs anywhere, is readable, and is what everything is tested
against; `kernels`, in Triton, runs on a GPU. T, C and the like as in the protocol. All activations are contiguous
[rows, width] views of as many rows as the operation has. `out` is written in place.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Protocol

from torch import Tensor

from inflight.execution.backends.protocol import Nonlinearity
from inflight.execution.backends.torch.adapted_matrix import AdaptedMatrix, AdapterRows
from inflight.execution.backends.torch.sampling_tensors import Drawn, Draws, Scores
from inflight.execution.backends.torch.tensors import LayerKV, LayerStates, PassTensors, RopeTensors, StateTensors
from inflight.execution.backends.torch.weights import (
    DeviceExperts,
    DeviceGateUp,
    DeviceHeads,
    DeviceLinear,
    DeviceTable,
)


class StepOperations(Protocol):
    def begin(self, appended: Tensor, tokens: Tensor, pass_: PassTensors) -> None:
        """Before a pass: appended int32[N, 4], of N blocks that slots get their group, slot, place in the table and
        number, are written into `pass_.block_tables`; and `pass_.token_ids` are the pass's tokens among tokens
        int32[slots, longest sequence + 1], those of all slots."""


class RowOperations(Protocol):
    def embed(self, table: DeviceTable, token_ids: Tensor, out: Tensor) -> None: ...

    def add_rows(self, table: DeviceTable, rows: Tensor, out: Tensor) -> None:
        """rows int32[T]: of the table, each added to a row of out float32[T, E]."""

    def mean(self, x: Tensor, ranges: Sequence[range], out: Tensor) -> None: ...

    def rms_norm(self, x: Tensor, weight: Tensor, eps: float, out: Tensor) -> None: ...

    def layer_norm_sum(self, x: Tensor, weight: Tensor, bias: Tensor | None, eps: float, out: Tensor) -> None: ...

    def layer_norm(self, x: Tensor, weight: Tensor, bias: Tensor | None, eps: float, out: Tensor) -> None: ...

    def add(self, x: Tensor, norm: Tensor | None, eps: float, factor: float, out: Tensor) -> None: ...

    def activate(
        self, x: Tensor, activation: Nonlinearity, parameters: Tensor | None, by: Tensor | None, out: Tensor
    ) -> None:
        """by float32[S, F]: a view of columns of what the protocol calls so, not contiguous."""

    def add_gated(self, x: Tensor, gate: Tensor, out: Tensor) -> None: ...

    def gate(self, gate: Tensor, x: Tensor) -> None: ...


class ProductOperations(Protocol):
    def linear(self, x: Tensor, weight: DeviceLinear, out: Tensor) -> None: ...

    def linear_residual(self, x: Tensor, weight: DeviceLinear, out: Tensor) -> None: ...

    def linear_act(self, x: Tensor, weight: DeviceLinear, activation: Nonlinearity, out: Tensor) -> None: ...

    def gate_up(self, x: Tensor, weight: DeviceGateUp, activation: Nonlinearity, out: Tensor) -> None: ...

    def gate_both(self, both: Tensor, weight: DeviceGateUp, activation: Nonlinearity, out: Tensor) -> None:
        """Finish `gate_up` from its sums on: both float32[S, 2F], to which something was added meanwhile."""

    def add_low_rank(self, x: Tensor, adapted: AdaptedMatrix, rows: AdapterRows, out: Tensor) -> None:
        """To the sums out float32[S, N] of x is added what each row's adapter makes of it."""

    def experts(self, x: Tensor, logits: Tensor, weight: DeviceExperts, out: Tensor) -> None: ...

    def by_head(self, x: Tensor, weight: DeviceHeads, out: Tensor) -> None: ...


class AttentionOperations(Protocol):
    def rope_and_write_kv(
        self,
        qkv: Tensor,
        cached: LayerKV,
        rope: RopeTensors | None,
        q_norm: Tensor | None,
        k_norm: Tensor | None,
        v_norm: Tensor | None,
        eps: float,
        norms_last: bool,
        pass_: PassTensors,
        q_out: Tensor,
    ) -> None: ...

    def rope_and_write_latent(
        self,
        q: Tensor,
        kv: Tensor,
        cached: LayerKV,
        rope: RopeTensors,
        kv_norm: Tensor,
        eps: float,
        pass_: PassTensors,
        nope_out: Tensor,
        q_out: Tensor,
    ) -> None: ...

    def attention(
        self,
        q: Tensor,
        cached: LayerKV,
        scale: float,
        window: int,
        soft_cap: float,
        sinks: Tensor | None,
        causal: bool,
        pass_: PassTensors,
        out: Tensor,
        position_bias: Tensor | None = None,
    ) -> None: ...


class RecurrentOperations(Protocol):
    def convolve(
        self, x: Tensor, states: LayerStates, weight: Tensor, pass_: PassTensors, moves: StateTensors, out: Tensor
    ) -> None: ...

    def convolve_gated(
        self,
        x: Tensor,
        states: LayerStates,
        weight: Tensor,
        bias: Tensor | None,
        pass_: PassTensors,
        moves: StateTensors,
        out: Tensor,
    ) -> None: ...

    def delta_rule(
        self,
        qkv: Tensor,
        projected: Tensor,
        gates: Tensor,
        states: LayerStates,
        key_heads: int,
        decay: Tensor,
        step_bias: Tensor,
        norm: Tensor,
        eps: float,
        pass_: PassTensors,
        moves: StateTensors,
        out: Tensor,
    ) -> None: ...


class SamplingOperations(Protocol):
    def sample(self, logits: Tensor, draws: Draws) -> Drawn:
        """logits float32[S, V], which may be overwritten."""

    def score(self, logits: Tensor, token_ids: Tensor, top_logprobs: int) -> Scores:
        """Log-probabilities of token_ids int32[S] from logits float32[S, V], with as many alternatives each."""


class DeviceOperations(
    StepOperations,
    RowOperations,
    ProductOperations,
    AttentionOperations,
    RecurrentOperations,
    SamplingOperations,
    Protocol,
):
    """All of them: what a module offers."""
