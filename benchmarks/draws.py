"""How many of a million draws on a device are the CPU's, token by token; and whether every other one is a tie.

Rows of random logits are drawn from by the kernels of the CPU and by the operations of a device, from the same words of
the generator, greedily, among all tokens and with filters. Sums in another order differ in their last bits: a draw that
falls there between two tokens may go either way. A difference counts as such a tie if moving the draw, or what a filter
keeps, by no more than rounding makes the definition take the device's token, too.

    nice python -m benchmarks.draws [--device cuda] [--draws 1000000] [--vocabulary 151936]
"""

from __future__ import annotations

import argparse
import sys
from collections.abc import Callable
from dataclasses import dataclass, replace
from typing import NamedTuple

import numpy as np
import torch

from benchmarks.results import table
from inflight.execution.backends.native import NativeBackend
from inflight.execution.backends.protocol import Array, SamplingBatch
from inflight.execution.backends.torch.definitions import Definitions
from inflight.execution.backends.torch.sampling_tensors import Drawn, Draws, DrawSettings
from inflight.execution.ops.sampling import uniform

ROWS = 64  # of one batch
ROUNDING = 2.0**-52  # of a sum, for each token in it


class Kind(NamedTuple):
    name: str
    temperature: float = 1.0
    top_k: int = 0
    top_p: float = 1.0
    min_p: float = 0.0


KINDS = (
    Kind("greedy", temperature=0.0),
    Kind("among all tokens"),
    Kind("among all tokens, hot", temperature=2.0),
    Kind("top-k 50", temperature=0.8, top_k=50),
    Kind("top-p 0.9", top_p=0.9),
    Kind("min-p 0.05", min_p=0.05),
    Kind("top-k 20, top-p 0.8", temperature=0.7, top_k=20, top_p=0.8),
    Kind("top-k 2000, top-p 0.99, min-p 1e-5", temperature=1.5, top_k=2000, top_p=0.99, min_p=1e-5),
)


@dataclass(frozen=True)
class Agreement:
    draws: int = 0
    equal: int = 0
    ties: int = 0  # of the others

    @property
    def is_kept(self) -> bool:
        """Return the requirement: 99.99 % equal, and the rest ties."""
        return self.equal >= 0.9999 * self.draws and self.equal + self.ties == self.draws


def settings_of(kind: Kind, rows: int, seed: int) -> SamplingBatch:
    """Draw s is number s of sample 1 of the request with that seed."""
    none = np.zeros(rows, np.int32)
    ones = np.ones(rows, np.float32)
    return SamplingBatch(
        temperature=ones * np.float32(kind.temperature),
        top_k=none + np.int32(kind.top_k),
        top_p=ones * np.float32(kind.top_p),
        min_p=ones * np.float32(kind.min_p),
        repetition_penalty=ones,
        presence_penalty=0 * ones,
        frequency_penalty=0 * ones,
        seed=np.full(rows, seed, np.uint64),
        sample_index=np.ones(rows, np.uint32),
        draw_index=np.arange(rows, dtype=np.uint32),
        histories=[None] * rows,
        prompt_lengths=none,
        bias_offsets=np.zeros(rows + 1, np.int32),
        bias_ids=none[:0],
        bias_values=ones[:0],
        allowed=[None] * rows,
        want_logprobs=np.zeros(rows, np.bool_),
        top_logprobs=none,
    )


def draws_of(batch: SamplingBatch, device: torch.device) -> Draws:
    """The same on a device, a slot for each draw."""
    rows = len(batch.seed)

    def put(values: Array) -> torch.Tensor:
        return torch.from_numpy(values).to(device)

    settings = DrawSettings(
        temperature=put(batch.temperature),
        top_p=put(batch.top_p),
        min_p=put(batch.min_p),
        repetition_penalty=put(batch.repetition_penalty),
        presence_penalty=put(batch.presence_penalty),
        frequency_penalty=put(batch.frequency_penalty),
        top_k=put(batch.top_k),
        seed=put(batch.seed.view(np.int64)),
        sample_index=put(batch.sample_index.astype(np.int64)),
        prompt_length=put(batch.prompt_lengths),
    )
    return Draws(
        settings,
        rows=put(np.arange(rows, dtype=np.int32)),
        num_tokens=put(batch.draw_index.astype(np.int32)),
        tokens=put(np.zeros((rows, 1), np.int32)),
        needs_history=False,
        filters=bool((batch.top_k > 0).any() or (batch.top_p < 1).any() or (batch.min_p > 0).any()),
        greedy=not (batch.temperature > 0).any(),
        longest_history=0,
        bias=None,
        bad=None,
        allowed=None,
        want_logprobs=False,
        top_logprobs=0,
    )


def is_tie(logits: Array, kind: Kind, u: float, token: int) -> bool:
    """Whether the definition takes this token of float32[V] if u, top-p and min-p are moved by rounding alone."""
    if kind.temperature == 0:
        return False
    scaled = logits / np.float32(kind.temperature)
    distance = scaled.astype(np.float64) - np.float64(scaled.max())
    moved = ROUNDING * len(logits)
    is_filtered = kind.top_k > 0 or kind.top_p < 1 or kind.min_p > 0
    order = np.argsort(-distance, kind="stable") if is_filtered else np.arange(len(logits))
    cumulative = np.cumsum(np.exp(distance[order]).astype(np.longdouble))
    place = int(np.flatnonzero(order == token)[0])
    for move in (-moved, moved):
        kept = len(order)
        if kind.min_p > 0:
            kept = int((distance >= np.log(np.float64(np.float32(kind.min_p))) + move).sum())
        if kind.top_k > 0:
            kept = min(kept, kind.top_k)
        for end in (-moved, moved) if kind.top_p < 1 else (0.0,):
            limit = (np.float64(np.float32(kind.top_p)) + end) * cumulative[kept - 1]
            last = min(kept, int((cumulative < limit).sum()) + 1) if kind.top_p < 1 else kept
            before = cumulative[place - 1] if place else 0
            mass = cumulative[last - 1]
            if place < last and before <= (u + moved) * mass and (u - moved) * mass <= cumulative[place]:
                return True
    return False


def agreement(
    sample: Callable[[torch.Tensor, Draws], Drawn], device: torch.device, kind: Kind, draws: int, vocabulary: int
) -> Agreement:
    """Time `draws` draws of a kind, in batches over the same few rows of logits, peaked and flat."""
    native = NativeBackend("float32", 2)
    rows = min(ROWS, draws)
    random = np.random.default_rng(vocabulary)
    logits = (
        random.standard_normal((rows, vocabulary), np.float32) * np.linspace(0.5, 6, rows, dtype=np.float32)[:, None]
    )
    found = Agreement()
    for seed in range(draws // rows):
        batch = settings_of(kind, rows, seed)
        want = native.sample(logits.copy(), batch).token_ids
        got = sample(torch.from_numpy(logits.copy()).to(device), draws_of(batch, device)).token_ids.cpu().numpy()
        others = np.flatnonzero(got != want).tolist()
        ties = sum(is_tie(logits[row], kind, uniform(seed, row, 1), int(got[row])) for row in others)
        found = replace(found, draws=found.draws + rows, equal=found.equal + rows - len(others), ties=found.ties + ties)
    return found


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--device", default="cpu", help="cpu: the definitions; cuda: the kernels")
    parser.add_argument("--draws", type=int, default=1_000_000, help="of all kinds together")
    parser.add_argument("--vocabulary", type=int, default=4096)
    args = parser.parse_args()
    device = torch.device(args.device)
    sample: Callable[[torch.Tensor, Draws], Drawn] = Definitions().sample
    if device.type == "cuda":
        from inflight.execution.backends.torch import launcher

        sample = launcher.KernelLauncher().sample
    each = -(-args.draws // len(KINDS) // ROWS) * ROWS
    found = [agreement(sample, device, kind, each, args.vocabulary) for kind in KINDS]
    rows = [[kind.name, f"{one.draws:,}", f"{one.equal:,}", one.ties] for kind, one in zip(KINDS, found, strict=True)]
    print(table(["draws", "number", "equal to the CPU's", "ties of the others"], rows))
    sys.exit(not all(one.is_kept for one in found))


if __name__ == "__main__":
    main()
