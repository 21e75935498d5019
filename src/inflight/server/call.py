"""A call of an endpoint: the engine's requests, and what the answer must show of them."""

from __future__ import annotations

from dataclasses import dataclass

from inflight.core.types.request import Request
from inflight.frontend.answers import AnswerParsing
from inflight.server.common.fields import PLAIN_FORM, TextForm
from inflight.server.tenants import Tenant

EndpointName = str  # of the registry


@dataclass(frozen=True, slots=True, kw_only=True)
class Call:
    """One call of an endpoint.

    requests: one for each prompt; prompts: their texts, where they came as text. n: samples returned of each (the
    requests may draw more: best_of). logprobs: whether the answer shows them. names_are_ids:
    log-probabilities name tokens by their ids.
    parsing: of a conversation's answers. include_reasoning: they are shown with it. old_functions: a call of a tool is
    shown as `function_call`, as it was before there were tools. echoed: JSON, what the answer repeats of the body.
    stored_items: JSON, the items that the answer is stored with; none where it is not stored.
    form_field: of the body, that says what answers must be like.
    text_form: of an answer about encoder-only inputs. pairs: of requests, whose vectors are
    compared. labels: of a classifier. kv_transfer: JSON, where other engines find the prompt's keys and values.
    """

    kind: EndpointName
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
    names_are_ids: bool = False
    parsing: AnswerParsing | None = None
    include_reasoning: bool = True
    old_functions: bool = False
    echoed: bytes = b""
    stored_items: bytes = b""
    form_field: str | None = None
    text_form: TextForm = PLAIN_FORM
    pairs: tuple[tuple[int, int], ...] = ()
    labels: tuple[str, ...] = ()
    kv_transfer: bytes = b""

    @property
    def has_grammar(self) -> bool:
        """Whether the engine may have to compile a grammar before it accepts the requests."""
        return any(request.grammar is not None for request in self.requests)
