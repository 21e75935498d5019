"""The scripted executor: outputs are those of a script, and everything else is done by another executor.

The script's tokens go into the rows that a plan takes (`NewRequest.forced_token_ids`), and the wrapped executor keeps
them as if it had drawn them: prompts, blocks, prefixes, drafts, stop rules, events and times are real. They are in the
plan and not in the request, so that scheduler and records need no change and no client can force a token.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence

from msgspec import structs

from inflight.core.types.executor import Executor, ExecutorWrapper, Pending
from inflight.core.types.plan import BatchPlan, NewRequest

Script = Callable[[tuple[int, ...], int], Sequence[int]]


class ScriptedExecutor(ExecutorWrapper):
    """Gives the outputs of a script."""

    def __init__(self, executor: Executor, script: Script):
        """Wrap an executor.

        Args:
            executor: Draws what follows a script's tokens.
            script: Called with a prompt and the number of a sample; returns the output's token ids, with its end token
                if it has one. Called again after a preemption.
        """
        super().__init__(executor)
        self._script = script

    def submit(self, plan: BatchPlan) -> Pending:
        """Begin a step. Raises ValueError for tokens of the script that the vocabulary lacks."""
        if plan.new_requests:
            plan = structs.replace(plan, new_requests=tuple(map(self._scripted, plan.new_requests)))
        return super().submit(plan)

    def _scripted(self, new: NewRequest) -> NewRequest:
        forced = tuple(self._script(new.token_ids[: new.prompt_length], new.sample_index))
        size = self.capacity.vocab_size
        if outside := [token_id for token_id in forced if not 0 <= token_id < size]:
            raise ValueError(f"The script has token {outside[0]}, but the vocabulary has {size} tokens.")
        return structs.replace(new, forced_token_ids=forced)
