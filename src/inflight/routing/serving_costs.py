"""What serving costs on one replica, in seconds: three numbers out of the step-time model that its scheduler uses.

They are asked of any model of `Features`: the engine's own, learnt from its steps (`core.estimation.latency`), or a
simulated device's (`simulate.steps`), so that the router reckons with what the scheduler reckons with.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

from inflight.core.types.features import Features

_CHUNK = 512  # prompt tokens that a step is asked about
_CONTEXT = 1024  # positions that each row reads


@dataclass(frozen=True, slots=True)
class ServingCosts:
    """prompt_token: of one more prompt token. step: of a step that decodes one row. row: of one more decoding row.
    max_num_seqs: rows that run at once."""

    prompt_token: float
    step: float
    row: float
    max_num_seqs: int

    @classmethod
    def probed(cls, seconds: Callable[[Features], float], max_num_seqs: int) -> ServingCosts:
        """seconds: of a step that holds this."""
        rows = max(2, min(max_num_seqs, 64))
        one = seconds(_decodes(1))
        row = max(0.0, seconds(_decodes(rows)) - one) / (rows - 1)
        chunk = seconds(Features(1 + _CHUNK, 2, 2, _CONTEXT, _CHUNK * _CHUNK / 2)) - one
        return cls(max(chunk, 0.0) / _CHUNK, one, row, max_num_seqs)

    def prefill(self, tokens: float) -> float:
        return tokens * self.prompt_token

    def decode_step(self, rows: float) -> float:
        return self.step + (rows - 1) * self.row


def _decodes(rows: int) -> Features:
    return Features(rows, rows, rows, rows * _CONTEXT, 0.0)


UNKNOWN = ServingCosts(prompt_token=1e-4, step=1e-2, row=5e-5, max_num_seqs=256)  # the relations are a large GPU's
