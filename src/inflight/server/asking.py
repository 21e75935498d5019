"""From a body to what the engine is asked: one `Call`, with a request for each prompt and what is wanted back.

Knows which field means what; nothing of HTTP or of how a request is served. Files of batch jobs and the command line
translate their lines here too, so that a body means the same wherever it comes from.
"""

from __future__ import annotations

import time
import uuid
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field, replace
from typing import Any, Literal, TypeVar

from inflight.core.request import SLO, Request
from inflight.core.sampling import InvalidSampling, SamplingParams
from inflight.frontend.fields import SAMPLING_FIELDS
from inflight.frontend.prompts import PromptEncoder, PromptError
from inflight.server.bodies.chat import ChatBody, Message
from inflight.server.bodies.common import GenerationBody
from inflight.server.bodies.completions import CompletionBody
from inflight.server.errors import ApiError, invalid
from inflight.server.tenants import Tenant
from inflight.text import ChatTemplateError, TemplateVariableError, Tokenizer

T = TypeVar("T")
TIERS = {None: "default", "auto": "default", "default": "default", "priority": "priority", "flex": "flex"}


@dataclass(frozen=True, slots=True, kw_only=True)
class Call:
    """One call of an endpoint.

    requests: one for each prompt; prompts: their texts, where they came as text. n: samples returned of each (the
    requests may draw more: best_of). logprobs: whether the answer shows them. prompt_field: what the endpoint calls the
    prompt.
    """

    kind: Literal["completion", "chat"]
    call_id: str
    created: int
    model: str
    requests: tuple[Request, ...]
    prompts: tuple[str | None, ...]
    n: int
    tier: str
    tenant: Tenant
    echo: bool = False
    logprobs: int | None = None
    prompt_logprobs: bool = False
    stream: bool = False
    include_usage: bool = False
    continuous_usage: bool = False
    timings: bool = False
    return_token_ids: bool = False

    @property
    def prompt_field(self) -> str:
        return "prompt" if self.kind == "completion" else "messages"

    @property
    def endpoint(self) -> str:
        return "/v1/completions" if self.kind == "completion" else "/v1/chat/completions"


@dataclass(frozen=True, slots=True, kw_only=True)
class Asker:
    """What is needed to translate bodies.

    defaults: sampling settings of bodies that name none, as the model's files have them. models: names by which the
    model may be called; none: any. now: the engine's clock. isolate: keep tenants' cached prefixes apart.
    most_sequences: what may wait at once; None: no bound. max_model_len: tokens of prompt and answer together; None:
    the engine alone tells.
    """

    encoder: PromptEncoder
    tokenizer: Tokenizer | None
    models: tuple[str, ...]
    now: Callable[[], float]
    defaults: SamplingParams = field(default_factory=SamplingParams)
    max_n: int = 128
    max_prompts: int = 256
    isolate: bool = False
    most_sequences: int | None = None
    max_model_len: int | None = None

    def check_model(self, name: str | None) -> str:
        """The name as the client wrote it; ours, if it wrote none. Raises ApiError 404."""
        if name is None:
            return self.models[0] if self.models else ""
        if self.models and name not in self.models:
            raise ApiError(
                404,
                f"The model {name!r} does not exist; this server has {', '.join(self.models)}.",
                param="model",
                code="model_not_found",
            )
        return name

    def completion(self, body: CompletionBody, tenant: Tenant, *, batch: bool = False) -> Call:
        """Raises ApiError. batch: the line of a batch job, which belongs to the batch lane whatever its tier."""
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
        params = self._params(body, max_tokens=body.max_tokens, n=best_of, logprobs=wanted, scores=scores)
        prompts = self._prompts(body.prompt)
        self._check_sequences(len(prompts), best_of)
        encoded = []
        for one in prompts:
            self._check_length(one, "prompt")
            encoded.append(_said(lambda one=one: self.encoder.tokens(one), "prompt"))  # type: ignore[misc]
        texts = [one if isinstance(one, str) else None for one in prompts]
        if body.echo:
            texts = [self._text(one, ids) if one is None else one for one, ids in zip(texts, encoded, strict=True)]
        return self._call(
            "completion", body, params, encoded, texts, n, tenant, batch, body.logprobs, echo=bool(body.echo)
        )

    def chat(self, body: ChatBody, tenant: Tenant, *, batch: bool = False) -> Call:
        """Raises ApiError."""
        if body.top_logprobs is not None and not body.logprobs:
            raise invalid(f"top_logprobs is {body.top_logprobs}, but logprobs is not true; set it.", "top_logprobs")
        shown = (body.top_logprobs or 0) if body.logprobs else None
        params = self._params(body, max_tokens=body.most_tokens, n=body.n or 1, logprobs=shown, scores=None)
        self._check_sequences(1, params.n)
        text = self.chat_text(body.messages, body.chat_template_kwargs)
        self._check_length(text, "messages")
        tokens = _said(lambda: self.encoder.rendered_tokens(text), "messages")
        return self._call("chat", body, params, [tokens], [text], body.n or 1, tenant, batch, shown)

    def chat_text(
        self, messages: list[Message], variables: Mapping[str, Any] | None, *, add_generation_prompt: bool = True
    ) -> str:
        """What the model's template makes of the messages. A developer's message is what templates call a system's."""
        plain = [message.model_dump(exclude_none=True) for message in messages]
        for message in plain:
            if message["role"] == "developer":
                message["role"] = "system"
        try:
            return self.encoder.chat_text(plain, variables, add_generation_prompt=add_generation_prompt)
        except TemplateVariableError as error:
            raise invalid(str(error), "chat_template_kwargs") from None
        except (PromptError, ChatTemplateError) as error:
            raise invalid(str(error), "messages") from None

    def _prompts(self, given: str | list[Any]) -> list[Any]:
        if isinstance(given, str) or not given or isinstance(given[0], int):
            return [given]
        if len(given) > self.max_prompts:
            raise invalid(
                f"There are {len(given)} prompts, but a call may have {self.max_prompts}; send several calls.", "prompt"
            )
        return list(given)

    def _check_sequences(self, prompts: int, samples: int) -> None:
        """More than may wait at once are refused for good: no later time would be better."""
        most = self.most_sequences
        if most is not None and prompts * samples > most:
            what = f"{prompts} prompts of {samples} samples each" if prompts > 1 else f"{samples} samples"
            raise invalid(
                f"The call asks for {what}, {prompts * samples} in all, but at most {most} may wait at once; ask for "
                "fewer in one call, or raise --max-queued-requests.",
                "n" if samples > most or prompts == 1 else "prompt",
            )

    def _check_length(self, prompt: Any, field: str) -> None:
        """Text that cannot fit, however it is cut into tokens, is not cut: megabytes would take seconds."""
        if not isinstance(prompt, str) or self.tokenizer is None or self.max_model_len is None:
            return
        if len(prompt) <= self.max_model_len or (longest := self.tokenizer.longest_token) is None:
            return
        most = self.max_model_len * longest
        if len(prompt) > most:
            raise invalid(
                f"The prompt has {len(prompt)} characters, but the model length is {self.max_model_len} tokens, and a "
                f"token stands for at most {longest} characters; shorten the prompt to well below {most} characters "
                "or raise --max-model-len.",
                field,
                "context_length_exceeded",
            )

    def _text(self, text: str | None, token_ids: tuple[int, ...]) -> str:
        """Token ids as text, for echo."""
        if self.tokenizer is None:
            raise invalid("echo needs text, but this model has no tokenizer; leave it out.", "echo")
        return self.tokenizer.decode(token_ids, skip_special_tokens=False)

    def _params(
        self, body: GenerationBody, *, max_tokens: int | None, n: int, logprobs: int | None, scores: int | None
    ) -> SamplingParams:
        if n > self.max_n:
            raise invalid(f"{n} samples are asked for, but a prompt may have {self.max_n}; ask for fewer.", "n")
        given = {
            name: value
            for name in SAMPLING_FIELDS
            if (value := getattr(body, name, None)) is not None and name not in ("n", "logprobs", "max_tokens")
        }
        wanted = [one for one in (body.prompt_logprobs, scores) if one is not None]
        if wanted:
            given["prompt_logprobs"] = max(wanted)
        if body.output_tokens is not None:
            if max_tokens is not None and "max_tokens" in body.model_fields_set and body.output_tokens > max_tokens:
                raise invalid(
                    f"output_tokens is {body.output_tokens}, but max_tokens is {max_tokens}; raise max_tokens.",
                    "output_tokens",
                )
            max_tokens = max_tokens if "max_tokens" in body.model_fields_set else None
        try:
            return replace(self.defaults, **given, n=n, logprobs=logprobs, max_tokens=max_tokens)
        except InvalidSampling as error:
            name = str(error).split()[0]
            raise invalid(str(error), name if name in type(body).model_fields else None) from None

    def _call(
        self,
        kind: Literal["completion", "chat"],
        body: GenerationBody,
        params: SamplingParams,
        encoded: list[tuple[int, ...]],
        texts: list[str | None] | list[str],
        n: int,
        tenant: Tenant,
        batch: bool,
        logprobs: int | None,
        echo: bool = False,
    ) -> Call:
        options = body.stream_options
        if options is not None and not body.stream:
            raise invalid(
                "stream_options are set, but stream is not true; set it, or leave them out.", "stream_options"
            )
        call_id = f"{'cmpl' if kind == 'completion' else 'chatcmpl'}-{uuid.uuid4().hex}"
        placement = self._placement(body, tenant, batch)
        arrival = self.now()
        requests = []
        for index, tokens in enumerate(encoded):

            def make(index: int = index, tokens: tuple[int, ...] = tokens) -> Request:
                return self.encoder.request(f"{call_id}-{index}", tokens, params, arrival, **placement)

            requests.append(_said(make, "stop"))
        return Call(
            kind=kind,
            call_id=call_id,
            created=int(time.time()),
            model=self.check_model(body.model),
            requests=tuple(requests),
            prompts=tuple(texts),
            n=n,
            tier="flex" if batch else TIERS[body.service_tier],
            tenant=tenant,
            echo=echo,
            logprobs=logprobs,
            prompt_logprobs=body.prompt_logprobs is not None,
            stream=bool(body.stream),
            include_usage=bool(options and options.include_usage),
            continuous_usage=bool(options and options.continuous_usage_stats),
            timings=bool(body.timings),
            return_token_ids=bool(body.return_token_ids),
        )

    def _placement(self, body: GenerationBody, tenant: Tenant, batch: bool) -> dict[str, Any]:
        """Lane, tenant, priority and targets. The key's name is whose request it is; without keys, the user field."""
        name = tenant.name or body.named_user or ""
        salt = body.cache_salt or ""
        slo = body.slo
        return {
            "lane": "batch" if batch or body.service_tier == "flex" else "interactive",
            "tenant": name,
            "priority": body.priority or 0,
            "slo": SLO() if slo is None else SLO(_seconds(slo.ttft_ms), _seconds(slo.itl_ms)),
            # Length first, so that no choice of names and salts can make one tenant's salt another's.
            "cache_salt": f"{len(name)}:{name}:{salt}" if self.isolate else salt,
            "forced_output_tokens": body.output_tokens,
        }


def _seconds(milliseconds: float | None) -> float | None:
    return None if milliseconds is None else milliseconds / 1e3


def _said(make: Callable[[], T], field: str) -> T:
    """Mistakes that text and prompts tell in sentences are the client's."""
    try:
        return make()
    except ValueError as error:
        if not type(error).__module__.startswith("inflight."):
            raise  # a bug of ours
        raise invalid(str(error), field) from None
