"""HTTP of stored responses: looked at, listed, deleted. Knows routes and what the OpenAPI document says of them."""

from __future__ import annotations

from collections.abc import Callable
from typing import Annotated, Any, Literal, Protocol

from fastapi import APIRouter, Depends, Query
from fastapi.responses import Response as HttpResponse
from pydantic import BaseModel, ConfigDict

from inflight.server.answers import Error, Response
from inflight.server.errors import invalid
from inflight.server.responses.kept import Responses
from inflight.server.tenants import Tenant

PATH = "/v1/responses"
Includable = Literal["message.output_text.logprobs", "reasoning.encrypted_content"]
_MEANINGS = {
    400: "A parameter is wrong; `param` names it.",
    401: "No API key, or an unknown one.",
    404: "There is no such response, or no more.",
    503: "The server is checking its data directory.",
    507: "The server's disk is full or broken.",
}


class KeepsResponses(Protocol):
    """What the routes ask. Raises ApiError while there is none."""

    @property
    def responses(self) -> Responses: ...


class InputItem(BaseModel):
    """What else it has depends on its type."""

    model_config = ConfigDict(extra="allow")

    id: str
    type: Literal["message", "function_call", "function_call_output", "reasoning"]


class InputItems(BaseModel):
    object: Literal["list"] = "list"
    data: list[InputItem]
    first_id: str | None
    last_id: str | None
    has_more: bool


class ResponseDeleted(BaseModel):
    id: str
    object: Literal["response"] = "response"
    deleted: Literal[True] = True


def response_routes(service: KeepsResponses, tenant: Callable[..., Tenant]) -> APIRouter:
    """tenant: a dependency that says who asks, or raises ApiError. Refusals are raised as ApiError too."""
    routes, asking = APIRouter(tags=["responses"]), Depends(tenant)

    @routes.get(f"{PATH}/{{response_id}}", response_model=Response, responses=_refusals(400, 401, 404, 507))
    async def retrieve_response(
        response_id: str,
        include: Annotated[list[Includable] | None, Query(alias="include[]", max_length=16)] = None,
        stream: bool = False,
        tenant: Tenant = asking,
    ) -> HttpResponse:
        """A stored response, as it was answered. What it includes was said when it was asked for."""
        if stream:
            raise invalid(
                "stream is true, but only a response that is being made is streamed, by the call that asked for it; "
                "leave it out.",
                "stream",
                "unsupported_value",
            )
        return HttpResponse(await service.responses.retrieve(tenant, response_id), media_type="application/json")

    @routes.get(f"{PATH}/{{response_id}}/input_items", responses=_refusals(400, 401, 404, 507))
    async def list_input_items(
        response_id: str,
        after: str | None = None,
        limit: Annotated[int, Query(ge=1, le=100)] = 20,
        order: Literal["asc", "desc"] = "desc",
        include: Annotated[list[Includable] | None, Query(alias="include[]", max_length=16)] = None,
        tenant: Tenant = asking,
    ) -> InputItems:
        """The items that it was asked with, those of the responses before it among them; the last first unless asked
        otherwise."""
        items, has_more = await service.responses.input_items(
            tenant, response_id, after=after, limit=limit, descending=order == "desc"
        )
        ids = [item["id"] for item in items]
        return InputItems(
            data=[InputItem(**item) for item in items],
            first_id=ids[0] if ids else None,
            last_id=ids[-1] if ids else None,
            has_more=has_more,
        )

    @routes.delete(f"{PATH}/{{response_id}}", responses=_refusals(401, 404, 507))
    async def delete_response(response_id: str, tenant: Tenant = asking) -> ResponseDeleted:
        """Those that went on from it stay, with what they have of it."""
        await service.responses.delete(tenant, response_id)
        return ResponseDeleted(id=response_id)

    return routes


def _refusals(*statuses: int) -> dict[int | str, dict[str, Any]]:
    return {status: {"model": Error, "description": _MEANINGS[status]} for status in sorted({*statuses, 503})}
