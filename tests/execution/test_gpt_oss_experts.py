"""gpt-oss's experts alone against the module of `transformers`: clamped, with biases, transposed in the checkpoint."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

from inflight.execution.backends import open_backend
from inflight.execution.backends.protocol import Routing

from .backends.material import OnArrays
from .driver import backends

HIDDEN, WIDTH, EXPERTS, TOP_K, TOKENS = 32, 20, 5, 2, 9


@pytest.mark.parametrize("isa", backends())
def test_experts_are_those_of_the_oracle(isa: str) -> None:
    import torch
    from transformers import GptOssConfig
    from transformers.models.gpt_oss.modeling_gpt_oss import GptOssMLP

    config = GptOssConfig(
        hidden_size=HIDDEN,
        intermediate_size=WIDTH,
        num_local_experts=EXPERTS,
        num_experts_per_tok=TOP_K,
        experts_implementation="eager",
    )
    torch.manual_seed(0)
    oracle = GptOssMLP(config)
    with torch.no_grad():
        for parameter in oracle.parameters():
            parameter.normal_(0, 1)
        x = torch.randn(1, TOKENS, HIDDEN)
        expected = oracle(x)[0][0].numpy()

    backend: Any = open_backend("float32", 2, isa)
    held = {name: value.detach().numpy() for name, value in oracle.named_parameters()}
    gate_up = [
        backend.pack_gate_up(
            np.ascontiguousarray(held["experts.gate_up_proj"][e][:, ::2].T),
            np.ascontiguousarray(held["experts.gate_up_proj"][e][:, 1::2].T),
            bias=np.ascontiguousarray(held["experts.gate_up_proj_bias"][e].reshape(-1, 2).T),
        )
        for e in range(EXPERTS)
    ]
    down = [
        backend.pack_linear(
            [np.ascontiguousarray(held["experts.down_proj"][e].T)], held["experts.down_proj_bias"][e].copy()
        )
        for e in range(EXPERTS)
    ]
    experts = backend.pack_experts(gate_up, down, Routing(TOP_K, renormalize=True), "clamped_swiglu")
    router = backend.pack_linear([held["router.weight"]], held["router.bias"].copy())
    batch = OnArrays(backend)._pass()
    normed, out = backend.activation_of(x[0].numpy().copy()), backend.activation_of(np.zeros_like(expected))
    logits = backend.activation_of(np.zeros((TOKENS, EXPERTS), np.float32))
    batch.linear(normed, router, logits)
    batch.experts(normed, logits, experts, out)
    np.testing.assert_allclose(out.array, expected, atol=1e-4 * np.abs(expected).max())
