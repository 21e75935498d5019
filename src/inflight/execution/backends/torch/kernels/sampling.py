"""Draws on a GPU: which kernels a batch of rows goes through, by what its rows ask for.

`SamplingBatch` has the order of work. Greedy rows cost one read of the logits, and log-probabilities beside come of the
same one if nothing changes the logits; draws among all tokens cost a read and a write, and filtered ones (`candidates`)
two reads more. Nothing is read back by the host: rows that a shorter way does not serve are left to the next kernel,
whose other programs end at once.
"""

from __future__ import annotations

from torch import Tensor

from inflight.execution.backends.torch.kernels.biases import add_biases
from inflight.execution.backends.torch.kernels.candidates import draw_filtered
from inflight.execution.backends.torch.kernels.drawing import choose
from inflight.execution.backends.torch.kernels.logit_blocks import read_for_draw, read_untouched
from inflight.execution.backends.torch.kernels.logprobs import report
from inflight.execution.backends.torch.sampling_tensors import Drawn, Draws


def sample(logits: Tensor, draws: Draws) -> Drawn:
    may_ban = draws.allowed is not None or draws.bias is not None or draws.bad is not None
    are_changed = may_ban or draws.needs_history or not draws.greedy
    untouched = read_untouched(logits, draws.top_logprobs) if may_ban or draws.want_logprobs else None
    if are_changed or untouched is None:
        scaled = logits.clone() if are_changed and draws.want_logprobs else logits
        add_biases(scaled, draws)
        blocks = read_for_draw(scaled, draws)
    else:
        scaled, blocks = logits, untouched
    chosen = choose(scaled, blocks, untouched, draws)
    if draws.filters and not draws.greedy:
        draw_filtered(scaled, blocks, draws, chosen.token_ids)
    if untouched is None or not draws.want_logprobs:
        return Drawn(*chosen, None, None, None)
    return Drawn(*chosen, *report(logits, untouched, chosen.token_ids, draws.top_logprobs))
