"""Refuse requests that can never be served, or whose lane is full, with the number that refused them."""

from __future__ import annotations

from collections.abc import Callable, Collection
from dataclasses import fields
from functools import partial

from inflight.core.queueing.admission import check_queue_limit
from inflight.core.queueing.lanes import Lanes
from inflight.core.types.plan import Capacity
from inflight.core.types.request import Request, RequestRefused
from inflight.core.types.sampling import NO_SAMPLING
from inflight.counted import MAX_MILLISECONDS, counted

MAX_NAME_CHARS = 512  # of a session or a program


class RequestValidator:
    def __init__(
        self,
        capacity: Capacity,
        lanes: Lanes,
        end_token_ids: frozenset[int],
        seconds_until_served: Callable[[Request], float],
        shortage: Callable[[int], str | None],
        *,
        checks_prompts: bool = True,
    ):
        """Create a validator.

        Args:
            capacity: Limits of the engine.
            lanes: Their queues have limits of their own.
            end_token_ids: The model's.
            seconds_until_served: Returns the expected wait behind the work before a request.
            shortage: Returns why a sequence of so many tokens does not fit into all blocks; None if it does.
            checks_prompts: Whether prompts may have token ids that the vocabulary lacks.
        """
        self._checks_prompts = checks_prompts
        self._capacity = capacity
        self._lanes = lanes
        self._end_token_ids = end_token_ids
        self._seconds_until_served = seconds_until_served
        self._shortage = shortage

    def check(self, request: Request) -> None:
        """Raise RequestRefused for a request that can never be served, and for a full lane."""
        self._check_lane(request)
        _check_targets(request)
        _check_name("session_id", request.session)
        _check_name("program_id", request.program)
        self._check_lengths(request)
        self._check_pooling(request)
        self._check_grammar(request)
        self._check_adapter(request)
        if self._checks_prompts:
            self._check_token_ids("prompt", "The prompt holds", request.prompt_token_ids)
        # One bad id in a step would break it for the whole batch.
        self._check_token_ids("logit_bias", "logit_bias names", request.params.logit_bias)
        self._check_token_ids("allowed_token_ids", "allowed_token_ids names", request.params.allowed_token_ids or ())
        self._check_token_ids("stop_token_ids", "stop_token_ids names", request.params.stop_token_ids)
        bad = [token_id for word in request.bad_token_ids for token_id in word]
        self._check_token_ids("bad_words", "bad_words are spelled with", bad)
        banned, allowed = self.banned(request), request.params.allowed_token_ids
        if len(banned) >= self._capacity.vocab_size:
            raise RequestRefused(
                f"min_tokens bans {len(banned)} tokens that end an answer, which is the whole vocabulary; name fewer.",
                field="stop_token_ids",
            )
        if allowed is not None and banned and set(allowed) <= set(banned):
            raise RequestRefused(
                f"All {len(allowed)} tokens of allowed_token_ids end an answer, which min_tokens bans; allow one more.",
                field="allowed_token_ids",
            )

    def max_output_tokens(self, request: Request) -> int:
        """Return the limit of output tokens of one sample; 0 if none are wanted."""
        room = self._capacity.max_model_len - len(request.prompt_token_ids)
        return max_output_tokens(room, request.params.max_tokens)

    def banned(self, request: Request) -> tuple[int, ...]:
        """Return the token ids that may not be drawn before min_tokens exist."""
        params = request.params
        if not params.min_tokens:
            return ()
        ends = frozenset() if params.ignore_eos else self._end_token_ids
        return tuple(sorted(ends | frozenset(params.stop_token_ids)))

    def _check_lane(self, request: Request) -> None:
        lane = self._lanes.named(request.lane)
        if lane is None:
            raise RequestRefused(
                f"There is no lane {request.lane!r}; there are: {', '.join(self._lanes.names)}.", field="lane"
            )
        policy = lane.queue.policy
        if request.priority and not policy.reads_priority:
            raise RequestRefused(
                f"priority {request.priority} has no effect: the lane {request.lane!r} uses --policy {policy.name}; "
                "leave it out, or start the server with --policy priority.",
                field="priority",
            )
        if (limit := lane.settings.queue_limit) is not None:
            wait = partial(self._seconds_until_served, request)
            check_queue_limit(request, [lane.queue.backlog], limit, policy.shares, wait, lane=request.lane)

    def _check_adapter(self, request: Request) -> None:
        if request.adapter is not None and not self._capacity.adapter_slots:
            raise RequestRefused(
                f"The request asks for the adapter {request.adapter.name!r}, but this engine has 0 slots for adapters; "
                "start it with --max-loras.",
                field="model",
            )

    def _check_lengths(self, request: Request) -> None:
        tokens = len(request.prompt_token_ids)
        check_context(tokens, self._capacity.max_model_len, request.params.max_tokens)
        if (shortage := self._shortage(tokens)) is not None:
            raise RequestRefused(
                f"The prompt {shortage}; shorten the prompt or raise --kv-memory (or --num-blocks).",
                field="prompt",
                code="context_length_exceeded",
            )
        if request.forced_output_tokens is not None and request.forced_output_tokens < 1:
            raise RequestRefused(
                f"output_tokens is {request.forced_output_tokens}; give a whole number above 0.", field="output_tokens"
            )

    def _check_pooling(self, request: Request) -> None:
        """Check that a pooled request has no sampling settings, and others are for a model that generates."""
        size = self._capacity.embedding_size
        if request.pooling is None:
            if not self._capacity.generates:
                raise RequestRefused(
                    f"This model generates no text: it returns {counted(size, 'number')} for each; ask for an "
                    "embedding, a score or a class.",
                    code="unsupported_task",
                )
            return
        wanted = request.pooling.dimensions
        if not size:
            raise RequestRefused(
                "This model has no pooling head: its vectors have 0 numbers; ask for text, or set --pooling, without "
                "--backend transformers, if it was trained for embeddings.",
                field="pooling",
                code="unsupported_task",
            )
        if wanted is not None and wanted > size:
            raise RequestRefused(
                f"{counted(wanted, 'dimension')} are asked for, but this model's vectors have {size}; ask for fewer, "
                "or leave it out.",
                field="dimensions",
            )
        second, tokens = request.second_text_at, len(request.prompt_token_ids)
        if second is not None and not 0 < second <= tokens:
            raise RequestRefused(
                f"The second text is to begin at position {second} of {counted(tokens, 'token')}; give a position "
                "within them.",
                field="second_text_at",
            )
        for one in fields(NO_SAMPLING):
            value, usual = getattr(request.params, one.name), getattr(NO_SAMPLING, one.name)
            if value != usual:
                raise RequestRefused(
                    f"A pooled request samples nothing, but its {one.name} is {value!r}; leave that at {usual!r}.",
                    field=one.name,
                )
        if request.forced_output_tokens is not None:
            raise RequestRefused(
                f"A pooled request samples nothing, but its output_tokens is {request.forced_output_tokens}; leave it "
                "out.",
                field="output_tokens",
            )

    def _check_grammar(self, request: Request) -> None:
        """Check that a grammar fits its request; errors within it were found as it was compiled."""
        grammar = request.grammar
        if grammar is None:
            return
        if request.pooling is not None:
            raise RequestRefused(
                "A pooled request samples 0 tokens, and has a grammar; leave that out.", field="grammar"
            )
        self._check_token_ids("grammar", "The end of the reasoning holds", grammar.after_token_ids)
        self._check_token_ids("grammar", "The opening of the reasoning holds", grammar.opening_token_ids)
        if grammar.opening_token_ids and not grammar.after_token_ids:
            raise RequestRefused(
                f"The reasoning is opened by {counted(len(grammar.opening_token_ids), 'token')}, but no token is known "
                "that ends it; leave its opening out.",
                field="grammar",
            )
        if grammar.max_tokens_before is None:
            return
        if grammar.max_tokens_before < 0:
            raise RequestRefused(
                f"The reasoning's budget is {grammar.max_tokens_before} tokens; give a whole number from 0 on.",
                field="grammar",
            )
        if not grammar.after_token_ids:
            raise RequestRefused(
                f"The reasoning may have {grammar.max_tokens_before} tokens, but no token is known that ends it; leave "
                "its budget out.",
                field="grammar",
            )

    def _check_token_ids(self, field: str, where: str, token_ids: Collection[int]) -> None:
        vocab_size = self._capacity.vocab_size
        if token_ids and not (min(token_ids) >= 0 and max(token_ids) < vocab_size):
            wrong = next(token_id for token_id in token_ids if not 0 <= token_id < vocab_size)
            raise RequestRefused(
                f"{where} the token id {wrong}, but the vocabulary has {vocab_size} tokens (0 to {vocab_size - 1}).",
                field=field,
            )


def _check_targets(request: Request) -> None:
    """Check that latency targets are times: of one that is not a number no deadline follows."""
    slo = request.slo
    for name, target in (("ttft_ms", slo.ttft), ("itl_ms", slo.itl), ("tpot_ms", slo.tpot)):
        if target is not None and not 0 < target * 1e3 <= MAX_MILLISECONDS:
            raise RequestRefused(
                f"slo.{name} is {target * 1e3:g}; give milliseconds above 0, up to {MAX_MILLISECONDS:g}.", field="slo"
            )


def _check_name(field: str, name: str) -> None:
    """Raise RequestRefused for a name that is too long to be kept by the thousand, or cannot be shown in a line."""
    if len(name) > MAX_NAME_CHARS:
        raise RequestRefused(
            f"{field} has {len(name):,} characters, more than {MAX_NAME_CHARS}; give a shorter name.", field=field
        )
    if not name.isprintable():
        wrong = next(index for index, one in enumerate(name) if not one.isprintable())
        raise RequestRefused(
            f"Character {wrong + 1} of {field} is U+{ord(name[wrong]):04X}, which cannot be printed; leave it out.",
            field=field,
        )


def check_context(prompt_tokens: int, limit: int, max_tokens: int | None) -> None:
    """Raise RequestRefused if a prompt leaves no room. limit: tokens of prompt and answer together."""
    if not prompt_tokens:
        raise RequestRefused("The prompt has 0 tokens; give at least one.", field="prompt")
    max_prompt = limit if max_tokens == 0 else limit - 1
    if prompt_tokens > max_prompt:
        # Clients recognize this error by its first words.
        answer = ", of which at least one is left for the answer" if max_prompt < limit else ""
        raise RequestRefused(
            f"This model's maximum context length is {limit} tokens{answer}, and the prompt is too long: it has "
            f"{prompt_tokens} tokens; shorten it to {max_prompt}.",
            field="prompt",
            code="context_length_exceeded",
        )


def max_output_tokens(room: int, max_tokens: int | None) -> int:
    """Return the limit of output tokens. room: tokens that the prompt leaves of the context."""
    return room if max_tokens is None else min(room, max_tokens)
