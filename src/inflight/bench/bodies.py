"""The JSON bodies of a workload's requests, in the words that the server understands.

Knows entries, conversations and fields; which fields a server takes, `server_capabilities` has found out. Pickles,
because each process of the client writes its own.
"""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

from inflight.bench.client_types import BenchError, Endpoint, Transcript
from inflight.bench.prompts import TextPrompts, continued
from inflight.bench.server_capabilities import ServerCapabilities, merged
from inflight.workload.contents import Contents
from inflight.workload.workload import Entry

TIERS = {"interactive": "default", "batch": "flex"}  # lanes that a request can ask for


@dataclass(frozen=True)
class RequestBodies:
    """prompts None: every entry brings its own. extra: the user's fields, which win; null takes one away."""

    entries: tuple[Entry, ...]
    model: str
    endpoint: Endpoint
    capabilities: ServerCapabilities
    prompts: Contents | TextPrompts | None
    extra: Mapping[str, Any] = field(default_factory=dict)

    def body(self, index: int, before: Transcript | None) -> tuple[bytes, Transcript]:
        entry = self.entries[index]
        conversation = self._conversation(index, entry, before)
        prompt = {"messages": conversation} if self.endpoint == "chat" else {"prompt": conversation}
        body = merged({"model": self.model, **prompt, "stream": True, **self._fields(entry)}, self.extra)
        return json.dumps(body, separators=(",", ":")).encode(), conversation

    def answered(self, conversation: Transcript, text: str, token_ids: tuple[int, ...]) -> Transcript:
        """Token ids that the server does not tell are missing: the next turn then has as many fresh ones more."""
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
            raise BenchError("The prompts are token ids, but this server is asked with text; use --prompt-text.")
        return self.prompts

    def _tokens_before(self, entry: Entry) -> int:
        """What the turns before it have come to, if each was as long as it was to be."""
        if entry.after is None:
            return 0
        turn = self.entries[entry.after]
        return turn.prompt_tokens + turn.output_tokens

    def _fields(self, entry: Entry) -> dict[str, Any]:
        fields = self.capabilities.fields
        values: dict[str, Any] = self._lengths(entry)
        if "temperature" in fields:
            values["temperature"] = 0
        if "stream_options" in fields:
            values["stream_options"] = {"include_usage": True}
            if "continuous_usage_stats" in fields:
                values["stream_options"]["continuous_usage_stats"] = True
        if "return_token_ids" in fields:
            values["return_token_ids"] = True
        if "service_tier" in fields and entry.lane in TIERS:
            values["service_tier"] = TIERS[entry.lane]
        if "cache_salt" in fields and entry.cache_salt:
            values["cache_salt"] = entry.cache_salt
        if "user" in fields and entry.tenant:
            values["user"] = entry.tenant
        if "priority" in fields and entry.priority is not None:
            values["priority"] = entry.priority
        if "slo" in fields:
            limits = {"ttft_ms": entry.targets.ttft, "itl_ms": entry.targets.pace}
            slo = {name: limit * 1e3 for name, limit in limits.items() if limit is not None}
            values["slo"] = slo or None
        return values

    def _lengths(self, entry: Entry) -> dict[str, Any]:
        """Where a server can only be kept from ending early, the most that it may answer is what it shall answer."""
        shall = max(entry.output_tokens, 1)
        if self.capabilities.forces_length == "output_tokens":
            return {self.capabilities.most_field: max(entry.max_tokens or shall, shall), "output_tokens": shall}
        values: dict[str, Any] = {self.capabilities.most_field: shall}
        if self.capabilities.forces_length == "ignore_eos":
            values["ignore_eos"] = True
            if "min_tokens" in self.capabilities.fields:
                values["min_tokens"] = shall
        return values
