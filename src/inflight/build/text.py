"""How text becomes tokens and back: a model's tokenizer and chat template, from its files.

Knows when a model may come without; what is done with them, `frontend` knows.
"""

from __future__ import annotations

from pathlib import Path

from inflight.config.engine import EngineSettings
from inflight.models.gguf.gguf_model import GGUFModel
from inflight.text import ChatTemplate, Tokenizer, TokenizerError


def load_text(files: Path | GGUFModel, settings: EngineSettings) -> tuple[Tokenizer | None, ChatTemplate | None]:
    """Dummy weights may come without a tokenizer: then prompts are token ids."""
    try:
        return Tokenizer.load(files), ChatTemplate.load(files)
    except TokenizerError:
        path = files.path if isinstance(files, GGUFModel) else files
        if settings.load_format == "dummy" and not (path / "tokenizer.json").exists():
            return None, None
        raise
