"""Where an engine's drafts come from: what `--speculation` asks for, as far as this model can have it.

Knows which part makes the drafts of each kind: one that is asked when a step is planned, or one inside of the executor.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from msgspec import Struct

from inflight.build.limits import Limits
from inflight.config.assembly import Rules, make_speculation
from inflight.config.scheduling import SchedulingSettings
from inflight.config.setting import Resolved
from inflight.config.speculation import DraftSupport, resolve_speculation
from inflight.core.speculation.drafter import ExecutorDrafter
from inflight.core.speculation.speculation import Speculation
from inflight.execution.backends.protocol import KVShape
from inflight.execution.computing import ComputedModel, KernelModel
from inflight.execution.states import states_of

if TYPE_CHECKING:
    from inflight.execution.drafters.drafter_loading import DrafterSource


class Drafting(Struct, frozen=True):
    """scheduling: with the source that is in force. inside: what drafts in the executor, if that does."""

    scheduling: SchedulingSettings
    in_force: Resolved
    inside: DrafterSource | None

    def speculation(self, rules: Rules, vocab_size: int) -> Speculation | None:
        """For the scheduler; None: nothing is drafted."""
        if self.scheduling.draft_source.kind == "off":
            return None
        from inflight.execution.drafters.suffix import SuffixDrafter  # here, as few starts draft

        inside = self.inside
        drafter = SuffixDrafter() if inside is None else ExecutorDrafter(inside.name, self.scheduling.most_drafts)
        return make_speculation(drafter, self.scheduling, rules, vocab_size)


def resolve_drafting(
    scheduling: SchedulingSettings,
    computed: ComputedModel,
    ranks: int,
    limits: Limits,
    shape: KVShape,
    windows: tuple[int, ...],
) -> Drafting:
    """shape, windows: of the model's KV groups. Raises SettingsError for what the model cannot have, ModelError for a
    drafting model that does not go together with it."""
    asked = scheduling.draft_source
    support = DraftSupport(
        bool(states_of(computed.spec)),
        ranks,
        isinstance(computed, KernelModel),
        not limits.on_gpu or (isinstance(computed, KernelModel) and computed.batch_invariant),
        computed.spec.head is not None,
    )
    source, in_force = resolve_speculation(asked, support)
    inside: DrafterSource | None = None
    if source.kind == "draft":
        from inflight.build.draft_model import draft_model

        assert source.model is not None
        inside = draft_model(source.model, computed, limits, shape, windows)
    elif source.kind == "heads":
        from inflight.build.heads import heads

        inside = heads(source.model, computed, limits, shape, windows)
    if inside is not None:
        in_force = Resolved(in_force.value, f"{in_force.reason}: {inside.reason}")
    return Drafting(scheduling.drafting_from(source), in_force, inside)
