"""Serve /props and /slots, as llama-server has them: what is served, and what each request slot computes.

No text of a prompt or an answer is shown, and of other tenants' requests only that a slot is in use.
"""

from __future__ import annotations

import asyncio
from collections.abc import Sequence
from typing import Any

import msgspec
from msgspec import UNSET, Struct, UnsetType
from starlette.requests import Request
from starlette.responses import Response

from inflight.live.engine_feed import SlotInfo
from inflight.server.asgi import json_of
from inflight.server.engine_access import EngineAccess
from inflight.server.errors import ApiError, invalid
from inflight.server.llama_cpp.completion import shown_settings
from inflight.server.routes import Routes, any_errors, read_query, tenant_of
from inflight.server.served import ListedModel
from inflight.server.service import Service
from inflight.server.tenants import Tenant


class PropsQuery(Struct):
    model: str | None = None


class SlotsQuery(Struct):
    fail_on_no_slot: bool = False
    model: str | None = None


class DefaultSettings(Struct, kw_only=True):
    """n_ctx: tokens of prompt and answer together, of each slot. params: of requests that name none."""

    n_ctx: int
    params: dict[str, Any]


class Modalities(Struct, kw_only=True):
    vision: bool
    audio: bool


class Props(Struct, kw_only=True):
    """total_slots: requests that are computed at once; 0: not known. model_path: the name, no path. fill_in_middle: the
    model has tokens for /infill."""

    default_generation_settings: DefaultSettings
    total_slots: int
    model_alias: str
    model_path: str
    chat_template: str
    bos_token: str
    eos_token: str
    modalities: Modalities
    fill_in_middle: bool
    build_info: str
    is_sleeping: bool


class NextToken(Struct, kw_only=True):
    """n_remain: -1: no limit but the context."""

    has_next_token: bool
    n_remain: int
    n_decoded: int


class Slot(Struct, kw_only=True):
    """A request slot. id_task: -1 where it is free, or another tenant's. n_prompt_tokens_processed: computed so far.
    request_id, lane, tenant: of its request. engine: of several."""

    id: int
    id_task: int
    n_ctx: int
    is_processing: bool
    n_prompt_tokens: int | UnsetType = UNSET
    n_prompt_tokens_processed: int | UnsetType = UNSET
    params: dict[str, Any] | UnsetType = UNSET
    next_token: NextToken | UnsetType = UNSET
    request_id: str | UnsetType = UNSET
    lane: str | UnsetType = UNSET
    tenant: str | UnsetType = UNSET
    engine: str | UnsetType = UNSET


def llama_cpp_routes(service: Service, engines: EngineAccess | None, version: str) -> Routes:
    """Return the routes. engines: None where they cannot be asked."""
    routes = Routes("operation")

    @routes.get("/props", query=PropsQuery, result=Props, errors=any_errors())
    async def props(request: Request) -> Response:
        """The served model: context, slots, sampling defaults, chat template. model: where there are several."""
        asked = read_query(request, PropsQuery).model
        one = _model(await service.models.listed(), asked)
        slots = {} if engines is None else await engines.slots()
        answer = next((slots[name] for name in (one.model, "") if name in slots), None)
        rows = answer.hello.max_rows if answer is not None and answer.hello is not None else 0
        return json_of(await asyncio.to_thread(_props, one, rows, version))  # tokens are looked up the first time

    @routes.get("/slots", query=SlotsQuery, result=list[Slot], errors=any_errors())
    async def slots(request: Request) -> Response:
        """The batch, slot by slot. fail_on_no_slot: 503 where none is free. model: one of several."""
        query, tenant = read_query(request, SlotsQuery), tenant_of(request)
        answers = {} if engines is None else await engines.slots()
        if not answers:
            why = "no model is in memory now; call one, and ask again."
            if not service.settings.ui:
                why = "the server has no live page, which reads them; start it without --no-ui."
            raise ApiError(404, f"There are no slots to show: {why}", code="not_found")
        listed, engine = await service.models.listed(), query.model
        lengths = {one.model: one.served.max_model_len for one in listed if one.served}
        if engine is not None and engine not in answers:
            model = _model(listed, engine).model
            engine = None if service.models.residency is None else model  # all engines are of the only model
        found: list[Slot] = []
        for name, answer in sorted(answers.items()):
            if engine not in (None, name) or answer.hello is None:
                continue
            used = {one.slot: one for one in answer.slots or ()}
            n_ctx = lengths.get(name, max(lengths.values(), default=0))
            found += [
                _slot(len(found) + row, n_ctx, used.get(row), tenant, name) for row in range(answer.hello.max_rows)
            ]
        if query.fail_on_no_slot and all(one.is_processing for one in found):
            raise ApiError(503, "No slot is free; new requests wait in the queue.", code="no_slot", retry_after=1.0)
        return Response(msgspec.json.encode(found), media_type="application/json")

    return routes


def _model(listed: Sequence[ListedModel], asked: str | None) -> ListedModel:
    """Return the model by a name, or the only one that is in memory. Raises ApiError."""
    loaded = [one for one in listed if one.served is not None and one.adapter is None]
    names = list(dict.fromkeys(one.model for one in listed))
    known = [one for one in loaded if asked in (one.name, one.model)] if asked is not None else loaded
    if not known or (asked is None and len({one.model for one in known}) > 1):
        state = "in memory now" if asked is None or asked in names else "known"
        raise invalid(f"Name a model that is {state}, as ?model=NAME; this server has {', '.join(names)}.", "model")
    return known[0]


def _props(one: ListedModel, rows: int, version: str) -> Props:
    served = one.served
    assert served is not None, "it is in memory"
    translator, tokenizer = served.translator, served.tokenizer
    special = {} if tokenizer is None else tokenizer.special_tokens
    return Props(
        default_generation_settings=DefaultSettings(
            n_ctx=served.max_model_len, params={**shown_settings(translator.defaults, -1), "n_predict": -1}
        ),
        total_slots=rows,
        model_alias=one.name,
        model_path=one.model,
        chat_template=translator.encoder.template_source,
        bos_token=str(special.get("bos_token", "")),
        eos_token=str(special.get("eos_token", "")),
        modalities=Modalities(vision=False, audio=False),
        fill_in_middle=tokenizer is not None and tokenizer.fill_in_middle is not None,
        build_info=f"inflight {version}",
        is_sleeping=False,
    )


def _slot(number: int, n_ctx: int, used: SlotInfo | None, tenant: Tenant, engine: str) -> Slot:
    of_engine: dict[str, Any] = {"engine": engine} if engine else {}
    if used is None or not (tenant.operator or used.tenant == tenant.name):
        return Slot(id=number, id_task=-1, n_ctx=n_ctx, is_processing=used is not None, **of_engine)
    limit = -1 if used.max_tokens is None else used.max_tokens
    return Slot(
        id=number,
        id_task=used.number,
        n_ctx=n_ctx,
        is_processing=True,
        n_prompt_tokens=used.prompt_tokens,
        n_prompt_tokens_processed=min(used.computed, used.prompt_tokens),
        params={"n_predict": limit, "temperature": used.temperature},
        next_token=NextToken(
            has_next_token=True,
            n_remain=-1 if limit < 0 else max(0, limit - used.output_tokens),
            n_decoded=used.output_tokens,
        ),
        request_id=used.request_id,
        lane=used.lane,
        tenant=used.tenant,
        **of_engine,
    )
