"""Which fields of a body a server understands, found by asking it once with all of them.

Servers tell an unknown field with a 400 that names it, or take it and do nothing; so a field that forces the length of
an answer counts only when the answer had that length.
"""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any

from inflight.bench.client_types import BenchError, Target
from inflight.bench.probe_client import ProbeClient, ProbeResponse

# In the order in which they are given up where a server refuses a body and names none of them.
OPTIONAL = (
    "return_token_ids",
    "continuous_usage_stats",
    "slo",
    "priority",
    "service_tier",
    "user",
    "cache_salt",
    "output_tokens",
    "min_tokens",
    "ignore_eos",
    "temperature",
    "stream_options",
)
FORCED, ALLOWED = 3, 6  # tokens of the probe's answer: if the server can be told its length, and at most
LOSES = {
    "return_token_ids": "",
    "continuous_usage_stats": "tokens are counted per frame",
    "slo": "the server does not know the targets",
    "priority": "all requests have the same priority",
    "service_tier": "all requests are in the same lane",
    "user": "the server does not tell tenants apart",
    "cache_salt": "prompts share cached prefixes also where their salts differ",
    "min_tokens": "",
    "output_tokens": "",
    "ignore_eos": "answers end when the model wants, so that their lengths differ from what was asked",
    "temperature": "the server samples as it likes",
    "stream_options": "the server does not tell how many tokens it made: each frame counts as one",
}
# Of those, what says whose a request is; all that there is to say where no tokens come back.
ABOUT_REQUESTS = frozenset(("slo", "priority", "service_tier", "user", "cache_salt"))
_IDS = re.compile(r"\bprompt\b|\binput\b|\btoken id|\bvocab", re.IGNORECASE)


@dataclass(frozen=True, slots=True)
class ServerCapabilities:
    """fields: of OPTIONAL, those that the server takes. token_prompts: whether a prompt may be token ids.
    most_field: what it calls the most tokens of an answer. notes: what it does not take, and what that means."""

    fields: frozenset[str] = frozenset(OPTIONAL)
    token_prompts: bool = True
    most_field: str = "max_tokens"
    notes: tuple[str, ...] = ()

    @property
    def forces_length(self) -> str:
        """By which field the server is told how long an answer is to be; empty: not at all."""
        return next((name for name in ("output_tokens", "ignore_eos") if name in self.fields), "")


@dataclass(frozen=True, slots=True)
class Question:
    """What the probe asks with. wanted: fields of OPTIONAL that the run would use. extra: the user's own."""

    model: str
    wanted: frozenset[str]
    extra: Mapping[str, Any]
    token_ids: Sequence[int] = (100, 101, 102, 103)
    text: str = "Hello there."


def probe_capabilities(client: ProbeClient, target: Target, question: Question) -> ServerCapabilities:
    """Raises BenchError where the server refuses even the plainest body."""
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
        body |= {"stream": True, capabilities.most_field: ALLOWED}
    values = {
        "temperature": 0,
        "ignore_eos": True,
        "min_tokens": 1,
        "output_tokens": FORCED,
        "return_token_ids": True,
        "service_tier": "default",
        "user": "bench",
        "cache_salt": "bench",
        "priority": 1,  # some servers refuse only what differs from 0
        "slo": {"ttft_ms": 600_000},
        "stream_options": stream_options(fields),
    }
    body.update((name, value) for name, value in values.items() if name in fields)
    return merged(body, question.extra)


def stream_options(fields: frozenset[str]) -> dict[str, bool]:
    """Usage at the end; and with every frame, where the server takes that too."""
    return {"include_usage": True, **({"continuous_usage_stats": True} if "continuous_usage_stats" in fields else {})}


def merged(body: dict[str, Any], extra: Mapping[str, Any]) -> dict[str, Any]:
    """extra wins; null takes a field away."""
    return {name: value for name, value in {**body, **extra}.items() if value is not None}


def _taken(
    client: ProbeClient, target: Target, question: Question, capabilities: ServerCapabilities
) -> tuple[ProbeResponse, ServerCapabilities]:
    """The body that the server takes, field by field less."""
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
    """Without what the server's words blame; without the next optional field where they blame nothing."""
    blamed = " ".join((str(answer.error.get("param") or ""), answer.message))
    if capabilities.most_field == "max_tokens" and "max_completion_tokens" in blamed:
        return replace(capabilities, most_field="max_completion_tokens")
    named = next((name for name in OPTIONAL if name in capabilities.fields and _names(blamed, name)), None)
    if named is None and capabilities.token_prompts and _IDS.search(blamed):
        return replace(capabilities, token_prompts=False, notes=(*capabilities.notes, "The server takes no token ids."))
    named = named or next((name for name in OPTIONAL if name in capabilities.fields), None)
    if named is None:
        return None
    loses = f": {LOSES[named]}" if LOSES[named] else ""
    note = f"The server does not take {named}{loses}."
    return replace(capabilities, fields=capabilities.fields - {named}, notes=(*capabilities.notes, note))


def _names(words: str, field: str) -> bool:
    return re.search(rf"(?<![A-Za-z_]){field}(?![A-Za-z_])", words) is not None


def _refusal(target: Target, question: Question, answer: ProbeResponse) -> str:
    where = f"{target.url}{target.path}"
    if answer.status in (401, 403):
        return f"{where} wants a key ({answer.message}); give it with --api-key, or as OPENAI_API_KEY."
    if answer.status in (429, 503):
        return f"{where} is too busy for a first question ({answer.message}); wait until it is idle."
    if answer.status == 404:
        return f"{where} answers 404 for the model {question.model!r} ({answer.message}); correct --url or --model."
    return f"{where} refuses the plainest question with {answer.status}: {answer.message}"
