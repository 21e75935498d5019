"""Read `--speculation`, and resolve it for a model."""

from __future__ import annotations

from typing import Literal

from msgspec import Struct

from inflight.config.setting import Resolved, SettingsError

DraftKind = Literal["auto", "off", "suffix", "draft", "heads"]
PLAIN: dict[str, DraftKind] = {"auto": "auto", "off": "off", "suffix": "suffix", "heads": "heads"}
WITH_MODEL: dict[str, DraftKind] = {"draft": "draft", "heads": "heads"}
DEFAULT = "auto"
KNOWN = "auto, off, suffix, draft:MODEL, heads and heads:FOLDER"

MAX_DRAFT_TOKENS = 32  # drafts of a sequence in a step: all are sampled in one pass, and more are hardly ever accepted
DEFAULT_TOKENS = {"suffix": 16}  # what was written before often goes on for long; looking it up costs nothing
DEFAULT_MODEL_TOKENS = 5  # each one takes a pass of the drafting model


class DraftSource(Struct, frozen=True):
    """The source of drafts. model: of `draft` a folder or hub id, of `heads` a folder; None: the model's own."""

    kind: DraftKind
    model: str | None = None

    @property
    def default_tokens(self) -> int:
        """Maximum drafts of a sequence in a step, by default."""
        return DEFAULT_TOKENS.get(self.kind, DEFAULT_MODEL_TOKENS)

    def __str__(self) -> str:
        return self.kind if self.model is None else f"{self.kind}:{self.model}"


OFF = DraftSource("off")


def parse_speculation(text: str) -> DraftSource:
    """Read the setting. Raises SettingsError."""
    if text in PLAIN:
        return DraftSource(PLAIN[text])
    kind, colon, model = text.partition(":")
    if colon and kind in WITH_MODEL and model:
        return DraftSource(WITH_MODEL[kind], model)
    if kind in WITH_MODEL and not model:
        what = "a folder or a hub id" if kind == "draft" else "a folder, or leave the colon out for the model's own"
        raise SettingsError(f"--speculation is {text!r}, which names no model; give {what}: {kind}:MODEL.")
    raise SettingsError(f"--speculation is {text!r}; known are {KNOWN}.")


class DraftSupport(Struct, frozen=True):
    """Support of a model for speculation.

    Attributes:
        has_state: its layers have a recurrent state.
        ranks: devices that share it.
        own_kernels: its steps are computed by our kernels.
        is_invariant: the bits of an answer do not depend on the batch, on a GPU only under --batch-invariant.
        generates: it generates tokens.
    """

    has_state: bool = False
    ranks: int = 1
    own_kernels: bool = True
    is_invariant: bool = True
    generates: bool = True

    def obstacle(self, kind: DraftKind) -> str | None:
        """Return the reason why this source does not work, as a clause; None: it does."""
        if not self.generates:
            return "this model generates no text, so there is nothing to draft"
        if self.has_state:
            return "this model's layers keep a recurrent state, which cannot be rolled back after rejected drafts"
        if kind in ("suffix", "off"):
            return None
        if not self.own_kernels:
            return "models draft only with our kernels, and --backend is transformers"
        if self.ranks > 1:
            return f"the model is shared by {self.ranks} devices, and models draft on one device only"
        return None


def resolve_speculation(asked: DraftSource, model: DraftSupport) -> tuple[DraftSource, Resolved]:
    """Return the source in force with its reason. Raises SettingsError where the model does not support what is set."""
    if asked.kind == "off":
        return asked, Resolved("off", "one token a step for each sequence")
    if asked.kind != "auto":
        if (why := model.obstacle(asked.kind)) is not None:
            raise SettingsError(f"--speculation is {asked}, but {why}; leave it out, or give off.")
        return asked, Resolved(str(asked), f"as set: {_DRAFTS[asked.kind]}")
    if (why := model.obstacle("suffix")) is not None:
        return OFF, Resolved("off", f"auto: {why}")
    if not model.own_kernels:
        return OFF, Resolved("off", "auto: with transformers the bits of an answer may depend on the batch")
    if not model.is_invariant:
        return OFF, Resolved("off", "auto: without --batch-invariant the bits of an answer may depend on the batch")
    return DraftSource("suffix"), Resolved("suffix", f"auto: {_DRAFTS['suffix']}")


_DRAFTS: dict[DraftKind, str] = {
    "suffix": "drafts from earlier text, where that is measured to be faster",
    "draft": "drafts of a smaller model, where that is measured to be faster",
    "heads": "drafts of heads on the model's hidden states, where that is measured to be faster",
}
