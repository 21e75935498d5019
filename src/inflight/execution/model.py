"""The forward pass of every supported family, on one page.

A model embeds its tokens; each of its layers is a mixer (`mixers`) and an MLP (`mlps`) with norms around them, which
add to the residual stream; a norm and a product make logits of it, or a pooler makes vectors of texts. All of this runs
once, when weights are there, and records the operations (`ops`) of a pass, which a backend compiles; a pass runs them.

The residual stream and the logits are float32; activations between are in the backend's own format (`act`).
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence

from inflight.execution import ops
from inflight.execution.backends.protocol import Activation, Backend, ForwardPass, Linear
from inflight.execution.layers.norm import NormWeights
from inflight.execution.packer import WeightSlice
from inflight.execution.program import Program, Workspace
from inflight.execution.weights import LayerWeights, ModelWeights
from inflight.models.spec import Head, ModelSpec

SPAN = 2  # layers between two places where a pass may rest: fewer cost 0.1 % of a step and more


class Model:
    """Runs passes one after the other: their activations are the same memory."""

    def __init__(
        self,
        spec: ModelSpec,
        weights: ModelWeights,
        backend: Backend,
        max_tokens: int,
        max_logit_rows: int,
        rows: Workspace | None = None,
    ) -> None:
        """Record the passes. max_tokens: of a pass. max_logit_rows: of one call to `logits`. rows: memory for so many,
        of another model; None: its own."""
        self.weights, self.max_tokens, self.max_logit_rows = weights, max_tokens, max_logit_rows
        self._spec, self._backend = spec, backend
        self._tokens = Workspace(backend.activation, max_tokens)  # a row for each token of a pass
        # A row for each position or text that is asked for.
        self._rows = rows or Workspace(backend.activation, max_logit_rows)
        self._hidden = self._tokens.take("hidden", spec.hidden_size, "float32")  # [T, E], the residual stream
        self._taps = {len(weights.layers): self._hidden}  # by the layer that reads it
        self._between_layers: Callable[[], None] | None = None
        self._layer_done: Callable[[int], None] | None = None
        self._logits_of: ForwardPass | None = None  # the pass whose logits of all tokens came with its layers
        self._to_logits = Program(self._rows)
        if spec.head is not None and weights.output is not None and weights.final_norm is not None:
            self._record_logits(spec.head, weights.output, weights.final_norm)
        if weights.pooler is not None:
            self._record_pooling()
        self._record_layers()

    def _record_layers(self) -> None:
        hidden, normed = self._hidden, self._tokens.take("normed", self._spec.hidden_size)  # act[T, E]
        weights, layers = self.weights, list[Program]()
        program = Program(self._tokens)
        weights.embedding.forward(program, hidden, normed)
        if weights.token_inputs is not None:
            weights.token_inputs.forward(program, hidden, normed)
        if weights.layers[0].mixer_sum is not None and weights.embedding.norm is None:
            ops.to_act(program, hidden, normed)
        for number, layer in enumerate(weights.layers):
            if number in self._taps:
                ops.clear(program, self._taps[number])
                ops.add(program, hidden, None, 0.0, 1.0, self._taps[number])
            record_layer(program, layer, hidden, normed)
            layers.append(program)
            program = Program(self._tokens)
        self._by_layer = [self._backend.compile(layer) for layer in layers]
        spans = [layers[first : first + SPAN] for first in range(0, len(layers), SPAN)]
        self._spans = [(len(span), self._backend.compile(Program.joined(span))) for span in spans]
        self._layers = self._backend.compile(Program.joined(layers))
        self._layers_and_logits = self._backend.compile(Program.joined([*layers, self._to_logits]))

    def _record_logits(self, head: Head, output: Linear, final_norm: NormWeights) -> None:
        spec, program = self._spec, self._to_logits
        gathered = program.take("gathered", spec.hidden_size, "float32")  # [S, E]
        normed = program.take("final_normed", spec.hidden_size)  # act[S, E]
        self._logits = program.take("logits", spec.vocab_size, "float32")  # [S, V]
        ops.gather(program, self._hidden, gathered)
        final_norm.forward(program, gathered, normed)
        ops.linear(program, normed, output, self._logits)
        if head.scale != 1:
            ops.scale(program, self._logits, head.scale)
        if head.soft_cap:
            ops.soft_cap(program, self._logits, head.soft_cap)
        self._compute_logits = self._backend.compile(program)

    def _record_pooling(self) -> None:
        assert self.weights.pooler is not None
        tokens, texts = Program(self._tokens), Program(self._rows)
        self._pooled = self.weights.pooler.forward(tokens, texts, self._hidden, self._spec.hidden_size)
        self._pooling = self._backend.compile(tokens), self._backend.compile(texts)

    def forward(self, batch: ForwardPass) -> None:
        """Compute all layers for the pass's tokens and write their keys and values. Where each token is drawn behind,
        their logits are computed in the same run. Raises ValueError for more tokens than the model was made for."""
        self._logits_of = None
        self._check_size(batch)
        if self._between_layers is None and self._layer_done is None:
            if batch.draws_all and batch.num_tokens <= self.max_logit_rows:
                batch.run(self._layers_and_logits, range(batch.num_tokens))
                self._logits_of = batch
            else:
                batch.run(self._layers)
            return
        for number, layer in enumerate(self._by_layer):
            if number and self._between_layers is not None:
                self._between_layers()
            batch.run(layer)
            if self._layer_done is not None:
                self._layer_done(number)

    def spans(self, batch: ForwardPass) -> Iterator[int]:
        """Compute all layers as `forward` does, and yield after each few of them how many these were, but after the
        last. Another pass must not be run by this model meanwhile, but may be by one of other activations (`beside`).
        """
        self._logits_of = None
        self._check_size(batch)
        for number, (length, span) in enumerate(self._spans, 1):
            batch.run(span)
            if number < len(self._spans):
                yield length

    def beside(self, max_tokens: int) -> Model:
        """Return a model of the same weights with activations of its own, for passes of at most so many tokens that
        are run while a pass of this one rests between two layers. They share the memory behind the layers."""
        return Model(self._spec, self.weights, self._backend, max_tokens, self.max_logit_rows, self._rows)

    def _check_size(self, batch: ForwardPass) -> None:
        if batch.num_tokens > self.max_tokens:
            raise ValueError(f"a step of {batch.num_tokens} tokens does not fit a decoder made for {self.max_tokens}")

    def logits(self, batch: ForwardPass, places: Sequence[int]) -> Activation:
        """Return logits float32[S, V] after the tokens at `places` (indices into the pass's tokens), computed for these
        alone; the next call overwrites them. Raises ValueError for more than the model was made for."""
        if len(places) > self.max_logit_rows:
            raise ValueError(
                f"logits of {len(places)} rows do not fit a decoder made for {self.max_logit_rows}; ask in slabs"
            )
        is_computed = self._logits_of is batch and list(places) == list(range(batch.num_tokens))
        self._logits_of = None  # the caller may overwrite them
        if not is_computed:
            batch.run(self._compute_logits, places)
        return self._logits

    def pooled(self, batch: ForwardPass, texts: Sequence[range]) -> Activation:
        """Return the vectors or scores of texts, each a range of the pass's tokens: float32[S, N], which the next call
        overwrites. Raises ValueError for more texts than the model was made for."""
        assert self.weights.pooler is not None, "only for models that pool texts"
        if len(texts) > self.max_logit_rows:
            raise ValueError(
                f"{len(texts)} texts do not fit a decoder made for {self.max_logit_rows} at once; ask in slabs"
            )
        of_tokens, of_texts = self._pooling
        batch.run(of_tokens, texts=texts)
        batch.run(of_texts, [self.weights.pooler.token_of(text) for text in texts])
        return self._pooled

    def taps(self, layers: Sequence[int]) -> list[Activation]:
        """Copy the residual streams that these layers read, float32[T, E] each, in each later pass, and return the
        copies. The number of layers as index stands for the last layer's output, which is the stream itself."""
        if new := [one for one in layers if one not in self._taps]:
            for layer in new:
                self._taps[layer] = self._tokens.take(f"tap {layer}", self._spec.hidden_size, "float32")
            self._record_layers()
        return [self._taps[layer] for layer in layers]

    def pauses(self, between: Callable[[], None]) -> None:
        """Call `between` between two layers of each later pass: others may compute on the same cores meanwhile."""
        self._between_layers = between

    def watch_layers(self, done: Callable[[int], None]) -> None:
        """Call `done` with a layer's number in each later pass, once the backend has all of the layer's work."""
        self._layer_done = done

    @property
    def weight_slices(self) -> Mapping[str, WeightSlice]:
        return self.weights.weight_slices

    @property
    def nbytes(self) -> int:
        """Bytes of activation memory."""
        return self._tokens.nbytes + self._rows.nbytes


def record_layer(program: Program, layer: LayerWeights, hidden: Activation, normed: Activation) -> None:
    """Record a layer over the residual stream hidden float32[T, E]: the mixer and its norms, the MLP and its norms, and
    the parts that few families have behind it. normed: act[T, E], written and read."""
    if layer.mixer_sum is not None and layer.mlp_sum is not None:
        layer.mixer.forward(program, normed, hidden)
        layer.mixer_sum.forward_sum(program, hidden, normed)
        layer.mlp.forward(program, normed, hidden)
        layer.mlp_sum.forward_sum(program, hidden, normed)
        return
    _read(program, layer.mixer_norm, hidden, normed)
    layer.mixer.forward(program, normed, hidden)
    if not layer.spec.side_by_side:
        _read(program, layer.mlp_norm, hidden, normed)
    layer.mlp.forward(program, normed, hidden)
    if layer.token_input is not None:
        layer.token_input.forward(program, hidden, normed)
    if layer.scalar != 1:
        ops.scale(program, hidden, layer.scalar)


def _read(program: Program, norm: NormWeights | None, hidden: Activation, normed: Activation) -> None:
    """Write a part's input, normed act[T, E]: the residual stream, normed if the part has a norm."""
    if norm is not None:
        norm.forward(program, hidden, normed)
    else:
        ops.to_act(program, hidden, normed)
