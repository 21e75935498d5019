"""Operations of a pass on the KV cache (`protocol.AttentionOperations`): activations become tensors, and the device's
are called.

Knows where the pass's tokens lie, and which memory is a layer's.
"""

from __future__ import annotations

from torch import Tensor

from inflight.execution.backends.torch.memory import DeviceActivation, DeviceKVCache
from inflight.execution.backends.torch.operations import DeviceOperations
from inflight.execution.backends.torch.tensors import PassTensors, RopeTensors


class AttentionOperations:
    def __init__(self, operations: DeviceOperations, tensors: PassTensors, kv_cache: DeviceKVCache):
        self._operations, self._tensors, self._kv_cache = operations, tensors, kv_cache

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
        causal: bool = True,
        position_bias: Tensor | None = None,
    ) -> None:
        cached, into = self._kv_cache.layer(layer), out.take(q.rows)
        self._operations.attention(
            q.written, cached, scale, window, soft_cap, sinks, causal, self._tensors, into, position_bias
        )
