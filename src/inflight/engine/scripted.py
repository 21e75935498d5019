"""The scripted executor: answers are those of a script, and everything else is what the executor below it does.

What a script forces goes into the rows that a plan takes (`NewRequest.forced_token_ids`), and the executor below keeps
it as if it had drawn it: prompts, blocks, prefixes, drafts, stop rules, events and times are real. That is why it
stands in the plan and not in the request: a wrapper is enough, scheduler and records need not know of it, and nothing
that a client sends can force a token. Knows prompts and token ids; no text.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence

from msgspec import structs

from inflight.core.types.plan import BatchPlan, Capacity, Executor, NewRequest, Pending, Transferred

Script = Callable[[tuple[int, ...], int], Sequence[int]]


class ScriptedExecutor:
    def __init__(self, executor: Executor, script: Script):
        """script(prompt, sample): the token ids of that sample's answer to the prompt, its end token included, where
        one is to end it: what would follow, the executor draws. Called again after a preemption."""
        self._executor = executor
        self._script = script

    @property
    def capacity(self) -> Capacity:
        return self._executor.capacity

    def submit(self, plan: BatchPlan) -> Pending:
        if plan.new_requests:
            plan = structs.replace(plan, new_requests=tuple(map(self._scripted, plan.new_requests)))
        return self._executor.submit(plan)

    def poll(self, seconds: float = 0.0) -> tuple[Transferred, ...] | None:
        return self._executor.poll(seconds)

    def close(self) -> None:
        self._executor.close()

    def _scripted(self, new: NewRequest) -> NewRequest:
        """Raises ValueError for tokens that the vocabulary does not have."""
        forced = tuple(self._script(new.token_ids[: new.prompt_length], new.sample_index))
        size = self.capacity.vocab_size
        if outside := [token_id for token_id in forced if not 0 <= token_id < size]:
            raise ValueError(f"The script says token {outside[0]}, but the vocabulary has {size} tokens.")
        return structs.replace(new, forced_token_ids=forced)
