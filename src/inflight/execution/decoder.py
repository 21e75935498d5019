"""The decoder: one forward pass of every supported family, written once over the backend's operations.

Knows the residual stream, and that a layer is a mixer and an MLP with norms around them (`layers` has the kinds of
both). Does not know what a request or a plan is, how a token is chosen, which device computes, or what an activation
looks like there.

The residual stream and the logits are float32; activations between are in the backend's own format (`act`).
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence

from inflight.execution.backends.protocol import Activation, Backend, ForwardPass
from inflight.execution.layers.norm import NormWeights
from inflight.execution.layers.workspace import Workspace
from inflight.execution.packer import WeightPlace
from inflight.execution.weights import LayerWeights, ModelWeights
from inflight.models.spec import ModelSpec


class Decoder:
    """Runs passes, one after the other: their activations are the same memory."""

    def __init__(
        self, model: ModelSpec, weights: ModelWeights, backend: Backend, max_tokens: int, max_logit_rows: int
    ) -> None:
        """`max_tokens` of one pass, `max_logit_rows` of one call to `logits`."""
        self.weights, self._head = weights, model.head
        self.max_tokens = max_tokens
        self.max_logit_rows = max_logit_rows
        hidden = model.hidden_size
        self._workspace = Workspace(backend, max_tokens)
        self._hidden = self._workspace.take("hidden", hidden, "float32")  # [T, E], the residual stream
        self._normed = self._workspace.take("normed", hidden)  # [T, E]
        layers = [bound_layer(layer, self._workspace, self._hidden, self._normed, hidden) for layer in weights.layers]
        self._embed = weights.embedding.bind(self._hidden, self._normed)
        if weights.layers[0].mixer_sum is not None and weights.embedding.norm is None:
            layers[0].insert(0, lambda batch: batch.to_act(self._hidden, self._normed))
        if weights.token_inputs is not None:
            layers[0].insert(0, weights.token_inputs.bind(self._workspace, self._hidden, self._normed))
        self._by_layer = layers
        self._between: Callable[[], None] | None = None
        self._layer_done: Callable[[int], None] | None = None
        self._steps = self._in_order()
        self._pooling = None
        if weights.pooler is not None:
            self._pooling = weights.pooler.bind(self._workspace, backend, self._hidden, hidden, max_logit_rows)
        self._gathered = backend.activation(max_logit_rows, hidden, "float32")
        self._final_normed = backend.activation(max_logit_rows, hidden, "act")
        self._logits = backend.activation(max_logit_rows if model.head is not None else 0, model.vocab_size, "float32")
        norm = weights.final_norm
        self._final_norm = None if norm is None else norm.bind(self._gathered, self._final_normed)

    @property
    def places(self) -> Mapping[str, WeightPlace]:
        return self.weights.places

    @property
    def nbytes(self) -> int:
        """Bytes of activation memory."""
        of_rows = (self._gathered, self._final_normed, self._logits)
        return self._workspace.nbytes + sum(one.nbytes for one in of_rows)

    def forward(self, batch: ForwardPass) -> None:
        """Compute all layers for the pass's tokens and write their keys and values. Raises ValueError for more tokens
        than the decoder was made for."""
        if batch.num_tokens > self.max_tokens:
            raise ValueError(f"a step of {batch.num_tokens} tokens does not fit a decoder made for {self.max_tokens}")
        self._embed(batch)
        for step in self._steps:
            step(batch)

    def last_hidden(self, batch: ForwardPass, places: Sequence[int]) -> Activation:
        """Return the last layer's output for the tokens at `places` (indices into the pass's tokens), final norm
        applied: act[S, E], which the next call overwrites."""
        batch.gather(self._hidden, places, self._gathered)
        assert self._final_norm is not None, "of a model that continues texts, or drafts for one"
        self._final_norm(batch)
        return self._final_normed

    def pooled(self, batch: ForwardPass, texts: Sequence[range]) -> Activation:
        """Return the vectors or scores of texts, each a range of the pass's tokens: float32[S, N], which the next call
        overwrites. Raises ValueError for more texts than the decoder was made for."""
        assert self._pooling is not None, "only for models that pool texts"
        if len(texts) > self.max_logit_rows:
            raise ValueError(
                f"{len(texts)} texts do not fit a decoder made for {self.max_logit_rows} at once; ask in slabs"
            )
        return self._pooling(batch, texts)

    def logits(self, batch: ForwardPass, places: Sequence[int]) -> Activation:
        """Logits float32[S, V] after the tokens at `places`, computed for these alone; the next call overwrites them.
        Raises ValueError for more than the decoder was made for."""
        if len(places) > self.max_logit_rows:
            raise ValueError(
                f"logits of {len(places)} rows do not fit a decoder made for {self.max_logit_rows}; ask in slabs"
            )
        assert self._head is not None and self.weights.output is not None, "asked of models that continue texts"
        batch.linear(self.last_hidden(batch, places), self.weights.output, self._logits)
        if self._head.scale != 1:
            batch.scale(self._logits, self._head.scale)
        if self._head.soft_cap:
            batch.soft_cap(self._logits, self._head.soft_cap)
        return self._logits

    def tap(self, layer: int) -> Activation:
        """Copy the residual stream that this layer reads, float32[T, E], in each later pass, and return the copy. The
        number of layers as index stands for the last layer's output, which is the stream itself."""
        if layer == len(self._by_layer):
            return self._hidden
        hidden = self._hidden
        copy = self._workspace.take(f"tap {layer}", self.weights.table.columns, "float32")

        def leave_copy(batch: ForwardPass) -> None:
            batch.clear(copy)
            batch.add(hidden, None, 0.0, 1.0, copy)

        self._by_layer[layer].insert(0, leave_copy)
        self._steps = self._in_order()
        return copy

    def pauses(self, between: Callable[[], None]) -> None:
        """From now on called between two layers of each pass: others may compute on the same cores meanwhile."""
        self._between = between
        self._steps = self._in_order()

    def watch_layers(self, done: Callable[[int], None]) -> None:
        """Call `done` with a layer's number in each later pass, once the backend has all of the layer's work."""
        self._layer_done = done
        self._steps = self._in_order()

    def _in_order(self) -> list[Callable[[ForwardPass], None]]:
        """List all layers' steps, the pauses between layers, and the calls that report a layer as done."""
        steps: list[Callable[[ForwardPass], None]] = []
        for number, layer in enumerate(self._by_layer):
            if number and (between := self._between) is not None:
                steps.append(lambda _, between=between: between())  # type: ignore[misc]
            steps += layer
            if (done := self._layer_done) is not None:
                steps.append(lambda _, done=done, number=number: done(number))  # type: ignore[misc]
        return steps


def bound_layer(
    layer: LayerWeights, workspace: Workspace, hidden: Activation, normed: Activation, hidden_size: int
) -> list[Callable[[ForwardPass], None]]:
    """Build a layer's steps over the residual stream float32[T, E]: the mixer and its norms, the MLP and its norms, and
    what few families have behind it. normed: act[T, E], written and read."""
    mixer, mlp = layer.mixer.bind(workspace, hidden_size), layer.mlp.bind(workspace, hidden_size)
    if layer.mixer_sum is not None and layer.mlp_sum is not None:
        return [
            lambda batch: mixer(batch, normed, hidden),
            layer.mixer_sum.bind_sum(hidden, normed),
            lambda batch: mlp(batch, normed, hidden),
            layer.mlp_sum.bind_sum(hidden, normed),
        ]
    steps = [_reads(layer.mixer_norm, hidden, normed), lambda batch: mixer(batch, normed, hidden)]
    if not layer.spec.side_by_side:
        steps.append(_reads(layer.mlp_norm, hidden, normed))
    steps.append(lambda batch: mlp(batch, normed, hidden))
    if layer.token_input is not None:
        steps.append(layer.token_input.bind(workspace, hidden, normed, hidden_size))
    if (scalar := layer.scalar) != 1:
        steps.append(lambda batch: batch.scale(hidden, scalar))
    return steps


def _reads(norm: NormWeights | None, hidden: Activation, normed: Activation) -> Callable[[ForwardPass], None]:
    """Return a step that writes a part's input, act[T, E]: the residual stream, normed if the part has a norm."""
    return norm.bind(hidden, normed) if norm is not None else lambda batch: batch.to_act(hidden, normed)
