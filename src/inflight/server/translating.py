"""Translate a prepared body into a `Call`: a request for each prompt, and what the answer shows.

Batch jobs and the command line translate their lines here too, so that a body means the same wherever it comes from.
"""

from __future__ import annotations

import asyncio
import time
import uuid
from collections.abc import Callable
from dataclasses import dataclass, field, replace
from functools import partial
from typing import Any

from msgspec import UNSET, structs

from inflight.core.types.request import SLO, Request
from inflight.core.types.sampling import Adapter, InvalidSampling, SamplingParams
from inflight.frontend.adapter_names import AdapterNames
from inflight.frontend.answers import AnswerParsing
from inflight.frontend.fields import SAMPLING_FIELDS, RequestFields
from inflight.frontend.parsers.parser_choice import ParserChoice
from inflight.frontend.prompts import PromptEncoder
from inflight.frontend.text_tasks import TextTasks
from inflight.models.spec import Pooler
from inflight.server.common.aliases import served_name
from inflight.server.common.fields import CallSettings, ChatSettings, CompletionSettings, GenerationSettings, Slo
from inflight.server.common.prepared import (
    Call,
    Prepared,
    PreparedChat,
    PreparedCompletion,
    PreparedTexts,
    check_model,
    max_tokens_of,
    shown_logprobs,
)
from inflight.server.engine_description import ServedLane
from inflight.server.errors import clients_fault, invalid
from inflight.server.kv_peers import KVPeers
from inflight.server.registry import ENDPOINTS
from inflight.server.router_hints import NO_HINTS, RouterHints
from inflight.server.tenants import Tenant

MANY_TOKEN_BYTES = 1 << 17  # of prompts, from which on they become requests beside the event loop
MANY_PROMPTS = 16
Settings = CompletionSettings | ChatSettings
_OF_THE_API = ("n", "logprobs", "max_tokens")  # whose meaning is not that of the engine's settings of these names


@dataclass(frozen=True, slots=True, kw_only=True)
class RequestTranslator:
    """Translates prepared bodies into calls.

    Attributes:
        encoder: makes requests, and draws the seeds of those that name none. defaults: sampling settings of bodies that
            name none, as the model's files have them. models: names of the model; none: any. now: the engine's clock.
        isolate: separate tenants' cached prefixes. parsers: of the model's answers; shown_token_ids: of special tokens
            that these must see; call_marks: by which the engine knows answers that call tools.
        pooler: how the engine makes vectors or scores, if it does. adapters: that may be called in the model's place.
            lanes: that the engine has. peers: engines with which blocks of prompts are transferred.
    """

    encoder: PromptEncoder
    models: tuple[str, ...]
    now: Callable[[], float]
    defaults: SamplingParams = field(default_factory=SamplingParams)
    isolate: bool = False
    parsers: ParserChoice | None = None
    shown_token_ids: tuple[int, ...] = ()
    call_marks: tuple[tuple[int, ...], ...] = ()
    pooler: Pooler | None = None
    adapters: AdapterNames = field(default_factory=AdapterNames)
    lanes: tuple[ServedLane, ...] = ()
    peers: KVPeers | None = None

    def call(
        self,
        prepared: Prepared,
        tenant: Tenant,
        *,
        own_id: str = "",
        batch: bool = False,
        hints: RouterHints = NO_HINTS,
    ) -> Call:
        """Return the call of a body.

        Args:
            own_id: Of the call, no other one's: ids of its answer and of the engine's requests are made of it.
            batch: It is a line of a batch job, which belongs to the batch lane whatever its tier.
            hints: Of a router, in headers.

        Raises:
            ApiError: 400, 404.
        """
        body, kind = prepared.settings, prepared.kind
        own_id = own_id or uuid.uuid4().hex
        model, adapter = self.called(body.model, tenant)
        of_requests = self._placement(body, tenant, batch, hints)
        of_requests["adapter"] = adapter
        of_call = {
            "kind": kind,
            # A client may name its call, but not the engine's requests, among which names must differ.
            "call_id": f"{ENDPOINTS[kind].call_prefix}{body.request_id or own_id}",
            "created": int(time.time()),
            "model": model,
            "tier": "flex" if of_requests["lane"] == "batch" else "default",
            "tenant": tenant,
            "timings": bool(body.timings),
        }
        if isinstance(prepared, PreparedTexts):
            return self._texts(prepared, own_id, of_requests, of_call)
        return self._generation(prepared, own_id, of_requests, of_call)

    async def call_without_blocking(self, prepared: Prepared, tenant: Tenant, **options: Any) -> Call:
        """Return the same as `call`; made in a thread where the prompts are long, or words are to be tokenized."""
        translate = partial(self.call, prepared, tenant, **options)
        settings = None if isinstance(prepared, PreparedTexts) else prepared.settings
        words = settings is not None and (settings.bad_words or settings.allowed_token_ids)
        small = sum(len(prompt.token_ids) for prompt in prepared.prompts) < MANY_TOKEN_BYTES
        small = small and len(prepared.prompts) <= MANY_PROMPTS
        return translate() if small and not words else await asyncio.to_thread(translate)

    def params(self, body: Settings) -> SamplingParams:
        """Return the sampling settings of a body. Raises ApiError."""
        own = _of_completion(body) if isinstance(body, CompletionSettings) else _of_chat(body)
        given = {
            name: value
            for name in SAMPLING_FIELDS
            if name not in _OF_THE_API and (value := getattr(body, name, None)) is not None
        }
        try:
            return replace(self.defaults, **{**given, **own, "max_tokens": _limit(body)})
        except InvalidSampling as error:
            name = str(error).split()[0]
            raise invalid(str(error), name if name in type(body).__struct_fields__ else None) from None

    def _generation(
        self,
        prepared: PreparedCompletion | PreparedChat,
        own_id: str,
        of_requests: RequestFields,
        of_call: dict[str, Any],
    ) -> Call:
        body, params, arrival = prepared.settings, self.params(prepared.settings), self.now()
        reasoning = None
        if isinstance(prepared, PreparedChat):
            reasoning = None if self.parsers is None else self.parsers.reasoning_text(prepared.in_reasoning)
            of_requests["shown_token_ids"] = self.shown_token_ids
            of_requests["call_marks"] = self.call_marks if prepared.tools else ()
            of_call |= {
                "logprobs": shown_logprobs(prepared.settings),
                "parsing": AnswerParsing(self.parsers, prepared.tools, prepared.in_reasoning, prepared.parallel_calls),
                "include_reasoning": prepared.settings.include_reasoning is not False,
                "old_functions": prepared.old_functions,
                "echoed": prepared.echoed,
                "stored_items": prepared.stored_items,
            }
        else:
            own = prepared.settings
            of_call |= {"logprobs": own.logprobs, "echo": bool(own.echo), "echoed": prepared.echoed}
            of_call["line_seconds"] = prepared.line_seconds
        make = partial(
            self.encoder.request,
            params=params,
            arrival=arrival,
            grammar=prepared.grammar,
            forced_output_tokens=body.output_tokens,
            reasoning=reasoning,
            **of_requests,
        )
        requests = [
            clients_fault(partial(make, f"{own_id}-{index}", prompt.ids()), "stop")
            for index, prompt in enumerate(prepared.prompts)
        ]
        kv_transfer, options = self._transfer(body, requests), body.stream_options
        return Call(
            requests=tuple(requests),
            prompts=tuple(prompt.text for prompt in prepared.prompts),
            n=body.n or 1,
            form_field=prepared.form_field,
            prompt_logprobs=body.prompt_logprobs is not None,
            stream=bool(body.stream),
            include_usage=bool(options and options.include_usage),
            continuous_usage=bool(options and options.continuous_usage_stats),
            return_token_ids=bool(body.return_token_ids),
            names_are_ids=bool(body.return_tokens_as_token_ids),
            kv_transfer=kv_transfer,
            **of_call,
        )

    def _texts(self, prepared: PreparedTexts, own_id: str, of_requests: RequestFields, of_call: dict[str, Any]) -> Call:
        body, tasks, arrival = prepared.settings, TextTasks(self.pooler), self.now()
        params = tasks.params(
            prepared.task, dimensions=body.dimensions, normalize=body.normalize, raw=prepared.form.raw
        )
        requests = [
            self.encoder.pooled(
                f"{own_id}-{index}", prompt.ids(), params, arrival, second_text_at=prompt.second_text_at, **of_requests
            )
            for index, prompt in enumerate(prepared.prompts)
        ]
        return Call(
            requests=tuple(requests),
            prompts=(None,) * len(requests),
            n=1,
            text_form=prepared.form,
            pairs=prepared.pairs,
            labels=tasks.labels,
            **of_call,
        )

    def _transfer(self, body: Settings, requests: list[Request]) -> bytes:
        """Add to a call's only request which blocks of its prompt other engines have or take. Return JSON, which its
        answer shows of that. A call of several prompts is computed here alone."""
        if self.peers is None or body.kv_transfer_params is None or len(requests) != 1:
            return b""
        request, tokens = requests[0], len(requests[0].prompt_token_ids)
        transfer = self.peers.transfer(body.kv_transfer_params, request.request_id, tokens)
        requests[0] = structs.replace(request, kv_transfer=transfer)
        return self.peers.shown(transfer, tokens) if transfer is not None and transfer.give else b""

    def called(self, name: str | None, tenant: Tenant) -> tuple[str, Adapter | None]:
        """Return the name in answers, and the adapter of that name, if it is one's. Raises ApiError 404, for another
        tenant's adapter, too."""
        adapter = None if name is None else self.adapters.named(served_name(name, self.adapters.names))
        if adapter is not None and tenant.may_name(adapter.name):
            return adapter.name, adapter
        known = (*self.models, *(one for one in self.adapters.names if tenant.may_name(one))) if self.models else ()
        return check_model(name, known), None

    def _placement(
        self, body: CallSettings | GenerationSettings, tenant: Tenant, batch: bool, hints: RouterHints
    ) -> RequestFields:
        """Return the requests' tenant, lane and priority, targets, cache salt, session and program.

        The tenant is the key's, whatever else is said: no client may choose another's share. Without keys it is the one
        that a router names, else the body's user.
        """
        name = tenant.name or hints.fairness_id or body.named_user or ""
        salt, slo = body.cache_salt or "", body.slo or Slo()
        lane = "batch" if batch else self._lane(body, hints)
        return {
            "lane": lane,
            "tenant": name,
            "priority": self._priority(body, tenant, lane),
            "slo": SLO(
                hints.ttft if slo.ttft_ms is None else slo.ttft_ms / 1e3,
                None if slo.itl_ms is None else slo.itl_ms / 1e3,
                hints.tpot if slo.tpot_ms is None else slo.tpot_ms / 1e3,
            ),
            # Length first, so that no choice of names and salts can make one tenant's salt another's.
            "cache_salt": f"{len(name)}:{name}:{salt}" if self.isolate else salt,
            "session": hints.session or body.named_session,
            "program": hints.program or body.named_program,
        }

    def _priority(self, body: CallSettings | GenerationSettings, tenant: Tenant, lane: str) -> int:
        """Return the priority that the body gives, or the usual one. Raises ApiError where it is better than the tenant
        may have."""
        best = tenant.best_priority
        if body.priority is None:
            takes_priority = any(one.name == lane and one.takes_priority for one in self.lanes)
            return max(0, best) if best is not None and takes_priority else 0
        if best is not None and body.priority < best:
            raise invalid(
                f"priority is {body.priority}, and requests of {tenant.name!r} may have {best} or a higher number; "
                "lower numbers are served first.",
                "priority",
            )
        return body.priority

    def _lane(self, body: CallSettings | GenerationSettings, hints: RouterHints) -> str:
        """Return the lane of the body's tier; else the one that a router's objective names, if it is one of ours."""
        if body.service_tier in (None, "auto") and any(one.name == hints.objective for one in self.lanes):
            return hints.objective
        return "batch" if body.service_tier == "flex" else "interactive"


def _of_completion(body: CompletionSettings) -> dict[str, Any]:
    n, best_of = body.n or 1, body.best_of or body.n or 1
    if best_of < n:
        raise invalid(f"best_of ({best_of}) is smaller than n ({n}); raise best_of.", "best_of")
    if body.stream and best_of > n:
        raise invalid("best_of with streaming is not supported; set stream to false.", "best_of")
    # OpenAI shows the prompt's log-probabilities with echo; and the best are found by their log-probability.
    of_prompt = [one for one in (body.prompt_logprobs, body.logprobs if body.echo else None) if one is not None]
    own: dict[str, Any] = {"prompt_logprobs": max(of_prompt)} if of_prompt else {}
    return {**own, "n": best_of, "logprobs": 0 if best_of > n and body.logprobs is None else body.logprobs}


def _of_chat(body: ChatSettings) -> dict[str, Any]:
    if body.top_logprobs and not body.logprobs:
        raise invalid(f"top_logprobs is {body.top_logprobs}, but logprobs is not true; set it.", "top_logprobs")
    return {"n": body.n or 1, "logprobs": shown_logprobs(body)}


def _limit(body: Settings) -> int | None:
    """Return the limit of output tokens; a forced length needs none where the body names none. Raises ApiError."""
    limit, forced = max_tokens_of(body), body.output_tokens
    if forced is None:
        return limit
    if body.max_tokens is UNSET and getattr(body, "max_completion_tokens", UNSET) is UNSET:
        return None
    if limit is not None and forced > limit:
        raise invalid(f"output_tokens is {forced}, but max_tokens is {limit}; raise max_tokens.", "output_tokens")
    return limit
