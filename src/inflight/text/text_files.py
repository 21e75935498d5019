"""Name the files of a model's text side, and load its tokenizer and chat template from them."""

from __future__ import annotations

import json
from pathlib import Path

from msgspec import Struct

from inflight.models.gguf.gguf_model import GGUFModel, gguf_at
from inflight.text.chat import ChatTemplate
from inflight.text.errors import TokenizerError
from inflight.text.tokenizer import Tokenizer


class TextFiles(Struct, frozen=True):
    """The text side of a model, as every process that reads prompts loads it.

    Attributes:
        model: The model's folder or GGUF file.
        tokenizer: Folder or GGUF file of --tokenizer; empty: the model's.
        template: Source of --chat-template; empty: the tokenizer's template, else the model's.
        variables: JSON object of --chat-template-kwargs; empty: none.
    """

    model: str
    tokenizer: str = ""
    template: str = ""
    variables: str = ""

    def load(self, model: Path | GGUFModel | None = None) -> tuple[Tokenizer, ChatTemplate]:
        """Load tokenizer and chat template.

        Args:
            model: The model's files, where they are open already.

        Raises:
            TokenizerError: A file cannot be read.
            ChatTemplateError: A template file cannot be read, or the setting has an unknown form.
        """
        return Tokenizer.load(self._source(model)), self.load_template(model)

    def load_template(self, model: Path | GGUFModel | None = None) -> ChatTemplate:
        """Load the chat template alone, with arguments and errors as `load`."""
        source = self._source(model)
        found = ChatTemplate.load(gguf_at(source) or source)
        if not found.is_available and self.tokenizer:
            path = model or Path(self.model)
            found = ChatTemplate.load(gguf_at(path) or path)
        return found.with_options(self.template, json.loads(self.variables) if self.variables else {})

    def load_if_any(self) -> tuple[Tokenizer | None, ChatTemplate | None]:
        """Load both where a model has a tokenizer; one without takes token ids. The engine reports errors."""
        try:
            return self.load()
        except TokenizerError:
            return None, None

    def _source(self, model: Path | GGUFModel | None) -> Path | GGUFModel:
        return Path(self.tokenizer) if self.tokenizer else model or Path(self.model)
