"""The operations of a forward pass, by kind: what a backend computes between tokens and logits.

Each reads the rows of activations that were written last, and writes as many, or changes them in place. What they mean
is written here once, to the rounding; `reference` is that in numpy. Both it and the kernels have the same kinds:
`pass_rows`, `pass_products`, `pass_attention`, `pass_states`.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Protocol

from inflight.execution.backends.protocol.handles import Activation, Experts, GateUp, Heads, Linear, Rope, Table, Vector
from inflight.execution.backends.protocol.parameters import Nonlinearity


class RowOperations(Protocol):
    """On numbers one by one or row by row: tokens looked up, norms, activation functions, sums, gates."""

    def embed(self, table: Table, out: Activation) -> None:
        """Look up the pass's tokens → out float32[T, E]."""

    def gather(self, x: Activation, places: Sequence[int], out: Activation) -> None:
        """Rows of x float32[T, E] at `places` (indices into the pass's tokens) → out float32[S, E]."""

    def clear(self, out: Activation) -> None:
        """out float32[T, N] = 0."""

    def to_act(self, x: Activation, out: Activation) -> None:
        """x float32[S, E] → out act[S, E]."""

    def add_positions(self, table: Table, first: int, out: Activation) -> None:
        """out float32[T, E] plus, for each of the pass's tokens, row `first` + its position of a table that `pack_rows`
        has made."""

    def add_token_types(self, table: Table, out: Activation) -> None:
        """out float32[T, E] plus row 1 of such a table for tokens of the second text of a pair, row 0 for others."""

    def mean(self, x: Activation, ranges: Sequence[range], out: Activation) -> None:
        """Means of the rows of x float32[T, E] in each of the ranges, which hold one or more → out float32[S, E]."""

    def rms_norm(self, x: Activation, weight: Vector, eps: float, out: Activation) -> None:
        """x float32[S, E], weight float32[E] → out act[S, E], or float32[S, E], = x / sqrt(mean(x²) + eps) · weight."""

    def layer_norm(self, x: Activation, weight: Vector, bias: Vector | None, eps: float, out: Activation) -> None:
        """x float32[S, E] → out act[S, E], or float32[S, E], = (x - mean(x)) / sqrt(variance(x) + eps) · weight +
        bias."""

    def layer_norm_sum(self, x: Activation, weight: Vector, bias: Vector | None, eps: float, out: Activation) -> None:
        """x float32[S, E] becomes its layer norm, in place, of which out act[S, E] has the same numbers."""

    def add(self, x: Activation, norm: Vector | None, eps: float, factor: float, out: Activation) -> None:
        """x float32[S, E], or its RMS norm where there is a weight float32[E] for it: added, times `factor`, to out
        float32[S, E]. A weight float32[E / n] norms each of n equal parts of a row by itself."""

    def scale(self, x: Activation, factor: float) -> None:
        """x float32[S, N] → factor · x, in place."""

    def soft_cap(self, x: Activation, cap: float) -> None:
        """x float32[S, N] → cap · tanh(x / cap), in place. cap > 0."""

    def activate(
        self,
        x: Activation,
        activation: Nonlinearity,
        out: Activation,
        parameters: Vector | None = None,
        by: Activation | None = None,
        first: int = 0,
    ) -> None:
        """x float32[S, F] → out act[S, F], or float32[S, F], = activation(x); times columns first … first + F - 1 of
        `by` float32[S, N], where that is given, the product formed in float32. parameters: float32[2], the p and n of
        xielu."""

    def add_gated(self, x: Activation, gate: Activation, out: Activation) -> None:
        """out float32[T, E] plus sigmoid(gate float32[T, 1]) · x float32[T, E]."""

    def gate(self, gate: Activation, x: Activation) -> None:
        """x act[S, N] → x · sigmoid(gate float32[S, N]), in place."""


class ProductOperations(Protocol):
    """Products with packed weights. Sums are float32; over weights in int8 and int4, as `number_formats` has it. Where
    the row of a token has an adapter, what that adds (`adapters`) comes to x · Wᵀ + bias before anything else does; but
    for experts and heads, which no adapter changes."""

    def linear(self, x: Activation, weight: Linear, out: Activation) -> None:
        """x act[S, K] → out float32[S, N] = x · Wᵀ + bias."""

    def linear_residual(self, x: Activation, weight: Linear, out: Activation) -> None:
        """As `linear`, added to `out` (the residual stream)."""

    def linear_act(self, x: Activation, weight: Linear, activation: Nonlinearity, out: Activation) -> None:
        """x act[S, K] → out act[S, N] = activation(x · Wᵀ + bias), of the sums in float32. gelu, gelu_tanh or relu."""

    def gate_up(self, x: Activation, weight: GateUp, out: Activation, activation: Nonlinearity = "silu") -> None:
        """x act[S, E] → out act[S, F] = activation(x · gateᵀ) · (x · upᵀ), the product formed in float32. silu, gelu or
        gelu_tanh."""

    def experts(self, x: Activation, logits: Activation, weight: Experts, out: Activation) -> None:
        """x act[T, E], logits float32[T, X] → out float32[T, E] plus the sum, in order of rank, of weight · expert(x)
        over the experts that the logits route a token to; an expert is `gate_up` (with its gating), then `linear`."""

    def by_head(self, x: Activation, weight: Heads, out: Activation) -> None:
        """x act[T, H·K] → out act[T, H·M], M ≥ N: the first N numbers of each head = x of the head · Wᵀ of the head.
        The others stay as they are."""


class AttentionOperations(Protocol):
    """On the KV cache: keys and values are written, and attended to."""

    def rope_and_write_kv(
        self,
        qkv: Activation,
        layer: int,
        rope: Rope | None,
        q_norm: Vector | None,
        k_norm: Vector | None,
        eps: float,
        q_out: Activation,
        norms_last: bool = False,
        v_norm: Vector | None = None,
    ) -> None:
        """qkv float32[T, (H + 2G)·D], heads in the order q, k, v. Applies the optional RMS norms, of each
        head (float32[D]) or of all at once (float32[H·D], float32[G·D]; of values of each head), rotates q and k unless
        `rope` is None (norms_last: first that, then their norms, which are of each head), writes k and v of every token
        into the KV cache, and q into q_out act[T, H·D]. All keys and values of the pass are written before any is read:
        chunks may read each other's blocks. qkv float32[T, (H + G)·D]: keys as they come are the values, too. qkv
        float32[T, H·D]: nothing is written; the queries will read what an earlier layer, `layer`, wrote. Over keys in
        int8 q and k are transformed last, before they are rounded, by the rule of `channel_mixing`."""

    def rope_and_write_latent(
        self,
        q: Activation,
        kv: Activation,
        layer: int,
        rope: Rope,
        kv_norm: Vector,
        eps: float,
        nope_out: Activation,
        q_out: Activation,
    ) -> None:
        """Latent attention, whose cache holds of a token one key and no values (`KVLayer`): C compressed numbers, then
        R rotated ones. q float32[T, H·(N + R)], kv float32[T, C + R]: the RMS norm of the first C of kv and the rotated
        rest go into the cache; of each head of q the first N into nope_out act[T, H·N], and the rotated rest into the
        last R of the head in q_out act[T, H·(C + R)], whose first C stay as they are (`by_head` writes them)."""

    def attention(
        self,
        q: Activation,
        layer: int,
        scale: float,
        window: int,
        out: Activation,
        soft_cap: float = 0.0,
        sinks: Vector | None = None,
        causal: bool = True,
        position_bias: Vector | None = None,
    ) -> None:
        """q act[T, H·D] → out act[T, H·D]. A query at position p sees positions max(0, p - window + 1) … p of its own
        chunk's block table; window 0 sees all. Not causal: p - window … p + window, up to the chunk's last; window 0
        all of these. Query head h reads key/value head h // (H / G). In bfloat16 the
        probabilities are rounded before they meet the values (over quantized ones, see `KVShape`); their sum is not.
        scale > 0. soft_cap c > 0: a scaled score becomes c · tanh(score / c). sinks float32[H]: a score of each head,
        neither scaled nor capped, that takes its share of the probabilities and has no value. position_bias float32[H ·
        (2·L + 63)], not of causal attention: to the scaled score of head h, of a query at p and a key at k, which are
        less than L, number k - p + L - 1 of the head's is added; its last 64 are never meant."""


class RecurrentOperations(Protocol):
    """On what recurrent layers keep of a row (`LayerState`): each chunk goes on from its row's state and leaves it
    behind, and copies of it where snapshots are due (`StateMetadata`)."""

    def convolve(self, x: Activation, layer: int, weight: Vector, out: Activation) -> None:
        """x float32[T, at least C], of which the first C numbers are the inputs of a depthwise convolution over the
        last K = inputs + 1 tokens (`LayerState`), C its channels → out float32[T, C] = silu of its sums.

        weight float32[K · C], of the oldest input first. Inputs are rounded to `act`; those before a chunk are its
        row's state, or 0 where it begins at position 0. Sums are float32, from the oldest input on. The last inputs are
        left in the state, and in snapshots as they are due."""

    def convolve_gated(self, x: Activation, layer: int, weight: Vector, bias: Vector | None, out: Activation) -> None:
        """x float32[T, 3 · C], the numbers B of all channels, then G, then X → out act[T, C] = G · (sums + bias), where
        the inputs are B · X; else as `convolve`."""

    def delta_rule(
        self,
        qkv: Activation,
        projected: Activation,
        gates: Activation,
        layer: int,
        key_heads: int,
        decay: Vector,
        step_bias: Vector,
        norm: Vector,
        eps: float,
        out: Activation,
    ) -> None:
        """Apply the gated delta rule of H heads with a state S float32[key_dim, value_dim] each, token by token, and a
        gated norm of its outputs (Yang et al., "Gated Delta Networks", 2024).

        qkv float32[T, C]: queries and keys of `key_heads` heads, values of H. projected float32[T, C + H · value_dim]:
        behind its first C numbers the gate z of each value. gates float32[T, 2 · H]: b and a of each head. decay,
        step_bias float32[H]; norm float32[value_dim]. A head of keys serves H / key_heads neighbouring heads.

        q and k are divided by sqrt(Σ x² + 10⁻⁶), q by sqrt(key_dim) too; β = sigmoid(b); d = exp(decay · softplus(a +
        step_bias)). S ← d · S + k ⊗ β (v - d · kS); o = qS. out act[T, H · value_dim] = o / sqrt(mean(o²) + eps) · norm
        · silu(z). Everything before `out` is float32. A chunk that begins at position 0 has S = 0 before it; what S is
        after it, and where snapshots are due, is left as by `convolve`."""
