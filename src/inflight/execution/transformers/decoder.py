"""Passes through the modules of a model: the decoder of `--backend transformers`.

Calls the library's causal language models. The layers and the projection to logits are called separately, so
that logits are computed for the places that are wanted alone: the model's own `forward` is called a second time, over a
base model that answers with those rows.
"""

from __future__ import annotations

import copy
from collections.abc import Mapping, Sequence
from typing import Any

import torch

from inflight.execution.packer import WeightPlace
from inflight.execution.transformers.backend import Rows, TransformersPass


class TransformersDecoder:
    nbytes = 0  # activations are torch's, and go with each pass
    places: Mapping[str, WeightPlace] = {}  # weights are the modules' own

    def __init__(self, modules: Any, max_tokens: int, max_logit_rows: int) -> None:
        self.max_tokens, self.max_logit_rows = max_tokens, max_logit_rows
        self._base = modules.base_model
        self._answer = _Answer()
        self._head = copy.copy(modules)
        self._head._modules = {**modules._modules, modules.base_model_prefix: self._answer}
        self._found: Any = None  # what the base model answered for the pass

    @torch.inference_mode()
    def forward(self, batch: TransformersPass) -> None:
        """Compute all layers for the pass's tokens and write their keys and values. Raises ValueError for more tokens
        than the decoder was made for."""
        if batch.num_tokens > self.max_tokens:
            raise ValueError(f"a step of {batch.num_tokens} tokens does not fit a decoder made for {self.max_tokens}")
        self._found = self._base(
            input_ids=batch.token_ids[None], position_ids=batch.positions[None], use_cache=False, paged=batch.paged
        )

    def pooled(self, batch: TransformersPass, texts: Sequence[range]) -> Rows:
        """Return the last layer's output for each text's last token, final norm applied: float32[S, E]."""
        return Rows(self._found.last_hidden_state[0, [text[-1] for text in texts]].float().numpy())

    @torch.inference_mode()
    def logits(self, batch: TransformersPass, places: Sequence[int]) -> Rows:
        """float32[S, V] after the tokens at `places`."""
        if len(places) > self.max_logit_rows:
            raise ValueError(
                f"logits of {len(places)} rows do not fit a decoder made for {self.max_logit_rows}; ask in slabs"
            )
        self._answer.found = copy.copy(self._found)
        self._answer.found["last_hidden_state"] = self._found.last_hidden_state[:, list(places)]
        found = self._head(input_ids=batch.token_ids[None, : len(places)], use_cache=False).logits[0]
        return Rows(found.float().contiguous().numpy())


class _Answer(torch.nn.Module):
    """A base model that has the answer already, whichever of its parts is asked for it."""

    found: Any

    def __getattr__(self, name: str) -> Any:
        return self if name in ("decoder", "language_model") else super().__getattr__(name)

    def forward(self, *arguments: object, **named: object) -> Any:
        return self.found
