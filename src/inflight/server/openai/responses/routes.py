"""Routes of stored responses."""

from __future__ import annotations

from typing import Annotated, Literal

from msgspec import Meta, Struct, field
from starlette.requests import Request
from starlette.responses import Response as HttpResponse

from inflight.server.asgi import JsonResponse, json_of
from inflight.server.errors import Error, invalid
from inflight.server.jobs.service import JobService
from inflight.server.openai.responses.schema import Response
from inflight.server.routes import Routes, read_query, tenant_of

PATH = "/v1/responses"
Includable = Literal["message.output_text.logprobs", "reasoning.encrypted_content"]
_MEANINGS = {
    400: "A parameter is wrong; `param` names it.",
    401: "No API key, or an unknown one.",
    404: "There is no such response, or no more.",
    503: "The server is checking its data directory.",
    507: "The server's disk is full or broken.",
}


class InputItem(Struct, kw_only=True):
    """Other fields depend on the type."""

    id: str
    type: Literal["message", "function_call", "function_call_output", "reasoning"]


class InputItems(Struct, kw_only=True):
    object: Literal["list"] = "list"
    data: list[InputItem]
    first_id: str | None
    last_id: str | None
    has_more: bool


class ResponseDeleted(Struct, kw_only=True):
    id: str
    object: Literal["response"] = "response"
    deleted: Literal[True] = True


Included = Annotated[list[Includable], Meta(max_length=16)] | None


class ResponseQuery(Struct):
    include: Included = field(default=None, name="include[]")
    stream: bool = False


class InputItemsQuery(Struct):
    after: str | None = None
    limit: Annotated[int, Meta(ge=1, le=100)] = 20
    order: Literal["asc", "desc"] = "desc"
    include: Included = field(default=None, name="include[]")


def response_routes(service: JobService) -> Routes:
    """Return the routes of stored responses. Refusals are raised as ApiError."""
    routes = Routes("responses")

    @routes.get(f"{PATH}/{{response_id}}", query=ResponseQuery, result=Response, errors=_refusals(400, 401, 404, 507))
    async def retrieve_response(request: Request) -> HttpResponse:
        """Return a stored response, as it was answered. What it includes was said when it was asked for."""
        if read_query(request, ResponseQuery).stream:
            raise invalid(
                "stream is true, but only a response that is being made is streamed, by the call that asked for it; "
                "leave it out.",
                "stream",
                "unsupported_value",
            )
        stored = await service.responses.retrieve(tenant_of(request), request.path_params["response_id"])
        return HttpResponse(stored, media_type="application/json")

    @routes.get(
        f"{PATH}/{{response_id}}/input_items",
        query=InputItemsQuery,
        result=InputItems,
        errors=_refusals(400, 401, 404, 507),
    )
    async def list_input_items(request: Request) -> HttpResponse:
        """List the items that it was asked with, those of the responses before it among them; the last first unless
        asked otherwise."""
        asked = read_query(request, InputItemsQuery)
        items, has_more = await service.responses.input_items(
            tenant_of(request),
            request.path_params["response_id"],
            after=asked.after,
            limit=asked.limit,
            descending=asked.order == "desc",
        )
        ends = {"first_id": items[0]["id"] if items else None, "last_id": items[-1]["id"] if items else None}
        return JsonResponse({"object": "list", "data": items, **ends, "has_more": has_more})

    @routes.delete(f"{PATH}/{{response_id}}", result=ResponseDeleted, errors=_refusals(401, 404, 507))
    async def delete_response(request: Request) -> HttpResponse:
        """Delete a stored response. Those that went on from it stay, with what they have of it."""
        response_id = request.path_params["response_id"]
        await service.responses.delete(tenant_of(request), response_id)
        return json_of(ResponseDeleted(id=response_id))

    return routes


def _refusals(*statuses: int) -> dict[str, tuple[type[Struct], str]]:
    return {str(status): (Error, _MEANINGS[status]) for status in sorted({*statuses, 503})}
