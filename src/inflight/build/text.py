"""A model's text side: tokenizer and chat template, the tokens that end an answer, and what grammars need."""

from __future__ import annotations

import logging
from collections.abc import Callable
from pathlib import Path

from msgspec import Struct
from msgspec.structs import replace

from inflight.config.engine import EngineSettings
from inflight.config.setting import Resolved, SettingsError, read_template
from inflight.execution.grammars.compiled_grammars import CompiledGrammars
from inflight.execution.grammars.compiling import GrammarError
from inflight.execution.grammars.vocabulary import Vocabulary
from inflight.models.gguf.gguf_model import GGUFModel
from inflight.models.sentence_transformers import NO_PROMPTS, TextPrompts, read_prompts
from inflight.models.spec import ModelSpec
from inflight.text import ChatTemplate, TextFiles, Tokenizer, TokenizerError


def read_text_prompts(files: Path | GGUFModel, settings: EngineSettings, model: ModelSpec) -> TextPrompts:
    """Read the prompts around inputs of an encoder, from the model's files and the settings. Raises SettingsError."""
    prompts = read_prompts(files) if isinstance(files, Path) else NO_PROMPTS
    if settings.score_template is None:
        return prompts
    if model.pooler is None or not model.pooler.labels:
        raise SettingsError(
            "--score-template writes pairs that a model reads together, and this model has no score for them; set "
            "--score-tokens, or leave it out."
        )
    return replace(prompts, of_pairs=read_template("--score-template", settings.score_template))


def load_text(
    named: TextFiles, model: Path | GGUFModel, settings: EngineSettings
) -> tuple[Tokenizer | None, ChatTemplate | None]:
    """Load tokenizer and chat template. With dummy weights both may be missing: then prompts are token ids."""
    try:
        return named.load(model)
    except TokenizerError:
        path = Path(named.tokenizer or named.model)
        if settings.load_format == "dummy" and not (path / "tokenizer.json").exists():
            return None, None
        raise


log = logging.getLogger(__name__)


class EndTokens(Struct, frozen=True):
    """Ids that end an answer, where they were found, and those named that the model cannot draw."""

    ids: frozenset[int]
    source: str
    dropped: tuple[int, ...]

    def resolved(self) -> Resolved:
        value = ", ".join(map(str, sorted(self.ids))) or "none"
        dropped = ", ".join(map(str, self.dropped))
        return Resolved(value, f"{self.source}, without {dropped}: not in the vocabulary" if dropped else self.source)


def find_end_tokens(model: ModelSpec, tokenizer: Tokenizer | None) -> EndTokens:
    """Return the end tokens that the model's files name, or the tokenizer's where they name none in the vocabulary.

    An id outside the vocabulary can never be sampled, and banning it (`min_tokens`) would break the whole batch's step.
    """
    named = tokenizer.eos_token_id if tokenizer is not None else None
    ends = EndTokens(frozenset(), "none: answers end by their length and by stop rules of their own", ())
    for source, ids in (("as the model's files say", model.end_token_ids), ("the tokenizer's", (named,))):
        known = {one for one in ids if one is not None}
        usable = frozenset(one for one in known if 0 <= one < model.vocab_size)
        ends = replace(ends, dropped=(*ends.dropped, *sorted(known - usable - {*ends.dropped})))
        if usable:
            ends = replace(ends, ids=usable, source=source)
            break
    if ends.dropped:
        log.warning(
            "The model's files name end tokens that its vocabulary of %d tokens does not have (%s); they are left out.",
            model.vocab_size,
            ", ".join(map(str, ends.dropped)),
        )
    return ends


def warn_of_tokenizer(settings: EngineSettings, model: ModelSpec, tokenizer: Tokenizer | None) -> None:
    """Warn of a tokenizer of the settings that has tokens which the model does not."""
    if settings.tokenizer is not None and tokenizer is not None and tokenizer.vocab_size > model.vocab_size:
        log.warning(
            "--tokenizer %s has %d tokens, and the model's vocabulary %d: prompts with other tokens are refused.",
            settings.tokenizer,
            tokenizer.vocab_size,
            model.vocab_size,
        )


def grammars_of(model: ModelSpec, tokenizer: Callable[[], Tokenizer | None], ranks: int) -> CompiledGrammars:
    """Return the model's grammars; `tokenizer` is called when the first grammar comes."""
    return CompiledGrammars(lambda: _vocabulary(model, tokenizer(), ranks))


def _vocabulary(model: ModelSpec, tokenizer: Tokenizer | None, ranks: int) -> Vocabulary:
    """Return what grammars need to know of tokens. Raises GrammarError."""
    if ranks > 1:
        raise GrammarError(
            f"cannot be used with --tensor-parallel-size {ranks}, whose processes have no grammars; use 1"
        )
    if tokenizer is None:
        raise GrammarError("cannot be used, since this model has no tokenizer, which says what its tokens mean")
    ends = find_end_tokens(model, tokenizer).ids
    if not ends:
        raise GrammarError("cannot be used, since this model names 0 tokens that end an answer")
    known = tokenizer.for_grammars()
    return Vocabulary(known.as_json, known.count, model.vocab_size, tuple(sorted(ends)), known.plain, known.special)
