"""The requests of a simulated workload: prompts as `workload.contents` makes them, after an answer with that answer.

Real answers have contents of their own; simulated ones are all token 0 (`executor`), so that a later turn of a
conversation begins with the prompt before it and that answer, and finds both in a prefix cache that still holds them.
Of texts only the length counts, and how far they begin alike: no tokenizer is needed.
"""

from __future__ import annotations

from inflight.core.types.request import Request
from inflight.simulate.fast_forward import TOKEN
from inflight.workload.contents import Contents
from inflight.workload.requests import core_request
from inflight.workload.workload import Workload


class Requests:
    """Called for (index of an entry, intended send time)."""

    def __init__(self, workload: Workload, vocab_size: int, seed: int):
        self._entries = workload.entries
        self._contents = Contents(workload.entries, vocab_size, seed=seed, floor=TOKEN + 1, stand_in=True, width=1)
        self._followed = {entry.after for entry in workload.entries if entry.after is not None}
        self._so_far: dict[int, tuple[int, ...]] = {}  # entry that another follows → its prompt and answer

    def __call__(self, index: int, arrival: float) -> Request:
        entry = self._entries[index]
        if entry.after is None:
            prompt = self._contents.prompt(index)
        else:
            prompt = self._so_far[entry.after] + self._contents.added(index)
        request = core_request(entry, str(index), prompt, arrival)
        if index in self._followed:
            self._so_far[index] = prompt + (TOKEN,) * (request.forced_output_tokens or 0)
        return request
