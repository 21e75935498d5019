"""The JSON bodies of a workload's requests, with the fields that the server accepts (`server_capabilities`)."""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

from inflight.bench.client_types import BenchError, Endpoint, Transcript
from inflight.bench.prompts import TextPrompts, continued
from inflight.bench.server_capabilities import ServerCapabilities, merged, stream_options
from inflight.metrics.observation import Targets
from inflight.workload.contents import Contents
from inflight.workload.workload import Entry

TIERS = {"interactive": "default", "batch": "flex"}  # lanes that a request can ask for


def slo_fields(targets: Targets) -> dict[str, float]:
    """Return the targets that an engine reads, in milliseconds."""
    limits = {"ttft_ms": targets.ttft, "itl_ms": targets.gap, "tpot_ms": targets.tpot}
    return {name: limit * 1e3 for name, limit in limits.items() if limit is not None}


@dataclass(frozen=True)
class RequestBodies:
    """Bodies for each process of the client. prompts None: every entry has its own. extra: the user's fields, which
    win; null removes one."""

    entries: tuple[Entry, ...]
    model: str
    endpoint: Endpoint
    capabilities: ServerCapabilities
    prompts: Contents | TextPrompts | None
    extra: Mapping[str, Any] = field(default_factory=dict)

    def body(self, index: int, before: Transcript | None) -> tuple[bytes, Transcript]:
        entry = self.entries[index]
        conversation = self._conversation(index, entry, before)
        if self.endpoint == "embeddings":
            body: dict[str, Any] = {"input": conversation, "encoding_format": "base64", **self._about(entry)}
        else:
            prompt = {"messages": conversation} if self.endpoint == "chat" else {"prompt": conversation}
            body = {**prompt, "stream": True, **self._fields(entry)}
        body = merged({"model": self.model, **body}, self.extra)
        return json.dumps(body, separators=(",", ":")).encode(), conversation

    def answered(self, conversation: Transcript, text: str, token_ids: tuple[int, ...]) -> Transcript:
        """Append an answer. Token ids that the server does not send are missing: the next turn has as many fresh ones
        more."""
        if isinstance(conversation, str):
            return conversation + text
        if isinstance(conversation, tuple):
            return (*conversation, *token_ids)
        return [*conversation, {"role": "assistant", "content": text}]

    def _conversation(self, index: int, entry: Entry, before: Transcript | None) -> Transcript:
        if self.endpoint == "chat":
            conversation = before if isinstance(before, list) else []
            return [*conversation, {"role": "user", "content": self._content(index, entry, conversation)}]
        if isinstance(entry.prompt, tuple):
            return (*before, *entry.prompt) if isinstance(before, tuple) else entry.prompt
        if isinstance(self.prompts, Contents) and entry.prompt is None:
            return continued(self.prompts, index, before if isinstance(before, tuple) else ())
        said = before if isinstance(before, str) else ""
        if entry.prompt is not None:
            return said + entry.prompt
        return said + self._written.completion(index, entry, said, self._tokens_before(entry))

    def _content(self, index: int, entry: Entry, conversation: list[dict[str, str]]) -> str:
        if isinstance(entry.prompt, str):
            return entry.prompt
        return self._written.chat(index, entry, conversation, self._tokens_before(entry))

    @property
    def _written(self) -> TextPrompts:
        if not isinstance(self.prompts, TextPrompts):
            raise BenchError("The prompts are token ids, but this server takes text; use --prompt-text.")
        return self.prompts

    def _tokens_before(self, entry: Entry) -> int:
        """Return the tokens of the turns before, if each had its planned length."""
        if entry.after is None:
            return 0
        turn = self.entries[entry.after]
        return turn.prompt_tokens + turn.output_tokens

    def _fields(self, entry: Entry) -> dict[str, Any]:
        values = {
            "temperature": 0,
            "stream_options": stream_options(self.capabilities.fields),
            "return_token_ids": True,
        }
        taken = {name: value for name, value in values.items() if name in self.capabilities.fields}
        return self._lengths(entry) | taken | self._about(entry)

    def _about(self, entry: Entry) -> dict[str, Any]:
        """Return the fields for lane, tenant, priority and SLO."""
        values = {
            "service_tier": TIERS.get(entry.lane),
            "cache_salt": entry.cache_salt or None,
            "user": entry.tenant or None,
            "session_id": entry.session or None,
            "program_id": entry.program or None,
            "priority": entry.priority,
            "slo": slo_fields(entry.targets) or None,
        }
        return {name: value for name, value in values.items() if name in self.capabilities.fields}

    def _lengths(self, entry: Entry) -> dict[str, Any]:
        """Return the fields that force the length of an answer. Where a server can only be kept from ending early, the
        limit on the answer is its length."""
        shall = max(entry.output_tokens, 1)
        if self.capabilities.forces_length == "output_tokens":
            return {self.capabilities.limit_field: max(entry.max_tokens or shall, shall), "output_tokens": shall}
        values: dict[str, Any] = {self.capabilities.limit_field: shall}
        if self.capabilities.forces_length == "ignore_eos":
            values["ignore_eos"] = True
            if "min_tokens" in self.capabilities.fields:
                values["min_tokens"] = shall
        return values
