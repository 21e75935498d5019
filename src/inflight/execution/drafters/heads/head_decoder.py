"""The decoder of a head: passes over what the model has computed, and over what the head itself makes of it.

In a pass, row by row, there are a token and a hidden state: the model's (`take_taps`), or one that the head's pass
before has yielded (`take_own`).
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from inflight.execution import ops
from inflight.execution.backends.protocol import Activation, Backend, ForwardPass
from inflight.execution.drafters.heads.head import HeadWeights
from inflight.execution.layers.norm import NormWeights
from inflight.execution.model import record_layer
from inflight.execution.program import Program, Workspace


class HeadDecoder:
    """Runs passes one after the other, as the model does (`passes.PassDecoder`)."""

    def __init__(self, head: HeadWeights, backend: Backend, tap_width: int, max_tokens: int, max_logit_rows: int):
        """tap_width: of the model's residual stream."""
        self.head, self.max_tokens, self.max_logit_rows = head, max_tokens, max_logit_rows
        self._backend, self._tap_width = backend, tap_width
        self._tokens, self._rows = (
            Workspace(backend.activation, max_tokens),
            Workspace(backend.activation, max_logit_rows),
        )
        take, width = self._tokens.take, head.hidden_size
        self._state = take("state", width, "float32")  # [T, E], the hidden state that is read
        # Where token and state are joined that begins a residual stream; else the state itself is one.
        self._hidden = self._state if head.join is None else take("hidden", width, "float32")
        self._to_own = self._record_own()
        self._layers = self._record_layers()
        self._to_logits = self._record_logits()
        self._from_taps: dict[tuple[int, ...], Any] = {}  # by the taps' identities
        self._spread = None
        if head.token_ids is not None:
            self._spread = backend.spread(head.token_ids, head.vocab_size, max_logit_rows)

    def take_taps(self, batch: ForwardPass, taps: Sequence[Activation], places: Sequence[int]) -> None:
        """Take the model's hidden states, rows `places` of each tap, float32[…, M], as input of the next pass."""
        key = tuple(map(id, taps))
        if key not in self._from_taps:
            self._from_taps[key] = self._record_taps(taps)
        batch.run(self._from_taps[key], _for_all(batch, places))

    def take_own(self, batch: ForwardPass, places: Sequence[int]) -> None:
        """Take the rows at `places` that the head's pass before yielded."""
        batch.run(self._to_own, _for_all(batch, places))

    def forward(self, batch: ForwardPass) -> None:
        """Compute the pass, behind one of the above, and write the head's keys and values."""
        batch.run(self._layers)

    def logits(self, batch: ForwardPass, places: Sequence[int]) -> Activation:
        """Return logits over the model's vocabulary, float32[S, V], -inf for tokens that the head does not have."""
        batch.run(self._to_logits, places)
        return self._logits if self._spread is None else self._spread(self._logits, len(places))

    def _record_taps(self, taps: Sequence[Activation]) -> Any:
        program = Program(self._tokens)
        tapped = program.take("tapped", self._tap_width, "float32")
        if not self.head.combine:
            ops.gather(program, taps[0], tapped)
            self._hold(program, tapped, self.head.tap_norm)
        else:
            read = program.take("tapped act", self._tap_width)
            for index, (tap, weight) in enumerate(zip(taps, self.head.combine, strict=True)):
                ops.gather(program, tap, tapped)
                ops.to_act(program, tapped, read)
                (ops.linear if index == 0 else ops.linear_residual)(program, read, weight, self._state)
        return self._backend.compile(program)

    def _record_own(self) -> Any:
        program = Program(self._tokens)
        own = program.take("own", self.head.hidden_size, "float32")  # yielded by the pass before, of those that go on
        ops.gather(program, self._hidden, own)
        self._hold(program, own, self.head.own_norm)
        return self._backend.compile(program)

    def _record_layers(self) -> Any:
        head, program = self.head, Program(self._tokens)
        width = head.hidden_size
        token, normed = program.take("token", width), program.take("normed", width)  # act[T, E]
        embedded = program.take("embedded", width, "float32")
        ops.embed(program, head.table, embedded)
        if head.embedding_scale != 1:
            ops.scale(program, embedded, head.embedding_scale)
        head.token_norm.forward(program, embedded, token)
        if head.hidden_norm is not None:
            head.hidden_norm.forward(program, self._state, normed)
        if head.join is not None:
            of_token, of_state = head.join
            ops.linear(program, token, of_token, self._hidden)
            ops.linear_residual(program, normed, of_state, self._hidden)
        record_layer(program, head.layer, self._hidden, normed)
        return self._backend.compile(program)

    def _record_logits(self) -> Any:
        head, program = self.head, Program(self._rows)
        gathered = program.take("gathered", head.hidden_size, "float32")
        normed = program.take("final_normed", head.hidden_size)
        self._logits = program.take("logits", head.output.rows, "float32")
        ops.gather(program, self._hidden, gathered)
        head.final_norm.forward(program, gathered, normed)
        ops.linear(program, normed, head.output, self._logits)
        if head.logit_rule.scale != 1:
            ops.scale(program, self._logits, head.logit_rule.scale)
        if head.logit_rule.soft_cap:
            ops.soft_cap(program, self._logits, head.logit_rule.soft_cap)
        return self._backend.compile(program)

    def _hold(self, program: Program, x: Activation, norm: NormWeights | None) -> None:
        """Hold x float32[T, E] as the hidden states that are read, normed where there is a norm."""
        ops.clear(program, self._state)
        weight, eps = (None, 0.0) if norm is None else (norm.weight, norm.eps)
        ops.add(program, x, weight, eps, 1.0, self._state)


def _for_all(batch: ForwardPass, places: Sequence[int]) -> list[int]:
    """Extend places to a padded pass; which states padding tokens read does not matter."""
    return [*places, *[0] * (batch.num_tokens - len(places))]
