"""Find the fields of a body that a server accepts, by probing with all of them.

Servers refuse an unknown field with a 400 that names it, or ignore it; so a field that forces the length of an answer
counts only when the answer had that length.
"""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any

from inflight.bench.client_types import BenchError, Target
from inflight.bench.probe_client import ProbeClient, ProbeResponse

# In the order in which they are left out where a server refuses a body and names none of them.
OPTIONAL = (
    "return_token_ids",
    "continuous_usage_stats",
    "slo",
    "priority",
    "service_tier",
    "user",
    "cache_salt",
    "session_id",
    "program_id",
    "output_tokens",
    "min_tokens",
    "ignore_eos",
    "temperature",
    "stream_options",
)
FORCED, ALLOWED = 3, 6  # tokens of the probe's answer: if its length can be forced, and at most
LOSES = {
    "return_token_ids": "",
    "continuous_usage_stats": "tokens are counted per frame",
    "slo": "the server does not know the targets",
    "priority": "all requests have the same priority",
    "service_tier": "all requests are in the same lane",
    "user": "the server does not distinguish tenants",
    "cache_salt": "prompts share cached prefixes also where their salts differ",
    "session_id": "the server does not distinguish conversations",
    "program_id": "the server does not distinguish programs",
    "min_tokens": "",
    "output_tokens": "",
    "ignore_eos": "answers end when the model wants, so that their lengths differ from what was asked",
    "temperature": "the server samples as it likes",
    "stream_options": "the server does not report the number of tokens: each frame counts as one",
}
# Fields about the sender of a request; the only ones where no tokens come back.
ABOUT_REQUESTS = frozenset(("slo", "priority", "service_tier", "user", "cache_salt", "session_id", "program_id"))
_IDS = re.compile(r"\bprompt\b|\binput\b|\btoken id|\bvocab", re.IGNORECASE)


@dataclass(frozen=True, slots=True)
class ServerCapabilities:
    """fields: of OPTIONAL that the server accepts. token_prompts: whether a prompt may be token ids. limit_field: its
    name for the limit on an answer's tokens. notes: on fields that it refuses."""

    fields: frozenset[str] = frozenset(OPTIONAL)
    token_prompts: bool = True
    limit_field: str = "max_tokens"
    notes: tuple[str, ...] = ()

    @property
    def forces_length(self) -> str:
        """Return the field that forces the length of an answer; empty: none does."""
        return next((name for name in ("output_tokens", "ignore_eos") if name in self.fields), "")


@dataclass(frozen=True, slots=True)
class Question:
    """The content of a probe. wanted: fields of OPTIONAL that the run would use. extra: the user's own."""

    model: str
    wanted: frozenset[str]
    extra: Mapping[str, Any]
    token_ids: Sequence[int] = (100, 101, 102, 103)
    text: str = "Hello there."


def probe_capabilities(client: ProbeClient, target: Target, question: Question) -> ServerCapabilities:
    """Probe a server; raise BenchError where it refuses even the plainest body."""
    capabilities = ServerCapabilities(question.wanted, token_prompts=target.endpoint != "chat")
    answer, capabilities = _taken(client, target, question, capabilities)
    if wrong := next((name for name in answer.ignored if name in question.extra), None):
        raise BenchError(f"--body: the field {wrong!r} is unknown to the server, which ignores it; leave it out.")
    if not target.answers:
        return capabilities
    made = answer.usage.get("completion_tokens")
    if "output_tokens" in capabilities.fields and made != FORCED:  # taken, and without effect
        capabilities = replace(capabilities, fields=capabilities.fields - {"output_tokens", "slo"})
    return capabilities


def probe_body(target: Target, question: Question, capabilities: ServerCapabilities) -> dict[str, Any]:
    fields = capabilities.fields
    asked = list(question.token_ids) if capabilities.token_prompts else question.text
    body: dict[str, Any] = {"model": question.model}
    if not target.answers:
        body |= {"input": asked, "encoding_format": "base64"}
    elif target.endpoint == "chat":
        body |= {"messages": [{"role": "user", "content": question.text}]}
    else:
        body |= {"prompt": asked}
    if target.answers:
        body |= {"stream": True, capabilities.limit_field: ALLOWED}
    values = {
        "temperature": 0,
        "ignore_eos": True,
        "min_tokens": 1,
        "output_tokens": FORCED,
        "return_token_ids": True,
        "service_tier": "default",
        "user": "bench",
        "cache_salt": "bench",
        "session_id": "bench",
        "program_id": "bench",
        "priority": 1,  # some servers refuse only what differs from 0
        "slo": {"ttft_ms": 600_000},
        "stream_options": stream_options(fields),
    }
    body.update((name, value) for name, value in values.items() if name in fields)
    return merged(body, question.extra)


def stream_options(fields: frozenset[str]) -> dict[str, bool]:
    """Return options for usage at the end, and with every frame where the server accepts that too."""
    return {"include_usage": True, **({"continuous_usage_stats": True} if "continuous_usage_stats" in fields else {})}


def merged(body: dict[str, Any], extra: Mapping[str, Any]) -> dict[str, Any]:
    """Merge fields; extra wins, and null removes a field."""
    return {name: value for name, value in {**body, **extra}.items() if value is not None}


def _taken(
    client: ProbeClient, target: Target, question: Question, capabilities: ServerCapabilities
) -> tuple[ProbeResponse, ServerCapabilities]:
    """Probe with ever fewer fields, until the server accepts the body."""
    while True:
        answer = client.post(target.path, probe_body(target, question, capabilities))
        if answer.ok and not any("error" in frame for frame in answer.frames):
            return answer, capabilities
        if answer.status not in (400, 422):
            raise BenchError(_refusal(target, question, answer))
        less = _less(answer, capabilities)
        if less is None:
            raise BenchError(_refusal(target, question, answer))
        capabilities = less


def _less(answer: ProbeResponse, capabilities: ServerCapabilities) -> ServerCapabilities | None:
    """Leave out the field that the server's message blames, or the next optional one where it blames none."""
    blamed = " ".join((str(answer.error.get("param") or ""), answer.message))
    if capabilities.limit_field == "max_tokens" and "max_completion_tokens" in blamed:
        return replace(capabilities, limit_field="max_completion_tokens")
    named = next((name for name in OPTIONAL if name in capabilities.fields and _names(blamed, name)), None)
    if named is None and capabilities.token_prompts and _IDS.search(blamed):
        return replace(capabilities, token_prompts=False, notes=(*capabilities.notes, "The server takes no token ids."))
    named = named or next((name for name in OPTIONAL if name in capabilities.fields), None)
    if named is None:
        return None
    loses = f": {LOSES[named]}" if LOSES[named] else ""
    note = f"The server does not take {named}{loses}."
    return replace(capabilities, fields=capabilities.fields - {named}, notes=(*capabilities.notes, note))


def _names(message: str, field: str) -> bool:
    return re.search(rf"(?<![A-Za-z_]){field}(?![A-Za-z_])", message) is not None


def _refusal(target: Target, question: Question, answer: ProbeResponse) -> str:
    where = f"{target.url}{target.path}"
    if answer.status in (401, 403):
        return f"{where} wants a key ({answer.message}); give it with --api-key, or as OPENAI_API_KEY."
    if answer.status in (429, 503):
        return f"{where} is too busy for a first question ({answer.message}); wait until it is idle."
    if answer.status == 404:
        return f"{where} answers 404 for the model {question.model!r} ({answer.message}); correct --url or --model."
    return f"{where} refuses the plainest question with {answer.status}: {answer.message}"
