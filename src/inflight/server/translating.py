"""Translate a prepared body into a `Call`: a request for each prompt, and what the answer shows.

Batch jobs and the command line translate their lines here too, so that a body means the same wherever it comes from.
"""

from __future__ import annotations

import time
import uuid
from collections.abc import Callable
from dataclasses import dataclass, field, replace
from functools import partial
from typing import TypedDict

from msgspec import UNSET, structs

from inflight.core.types.request import SLO, ReasoningText, Request
from inflight.core.types.sampling import Adapter, InvalidSampling, SamplingParams
from inflight.frontend.adapter_names import AdapterNames
from inflight.frontend.answers import AnswerParsing
from inflight.frontend.fields import SAMPLING_FIELDS
from inflight.frontend.parsers.parser_choice import ParserChoice
from inflight.frontend.prompts import PromptEncoder
from inflight.frontend.text_tasks import TextTasks
from inflight.models.spec import Pooler
from inflight.server.call import Call, EndpointName
from inflight.server.common.fields import CallSettings, ChatSettings, CompletionSettings, Slo
from inflight.server.common.limits import check_model, max_tokens_of
from inflight.server.common.prepared import Prepared, PreparedChat, PreparedCompletion, PreparedTexts
from inflight.server.errors import clients_fault, invalid
from inflight.server.kv_peers import KVPeers
from inflight.server.loaded_engine import ServedLane
from inflight.server.offload import offload
from inflight.server.registry import ENDPOINTS
from inflight.server.router_hints import NO_HINTS, RouterHints
from inflight.server.tenants import Tenant

Settings = CompletionSettings | ChatSettings
MANY_TOKEN_BYTES = 1 << 17  # of prompts, from which on they become requests beside the event loop
MANY_PROMPTS = 16


class AnswerMarks(TypedDict, total=False):
    """Texts and tokens to be found in a call's answers, by the names that its requests have."""

    shown_token_ids: tuple[int, ...]
    reasoning: ReasoningText | None
    call_marks: tuple[tuple[int, ...], ...]


class Placement(TypedDict):
    """Settings of a call's requests, by the names that these have: whose they are, when they are to be served."""

    lane: str
    tenant: str
    priority: int
    slo: SLO
    cache_salt: str
    session: str


@dataclass(frozen=True, slots=True, kw_only=True)
class RequestTranslator:
    """Translates prepared bodies into calls.

    encoder: makes requests, and draws the seeds of those that name none. defaults: sampling settings of bodies that
    name none, as the model's files have them. models: names by which the model may be called; none: any. now: the
    engine's clock. isolate: separate tenants' cached prefixes. parsers: of the model's answers; shown_token_ids: of
    special tokens that these must see; call_marks: by which the engine knows answers that call tools. pooler: how the
    engine makes vectors or scores, if it does. adapters: that may be called in the model's place. lanes: that
    the engine has. peers: other engines that prompts are handed to, or taken from; None: none.
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

    def call(self, prepared: Prepared, tenant: Tenant, *, batch: bool = False, hints: RouterHints = NO_HINTS) -> Call:
        """Raises ApiError. batch: the line of a batch job, which belongs to the batch lane whatever its tier. hints:
        what a router says of it."""
        placement = self._placement(prepared.settings, tenant, batch, hints)
        if isinstance(prepared, PreparedCompletion):
            return self._completion(prepared, tenant, placement)
        if isinstance(prepared, PreparedTexts):
            return self._texts(prepared, tenant, placement)
        return self._chat(prepared, tenant, placement)

    async def call_offloaded(
        self, prepared: Prepared, tenant: Tenant, *, batch: bool = False, hints: RouterHints = NO_HINTS
    ) -> Call:
        """As `call`; beside the event loop where the prompts are long, or words are to be cut."""
        translate = partial(self.call, prepared, tenant, batch=batch, hints=hints)
        settings = None if isinstance(prepared, PreparedTexts) else prepared.settings
        words = settings is not None and (settings.bad_words or settings.allowed_token_ids)
        small = sum(len(prompt.token_ids) for prompt in prepared.prompts) < MANY_TOKEN_BYTES
        small = small and len(prepared.prompts) <= MANY_PROMPTS
        return translate() if small and not words else await offload(translate)

    def params(self, prepared: PreparedCompletion | PreparedChat) -> SamplingParams:
        """Return the sampling settings of a body. Raises ApiError."""
        body = prepared.settings
        return self._completion_params(body) if isinstance(body, CompletionSettings) else self._chat_params(body)

    def _completion_params(self, body: CompletionSettings) -> SamplingParams:
        n, best_of = body.n or 1, body.best_of or body.n or 1
        if best_of < n:
            raise invalid(f"best_of is {best_of}, but n is {n}; draw at least as many as are wanted.", "best_of")
        if body.stream and best_of > n:
            raise invalid(
                f"best_of is {best_of} and n is {n}: which are best is known at the end; do not stream.", "best_of"
            )
        # OpenAI shows the prompt's log-probabilities with echo; and the best are found by their log-probability.
        scores = body.logprobs if body.echo and body.logprobs is not None else None
        wanted = 0 if best_of > n and body.logprobs is None else body.logprobs
        return self._params(body, n=best_of, logprobs=wanted, scores=scores)

    def _chat_params(self, body: ChatSettings) -> SamplingParams:
        if body.top_logprobs and not body.logprobs:
            raise invalid(f"top_logprobs is {body.top_logprobs}, but logprobs is not true; set it.", "top_logprobs")
        return self._params(body, n=body.n or 1, logprobs=_shown_logprobs(body), scores=None)

    def _completion(self, prepared: PreparedCompletion, tenant: Tenant, placement: Placement) -> Call:
        body = prepared.settings
        call = self._call("completion", prepared, self.params(prepared), tenant, placement)
        return replace(call, n=body.n or 1, logprobs=body.logprobs, echo=bool(body.echo))

    def _chat(self, prepared: PreparedChat, tenant: Tenant, placement: Placement) -> Call:
        body = prepared.settings
        marks = AnswerMarks(
            shown_token_ids=self.shown_token_ids,
            reasoning=None if self.parsers is None else self.parsers.reasoning_text(prepared.in_reasoning),
            call_marks=self.call_marks if prepared.tools else (),
        )
        call = self._call(prepared.kind, prepared, self.params(prepared), tenant, placement, marks)
        return replace(
            call,
            logprobs=_shown_logprobs(body),
            parsing=AnswerParsing(self.parsers, prepared.tools, prepared.in_reasoning, prepared.parallel_calls),
            include_reasoning=body.include_reasoning is not False,
            old_functions=prepared.old_functions,
            repeated=prepared.repeated,
            kept_items=prepared.kept_items,
        )

    def _texts(self, prepared: PreparedTexts, tenant: Tenant, placement: Placement) -> Call:
        body, tasks = prepared.settings, TextTasks(self.pooler)
        own_id, arrival = uuid.uuid4().hex, self.now()
        model, adapter = self.called(body.model, tenant)
        params = tasks.params(
            prepared.told, dimensions=body.dimensions, normalize=body.normalize, raw=prepared.form.raw
        )
        requests = [
            self.encoder.pooled(
                f"{own_id}-{index}",
                prompt.ids(),
                params,
                arrival,
                second_text_at=prompt.second_text_at,
                adapter=adapter,
                **placement,
            )
            for index, prompt in enumerate(prepared.prompts)
        ]
        return Call(
            kind=prepared.kind,
            call_id=f"{ENDPOINTS[prepared.kind].call_prefix}{body.request_id or own_id}",
            created=int(time.time()),
            model=model,
            requests=tuple(requests),
            prompts=(None,) * len(requests),
            n=1,
            tier="flex" if placement["lane"] == "batch" else "default",
            tenant=tenant,
            timings=bool(body.timings),
            text_form=prepared.form,
            pairs=prepared.pairs,
            labels=tasks.labels,
        )

    def _params(self, body: Settings, *, n: int, logprobs: int | None, scores: int | None) -> SamplingParams:
        given = {
            name: value
            for name in SAMPLING_FIELDS
            if (value := getattr(body, name, None)) is not None and name not in ("n", "logprobs", "max_tokens")
        }
        wanted = [one for one in (body.prompt_logprobs, scores) if one is not None]
        if wanted:
            given["prompt_logprobs"] = max(wanted)
        try:
            return replace(self.defaults, **given, n=n, logprobs=logprobs, max_tokens=_max_tokens(body))
        except InvalidSampling as error:
            name = str(error).split()[0]
            raise invalid(str(error), name if name in type(body).__struct_fields__ else None) from None

    def _call(
        self,
        kind: EndpointName,
        prepared: PreparedCompletion | PreparedChat,
        params: SamplingParams,
        tenant: Tenant,
        placement: Placement,
        marks: AnswerMarks = AnswerMarks(),  # noqa: B008  (never changed)
    ) -> Call:
        body = prepared.settings
        options = body.stream_options
        own_id = uuid.uuid4().hex
        model, adapter = self.called(body.model, tenant)
        arrival = self.now()
        requests = []
        for index, prompt in enumerate(prepared.prompts):

            def make(name: str = f"{own_id}-{index}", tokens: tuple[int, ...] = prompt.ids()) -> Request:
                return self.encoder.request(
                    name,
                    tokens,
                    params,
                    arrival,
                    grammar=prepared.grammar,
                    adapter=adapter,
                    forced_output_tokens=body.output_tokens,
                    **placement,
                    **marks,
                )

            requests.append(clients_fault(make, "stop"))
        kv_transfer = self._hand_over(body, requests)
        return Call(
            kind=kind,
            # A client may name its call, but not the engine's requests, among which names must differ.
            call_id=f"{ENDPOINTS[kind].call_prefix}{body.request_id or own_id}",
            created=int(time.time()),
            model=model,
            requests=tuple(requests),
            prompts=tuple(prompt.text for prompt in prepared.prompts),
            n=params.n,
            tier="flex" if placement["lane"] == "batch" else "default",
            tenant=tenant,
            form_field=prepared.form_field,
            prompt_logprobs=body.prompt_logprobs is not None,
            stream=bool(body.stream),
            include_usage=bool(options and options.include_usage),
            continuous_usage=bool(options and options.continuous_usage_stats),
            timings=bool(body.timings),
            return_token_ids=bool(body.return_token_ids),
            names_are_ids=bool(body.return_tokens_as_token_ids),
            kv_transfer=kv_transfer,
        )

    def _hand_over(self, body: Settings, requests: list[Request]) -> bytes:
        """Tells the only request of a call what of its prompt comes from or goes to other engines. Returns JSON, what
        its answer says of that. A call of several prompts is computed here alone."""
        if self.peers is None or body.kv_transfer_params is None or len(requests) != 1:
            return b""
        request, tokens = requests[0], len(requests[0].prompt_token_ids)
        handover = self.peers.handover(body.kv_transfer_params, request.request_id, tokens)
        requests[0] = structs.replace(request, kv_transfer=handover)
        return self.peers.told(handover, tokens) if handover is not None and handover.give else b""

    def called(self, name: str | None, tenant: Tenant) -> tuple[str, Adapter | None]:
        """The name in answers, and the adapter of that name, if it is one's. Raises ApiError 404; of an adapter that is
        not this tenant's as if there were none."""
        adapter = self.adapters.named(name)
        if adapter is not None and tenant.may_name(adapter.name):
            return adapter.name, adapter
        known = (*self.models, *(one for one in self.adapters.names if tenant.may_name(one))) if self.models else ()
        return check_model(name, known), None

    def _placement(self, body: CallSettings, tenant: Tenant, batch: bool, hints: RouterHints) -> Placement:
        """The key's name is whose request it is, whatever else is said: no client may choose another's share.
        Without keys it is whom a router names, which stands before the client, else whom the body does."""
        name = tenant.name or hints.fairness_id or body.named_user or ""
        salt, slo = body.cache_salt or "", body.slo or Slo()
        lane = "batch" if batch else self._lane(body, hints)
        return {
            "lane": lane,
            "tenant": name,
            "priority": self._priority(body, tenant, lane),
            "slo": SLO(
                hints.ttft if slo.ttft_ms is None else slo.ttft_ms / 1e3,
                hints.tpot if slo.itl_ms is None else slo.itl_ms / 1e3,
            ),
            # Length first, so that no choice of names and salts can make one tenant's salt another's.
            "cache_salt": f"{len(name)}:{name}:{salt}" if self.isolate else salt,
            "session": hints.session or body.named_session,
        }

    def _priority(self, body: CallSettings, tenant: Tenant, lane: str) -> int:
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

    def _lane(self, body: CallSettings, hints: RouterHints) -> str:
        """The tier that the body names; else the lane that an objective is called by, if it is called by any: routers
        have objectives that are none of ours."""
        if body.service_tier in (None, "auto") and any(one.name == hints.objective for one in self.lanes):
            return hints.objective
        return "batch" if body.service_tier == "flex" else "interactive"


def _max_tokens(body: Settings) -> int | None:
    """As the body names it; a forced length needs no cap of its own where none is named. Raises ApiError."""
    most, forced = max_tokens_of(body), body.output_tokens
    named = [body.max_tokens] if isinstance(body, CompletionSettings) else [body.max_tokens, body.max_completion_tokens]
    if forced is None:
        return most
    if all(one is UNSET for one in named):
        return None
    if most is not None and forced > most:
        raise invalid(f"output_tokens is {forced}, but max_tokens is {most}; raise max_tokens.", "output_tokens")
    return most


def _shown_logprobs(body: ChatSettings) -> int | None:
    """Alternatives that a conversation's answer shows beside each token; None: no log-probabilities."""
    return (body.top_logprobs or 0) if body.logprobs else None
