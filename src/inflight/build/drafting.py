"""Where an engine's drafts come from: what `--speculation` asks for, as far as this model supports it."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING

from msgspec import Struct

from inflight.build.limits import Limits
from inflight.config.assembly import Rules, make_speculation
from inflight.config.scheduling import SchedulingSettings
from inflight.config.setting import Resolved
from inflight.config.speculation import DraftSupport, resolve_speculation
from inflight.core.speculation.speculation import ExecutorDrafter, Speculation
from inflight.execution.backends.protocol import KVShape
from inflight.execution.checkpoints.hub import resolve_model
from inflight.execution.computing import ComputedModel, KernelModel
from inflight.execution.memory import states_of
from inflight.models.errors import ModelError
from inflight.models.gguf.gguf_model import GGUFModel, gguf_at
from inflight.models.registry import read_folder
from inflight.text import Tokenizer

if TYPE_CHECKING:
    from inflight.execution.drafters.draft_model_source import DraftModelSource
    from inflight.execution.drafters.heads.heads_source import HeadsSource
    from inflight.execution.drafters.step_drafting import DrafterSource

_MIN_SHARED_TOKENS = 0.99  # share of the vocabulary; within a family, reserved tokens may have other names


class Drafting(Struct, frozen=True):
    """Drafts of an engine.

    Attributes:
        scheduling: settings with the source that is in force.
        resolved: the value of `speculation` with its reason.
        executor_source: what drafts in the executor; None: the drafter works when a step is planned, or there is none.
    """

    scheduling: SchedulingSettings
    resolved: Resolved
    executor_source: DrafterSource | None

    def speculation(self, rules: Rules, vocab_size: int) -> Speculation | None:
        """Return the scheduler's speculation; None where nothing is drafted."""
        if self.scheduling.draft_source.kind == "off":
            return None
        from inflight.execution.drafters.suffix import SuffixDrafter  # here, as few starts draft

        source = self.executor_source
        drafter = SuffixDrafter() if source is None else ExecutorDrafter(source.name, self.scheduling.max_drafts)
        return make_speculation(drafter, self.scheduling, rules, vocab_size)


def resolve_drafting(
    scheduling: SchedulingSettings,
    computed: ComputedModel,
    ranks: int,
    limits: Limits,
    shape: KVShape,
    windows: tuple[int, ...],
) -> Drafting:
    """Resolve `--speculation` for a model.

    Args:
        scheduling: settings as given.
        computed: the model.
        ranks: devices that share it.
        limits: its limits.
        shape: of its KV blocks.
        windows: of its KV groups.

    Raises:
        SettingsError: the model does not support what was asked for.
        ModelError: the drafting model does not go together with it.
    """
    support = DraftSupport(
        bool(states_of(computed.spec)),
        ranks,
        isinstance(computed, KernelModel),
        not limits.on_gpu or (isinstance(computed, KernelModel) and computed.batch_invariant),
        computed.spec.head is not None,
    )
    source, resolved = resolve_speculation(scheduling.draft_source, support)
    inside: DrafterSource | None = None
    if source.kind == "draft":
        assert source.model is not None
        inside = _draft_model(source.model, computed, limits, shape, windows)
    elif source.kind == "heads":
        inside = _heads(source.model, computed, limits, shape, windows)
    if inside is not None:
        resolved = Resolved(resolved.value, f"{resolved.reason}: {inside.reason}")
    return Drafting(scheduling.drafting_from(source), resolved, inside)


def _heads(
    name: str | None, computed: ComputedModel, limits: Limits, shape: KVShape, windows: tuple[int, ...]
) -> HeadsSource:
    """Find the heads of a folder or hub id; None: those in the model's checkpoint. Raises ModelError."""
    from inflight.execution.drafters.heads.heads_source import HeadsSource

    assert isinstance(computed, KernelModel)
    source = HeadsSource(
        computed,
        None if name is None else resolve_model(name),
        shape,
        limits.max_model_len,
        limits.max_rows,
        limits.max_tokens,
        limits.logit_rows,
    )
    source.check(windows)
    return source


def _draft_model(
    name: str, computed: ComputedModel, limits: Limits, shape: KVShape, windows: tuple[int, ...]
) -> DraftModelSource:
    """Find the draft model of a folder, a GGUF file or a hub id; its settings are the model's. Raises ModelError."""
    from inflight.execution.drafters.draft_model_source import DraftModelSource

    assert isinstance(computed, KernelModel)
    folder = resolve_model(name)
    files = gguf_at(folder) or folder
    spec = read_folder(files, to_run=True)
    source = DraftModelSource.of(
        replace(computed, spec=spec, files=files),
        computed.spec,
        shape,
        windows,
        limits.max_model_len,
        limits.max_tokens,
        limits.logit_rows,
    )
    _check_tokens(computed.files, files, computed.spec.name, spec.name)
    return source


def _check_tokens(of_model: Path | GGUFModel, of_draft: Path | GGUFModel, model: str, draft: str) -> None:
    """Check that both vocabularies agree, where both have a tokenizer. Raises ModelError, TokenizerError."""
    if not (_has_tokenizer(of_model) and _has_tokenizer(of_draft)) or _has_same_tokenizer_file(of_model, of_draft):
        return
    tokens, others = Tokenizer.load(of_model).token_ids, Tokenizer.load(of_draft).token_ids
    alike = sum(others.get(token) == token_id for token, token_id in tokens.items())
    if alike < _MIN_SHARED_TOKENS * len(tokens):
        raise ModelError(
            f"{alike:,} of the {len(tokens):,} tokens of {model} have the same ids in the draft model {draft}, so that "
            "its drafts would mean another text; take a draft model with the same tokenizer."
        )


def _has_same_tokenizer_file(one: Path | GGUFModel, other: Path | GGUFModel) -> bool:
    """Return whether both folders have the same tokenizer.json, byte for byte."""
    if isinstance(one, GGUFModel) or isinstance(other, GGUFModel):
        return False
    return (one / "tokenizer.json").read_bytes() == (other / "tokenizer.json").read_bytes()


def _has_tokenizer(files: Path | GGUFModel) -> bool:
    return isinstance(files, GGUFModel) or (files / "tokenizer.json").is_file()
