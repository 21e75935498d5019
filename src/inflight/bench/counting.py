"""Count the tokens of a text, by a local tokenizer or by the server's /tokenize (ours, vLLM's, SGLang's,
llama.cpp's)."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import Any, Protocol

from inflight.bench.client_types import BenchError
from inflight.bench.probe_client import ProbeClient, ProbeResponse
from inflight.text import ChatEncoder, ChatTemplate, ChatTemplateError, Conversation, Tokenizer, TokenizerError

Messages = Sequence[dict[str, str]]


class Counter(Protocol):
    """local: whether counting is fast enough to check every prompt."""

    local: bool

    def text(self, text: str) -> int:
        """Return the tokens of a prompt, with those that the tokenizer adds around one."""

    def chat(self, messages: Messages) -> int | None:
        """Return the tokens of messages in the chat template; None where the template is not known."""


class LocalCounter:
    """A model's folder, or its tokenizer.json. Pickles as the path that it was loaded from."""

    local = True

    def __init__(self, path: Path):
        self._path = path
        folder = path.parent if path.name == "tokenizer.json" else path
        try:
            self.tokenizer = Tokenizer.load(folder)
            self._template = ChatTemplate.load(folder)
            self._chats = ChatEncoder(self.tokenizer, self._template)
        except (TokenizerError, ChatTemplateError) as error:
            raise BenchError(f"--tokenizer {path}: {error}") from None

    def __reduce__(self) -> tuple[type[LocalCounter], tuple[Path]]:
        return LocalCounter, (self._path,)

    def text(self, text: str) -> int:
        return len(self.tokenizer.encode(text))

    def chat(self, messages: Messages) -> int | None:
        if not self._template.is_available:
            return None
        try:
            return len(self._chats.token_ids(self._chats.render(Conversation(messages))))
        except (ChatTemplateError, TokenizerError):
            return None


class ServerCounter:
    """Asks the server's /tokenize; only while a run is prepared."""

    local = False

    def __init__(self, client: ProbeClient, model: str):
        self._client, self._model = client, model
        self._form = "prompt"

    def found(self) -> bool:
        """Whether the server has such an endpoint, in vLLM's form or llama.cpp's."""
        for self._form in ("prompt", "content"):
            if _count(self._client.post("/tokenize", self._body("Hello"))) is not None:
                return True
        return False

    def text(self, text: str) -> int:
        answer = self._client.post("/tokenize", self._body(text))
        count = _count(answer)
        if count is None:
            raise BenchError(
                f"The server's /tokenize answers {answer.status} ({answer.message}), so that prompts of exact length "
                "cannot be written; give the model's folder with --tokenizer."
            )
        return count

    def chat(self, messages: Messages) -> int | None:
        body = {"model": self._model, "messages": list(messages), "add_generation_prompt": True}
        return _count(self._client.post("/tokenize", body))

    def _body(self, text: str) -> dict[str, Any]:
        if self._form == "content":
            return {"content": text, "add_special": True}
        return {"model": self._model, "prompt": text}


def _count(answer: ProbeResponse) -> int | None:
    if not answer.ok or not isinstance(answer.body, dict):
        return None
    tokens = answer.body.get("tokens")
    count = answer.body.get("count", len(tokens) if isinstance(tokens, list) else None)
    return count if isinstance(count, int) and count > 0 else None
