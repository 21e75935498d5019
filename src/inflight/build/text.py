"""How text becomes tokens and back: a model's tokenizer and chat template, from its files.

Knows when a model may come without; what is done with them, `frontend` knows.
"""

from __future__ import annotations

from pathlib import Path

from msgspec.structs import replace

from inflight.config.engine import EngineSettings
from inflight.config.setting import SettingsError
from inflight.models.gguf.gguf_model import GGUFModel
from inflight.models.sentence_transformers import NO_PROMPTS, TextPrompts, read_prompts
from inflight.models.spec import ModelSpec
from inflight.text import ChatTemplate, Tokenizer, TokenizerError


def read_text_prompts(files: Path | GGUFModel, settings: EngineSettings, model: ModelSpec) -> TextPrompts:
    """What stands around whole texts, as the model's files and the settings have it."""
    prompts = read_prompts(files) if isinstance(files, Path) else NO_PROMPTS
    if settings.score_template is None:
        return prompts
    if model.pooler is None or not model.pooler.labels:
        raise SettingsError(
            "--score-template writes pairs that a model reads together, and this one tells no score of them; set "
            "--score-tokens, or leave it out."
        )
    path = Path(settings.score_template)
    try:
        return replace(prompts, of_pairs=path.read_text(encoding="utf-8"))
    except (OSError, UnicodeDecodeError) as error:
        raise SettingsError(f"--score-template {path} cannot be read ({error}); give a file of text.") from None


def load_text(files: Path | GGUFModel, settings: EngineSettings) -> tuple[Tokenizer | None, ChatTemplate | None]:
    """Dummy weights may come without a tokenizer: then prompts are token ids."""
    try:
        return Tokenizer.load(files), ChatTemplate.load(files)
    except TokenizerError:
        path = files.path if isinstance(files, GGUFModel) else files
        if settings.load_format == "dummy" and not (path / "tokenizer.json").exists():
            return None, None
        raise
