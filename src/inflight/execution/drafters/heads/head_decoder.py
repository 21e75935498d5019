"""The decoder of a head: passes over what the model has computed, and over what the head itself makes of it.

Knows the head's operations in their order; not whose tokens these are. In a pass, row by row, there are a token and a
hidden state: the model's (`take_taps`), or one that the head's pass before has yielded (`take_own`).
"""

from __future__ import annotations

from collections.abc import Sequence

from inflight.execution.backends.protocol import Activation, Backend, ForwardPass
from inflight.execution.decoder import bound_layer
from inflight.execution.drafters.heads.head import HeadWeights
from inflight.execution.layers.norm import NormWeights
from inflight.execution.layers.workspace import Workspace


class HeadDecoder:
    """Runs passes one after the other, as the model's decoder does (`pass_decoder.PassDecoder`)."""

    def __init__(self, head: HeadWeights, backend: Backend, tap_width: int, max_tokens: int, max_logit_rows: int):
        """tap_width: of the model's residual stream."""
        self.head, self.max_tokens, self.max_logit_rows = head, max_tokens, max_logit_rows
        width = head.hidden_size
        self._workspace = work = Workspace(backend, max_tokens)
        self._tapped = work.take("tapped", tap_width, "float32")
        self._tapped_act = work.take("tapped act", tap_width)
        self._own = work.take("own", width, "float32")  # what the pass before yielded, of those that go on
        self._state = work.take("state", width, "float32")  # [T, E], the hidden state that is read
        self._token = work.take("token", width)  # [T, E], the normed embedding
        self._embedded = work.take("embedded", width, "float32")
        # Where token and state are joined that begins a residual stream; else the state itself is one.
        self._hidden = self._state if head.join is None else work.take("hidden", width, "float32")
        self._normed = work.take("normed", width)
        self._read_token = head.token_norm.bind(self._embedded, self._token)
        self._read_state = None if head.hidden_norm is None else head.hidden_norm.bind(self._state, self._normed)
        self._steps = bound_layer(head.layer, work, self._hidden, self._normed, width)
        self._gathered = backend.activation(max_logit_rows, width, "float32")
        self._final_normed = backend.activation(max_logit_rows, width, "act")
        self._final_norm = head.final_norm.bind(self._gathered, self._final_normed)
        self._logits = backend.activation(max_logit_rows, head.output.rows, "float32")
        self._spread = None
        if head.token_ids is not None:
            self._spread = backend.spread(head.token_ids, head.vocab_size, max_logit_rows)

    def take_taps(self, batch: ForwardPass, taps: Sequence[Activation], places: Sequence[int]) -> None:
        """Take the model's hidden states, rows `places` of each tap, float32[…, M], as input of the next pass."""
        places = _for_all(batch, places)
        if not self.head.combine:
            batch.gather(taps[0], places, self._tapped)
            self._hold(batch, self._tapped, self.head.tap_norm)
        for index, (tap, weight) in enumerate(zip(taps, self.head.combine, strict=False)):
            batch.gather(tap, places, self._tapped)
            batch.to_act(self._tapped, self._tapped_act)
            (batch.linear if index == 0 else batch.linear_residual)(self._tapped_act, weight, self._state)

    def take_own(self, batch: ForwardPass, places: Sequence[int]) -> None:
        """They are what the head's pass before yielded at `places`."""
        batch.gather(self._hidden, _for_all(batch, places), self._own)
        self._hold(batch, self._own, self.head.own_norm)

    def forward(self, batch: ForwardPass) -> None:
        """Compute the pass, behind one of the above, and write the head's keys and values."""
        head = self.head
        batch.embed(head.table, self._embedded)
        if head.embedding_scale != 1:
            batch.scale(self._embedded, head.embedding_scale)
        self._read_token(batch)
        if self._read_state is not None:
            self._read_state(batch)
        if head.join is not None:
            of_token, of_state = head.join
            batch.linear(self._token, of_token, self._hidden)
            batch.linear_residual(self._normed, of_state, self._hidden)
        for step in self._steps:
            step(batch)

    def last_hidden(self, batch: ForwardPass, places: Sequence[int]) -> Activation:
        """Return the last hidden states of the tokens at `places`, normed as for logits: act[S, E]."""
        batch.gather(self._hidden, places, self._gathered)
        self._final_norm(batch)
        return self._final_normed

    def logits(self, batch: ForwardPass, places: Sequence[int]) -> Activation:
        """Over the model's vocabulary, float32[S, V], -inf for what the head has no logit of."""
        rule = self.head.logit_rule
        batch.linear(self.last_hidden(batch, places), self.head.output, self._logits)
        if rule.scale != 1:
            batch.scale(self._logits, rule.scale)
        if rule.soft_cap:
            batch.soft_cap(self._logits, rule.soft_cap)
        return self._logits if self._spread is None else self._spread(self._logits, len(places))

    def _hold(self, batch: ForwardPass, x: Activation, norm: NormWeights | None) -> None:
        """As the hidden states that are read."""
        batch.clear(self._state)
        batch.add(x, None if norm is None else norm.weight, 0.0 if norm is None else norm.eps, 1.0, self._state)


def _for_all(batch: ForwardPass, places: Sequence[int]) -> list[int]:
    """Extend places to a padded pass; which states padding tokens read does not matter."""
    return [*places, *[0] * (batch.num_tokens - len(places))]
