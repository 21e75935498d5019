"""Prepare a run: find the server's model, the fields that it accepts, and how to write prompts of exact length."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any
from urllib.parse import quote

from inflight.bench.bodies import TIERS, RequestBodies, slo_fields
from inflight.bench.client_types import BenchError, Target
from inflight.bench.counting import Counter, LocalCounter, ServerCounter
from inflight.bench.probe_client import ProbeClient
from inflight.bench.prompts import TextPrompts, TokenRange, Vocabulary, learn_words, ordinary
from inflight.bench.served_model import ServedModel
from inflight.bench.server_capabilities import (
    ABOUT_REQUESTS,
    OPTIONAL,
    Question,
    ServerCapabilities,
    probe_body,
    probe_capabilities,
)
from inflight.workload.contents import Contents
from inflight.workload.workload import Workload

# Sizes to try where none is known, from the largest on; most models have more tokens than the first.
_VOCAB_SIZES = (32_000, 16_000, 8_000, 4_000, 2_000, 1_000, 500, 256)
_REMOTE_WORDS = 48  # words that are measured where each takes requests to the server
_SAMPLE = "the the the the"


@dataclass(frozen=True, slots=True)
class RequestOptions:
    """The user's options for bodies and prompts. model None: the server's first. tokenizer: a model's folder or its
    tokenizer.json. prompt_text: text where token ids would do. extra: fields for every body."""

    model: str | None = None
    tokenizer: Path | None = None
    vocab_size: int | None = None
    prompt_text: bool = False
    extra: Mapping[str, Any] = field(default_factory=dict)


@dataclass(frozen=True, slots=True)
class Prepared:
    """A prepared server. prompts None: entries have their own. notes: for the reader of results."""

    target: Target
    served: ServedModel
    capabilities: ServerCapabilities
    prompts: TokenRange | TextPrompts | None
    extra: Mapping[str, Any]
    notes: tuple[str, ...] = ()

    def bodies(self, workload: Workload, seed: int) -> RequestBodies:
        """Return the bodies of a workload. seed: of the prompts' contents; with different ones, runs do not find each
        other's prompts cached."""
        prompts: Contents | TextPrompts | None
        match self.prompts:
            case TokenRange():
                prompts = self.prompts.contents(workload.entries, seed)
            case TextPrompts():
                prompts = replace(self.prompts, seed=seed)
            case None:
                prompts = None
        return RequestBodies(
            workload.entries, self.served.model, self.target.endpoint, self.capabilities, prompts, self.extra
        )


def prepare(target: Target, served: ServedModel, workload: Workload, options: RequestOptions) -> Prepared:
    """Probe the server for workloads like this one. Raises BenchError."""
    client = ProbeClient(target)
    local = LocalCounter(options.tokenizer) if options.tokenizer is not None else None
    own = all(entry.prompt is not None for entry in workload.entries)
    if target.endpoint == "chat" and any(isinstance(entry.prompt, tuple) for entry in workload.entries):
        raise BenchError("The trace holds prompts as token ids, which chat does not take; use --endpoint completions.")
    as_text = target.endpoint == "chat" or options.prompt_text
    tokens = None if as_text else _range(client, target, served, options, local)
    wanted = _wanted(workload, tokens is not None)
    question = Question(served.model, wanted if target.answers else wanted & ABOUT_REQUESTS, options.extra)
    if tokens is not None:
        question = replace(question, token_ids=tokens.some)
    capabilities = probe_capabilities(client, target, question)
    notes = [*capabilities.notes, *_lane_notes(workload)]
    prompts: TokenRange | TextPrompts | None = None
    if not own and tokens is not None and capabilities.token_prompts:
        prompts = tokens
    elif not own:
        counter = local or _server_counter(client, served)
        prompts, note = _text_prompts(client, target, question, capabilities, counter)
        notes.append(note)
    return Prepared(target, served, capabilities, prompts, options.extra, tuple(notes))


def _range(
    client: ProbeClient, target: Target, served: ServedModel, options: RequestOptions, local: LocalCounter | None
) -> TokenRange | None:
    """Return the ids that prompts are drawn from; None where the server accepts none."""
    if local is not None and options.vocab_size is None:
        return TokenRange(0, local.tokenizer.vocab_size, local.tokenizer.special_token_ids)
    size = options.vocab_size or served.vocab_size or _reported_vocab_size(client, served)
    if size is not None:
        if size < 16:
            raise BenchError(f"--vocab-size is {size}; give the number of the model's tokens, at least 16.")
        return ordinary(size)
    for tried in _VOCAB_SIZES:
        question = Question(served.model, frozenset(), options.extra, (tried - 1,))
        if client.post(target.path, probe_body(target, question, ServerCapabilities(frozenset()))).ok:
            return ordinary(tried)
    return None


def _reported_vocab_size(client: ProbeClient, served: ServedModel) -> int | None:
    """Return the vocabulary's size as ours and some others report it, so that no ids are tried out."""
    answer = client.get(f"/tokenizer_info?model={quote(served.model)}")
    size = answer.body.get("vocab_size") if answer.ok and isinstance(answer.body, dict) else None
    return size if type(size) is int and size > 0 else None


def _wanted(workload: Workload, token_ids: bool) -> frozenset[str]:
    """Return the fields that this workload would use."""
    entries = workload.entries
    unused = {
        "service_tier": not any(entry.lane in TIERS for entry in entries),
        "user": not any(entry.tenant for entry in entries),
        "cache_salt": not any(entry.cache_salt for entry in entries),
        "priority": all(entry.priority is None for entry in entries),
        "slo": not any(slo_fields(entry.targets) for entry in entries),
        "return_token_ids": not token_ids or all(entry.after is None for entry in entries),
    }
    return frozenset(name for name in OPTIONAL if not unused.get(name, False))


def _lane_notes(workload: Workload) -> list[str]:
    strange = sorted({entry.lane for entry in workload.entries} - {"", *TIERS})
    if not strange:
        return []
    return [f"Lanes {', '.join(strange)} are names in this result only: a request can ask for {' or '.join(TIERS)}."]


def _server_counter(client: ProbeClient, served: ServedModel) -> Counter:
    counter = ServerCounter(client, served.model)
    if not counter.found():
        raise BenchError(
            "Prompts are to be text, but no tokenizer is known: the server has no /tokenize. Give the model's folder "
            "with --tokenizer, or use --endpoint completions where the server takes token ids."
        )
    return counter


def _text_prompts(
    client: ProbeClient, target: Target, question: Question, capabilities: ServerCapabilities, counter: Counter
) -> tuple[TextPrompts, str]:
    vocabulary = learn_words(counter.text) if counter.local else learn_words(counter.text, _REMOTE_WORDS)
    where = "by the tokenizer given" if counter.local else "by the server's /tokenize"
    checker = counter if counter.local else None
    if target.endpoint != "chat":
        note = f"Prompts are text, counted {where}, which has {vocabulary.around} more than the words alone."
        return TextPrompts(vocabulary, 0, vocabulary.around, 0, checker), note
    around, asked = _template(client, target, question, capabilities, counter, vocabulary)
    each = _each_turn(counter, vocabulary, around)
    note = f"Prompts are text, counted {where}; the chat template adds {around} tokens, as {asked} says."
    if checker is not None and counter.chat([{"role": "user", "content": _SAMPLE}]) is None:
        checker = None  # it knows the words but not the template
    return TextPrompts(vocabulary, 0, around, each, checker), note


def _template(
    client: ProbeClient,
    target: Target,
    question: Question,
    capabilities: ServerCapabilities,
    counter: Counter,
    vocabulary: Vocabulary,
) -> tuple[int, str]:
    """Return the tokens of the chat template with one message, and where they are known from."""
    words = counter.text(_SAMPLE) - vocabulary.around
    counted = counter.chat([{"role": "user", "content": _SAMPLE}])
    if counted is not None:
        return counted - words, "the tokenizer's template" if counter.local else "the server's /tokenize"
    probe = Question(question.model, question.wanted, question.extra, text=_SAMPLE)
    answer = client.post(target.path, probe_body(target, probe, capabilities))
    reported = answer.usage.get("prompt_tokens")
    if not isinstance(reported, int):
        raise BenchError(
            "How many tokens the chat template adds is not known: the server reports no usage. Give the model's "
            "folder with --tokenizer, or use --endpoint completions."
        )
    return reported - words, "the usage of one request"


def _each_turn(counter: Counter, vocabulary: Vocabulary, around: int) -> int:
    """Return the tokens that the template adds to one more answer and question, beside their words."""
    said = [{"role": role, "content": _SAMPLE} for role in ("user", "assistant", "user")]
    counted = counter.chat(said)
    words = counter.text(_SAMPLE) - vocabulary.around
    return around if counted is None else max(0, counted - around - 3 * words)
