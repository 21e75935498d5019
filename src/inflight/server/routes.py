"""Routes: each an operation of a path, the function that answers it, and its entry in the OpenAPI document."""

from __future__ import annotations

import inspect
from collections.abc import Awaitable, Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from functools import cache
from typing import Any, TypeVar, get_type_hints

import msgspec
from msgspec import Struct, ValidationError
from msgspec.structs import fields
from starlette.requests import Request
from starlette.responses import Response
from starlette.routing import BaseRoute, Match, Route
from starlette.types import Scope

from inflight.counted import LONGEST_SHOWN, did_you_mean
from inflight.server.common.mistakes import wrong_value
from inflight.server.errors import ApiError, Error, invalid
from inflight.server.settings import ServerSettings
from inflight.server.tenants import Tenant

Answer = Callable[[Request], Awaitable[Response]]
Q = TypeVar("Q", bound=Struct)
BLAMES_CLIENT = "The request is to blame, or comes at the wrong time"
BLAMES_SERVER = "The server is to blame, or is not ready"
_OF_PROXIES = ("x-forwarded-for", "forwarded")  # headers, which name clients that may be on other machines


@dataclass(frozen=True, slots=True, kw_only=True)
class Operation:
    """One method of one path.

    Attributes:
        name: in the document's operationId. about: its description there. tag: the group that it is shown in.
        result: type of the JSON that answers with status 200. content: other media types of that answer, with schemas.
        body, query: structs of the JSON body and of the query's parameters. form: schema of a form.
        errors: schemas and descriptions by status. needs_key: where the server has API keys.
        is_documented: it stands in the document.
    """

    method: str
    path: str
    answer: Answer
    name: str
    about: str = ""
    tag: str = ""
    result: Any = None
    result_is: str = "Successful Response"
    content: Mapping[str, Any] = field(default_factory=dict)
    body: type[Struct] | None = None
    form: Mapping[str, Any] | None = None
    query: type[Struct] | None = None
    errors: Mapping[str, tuple[type[Struct], str]] = field(default_factory=dict)
    needs_key: bool = True
    is_documented: bool = True

    @property
    def route(self) -> Route:
        return Route(self.path, self.answer, methods=[self.method], name=self.name)


class Routes:
    """Operations of one group, in the order in which paths are matched."""

    def __init__(self, tag: str = "", *, needs_key: bool = True, is_documented: bool = True):
        self.operations: list[Operation] = []
        self._shared: dict[str, Any] = {"tag": tag, "needs_key": needs_key, "is_documented": is_documented}

    def add(self, method: str, path: str, answer: Answer, **settings: Any) -> None:
        """Add an operation. Its name and description are those of the function unless settings have others."""
        named = {"name": getattr(answer, "__name__", ""), "about": inspect.getdoc(answer) or ""}
        shared = {**self._shared, **named, **settings}
        self.operations.append(Operation(method=method, path=path, answer=answer, **shared))

    def get(self, path: str, **settings: Any) -> Callable[[Answer], Answer]:
        return self._decorator("GET", path, settings)

    def post(self, path: str, **settings: Any) -> Callable[[Answer], Answer]:
        return self._decorator("POST", path, settings)

    def delete(self, path: str, **settings: Any) -> Callable[[Answer], Answer]:
        return self._decorator("DELETE", path, settings)

    def _decorator(self, method: str, path: str, settings: dict[str, Any]) -> Callable[[Answer], Answer]:
        def add(answer: Answer) -> Answer:
            self.add(method, path, answer, **settings)
            return answer

        return add


def any_errors(error: type[Struct] = Error) -> dict[str, tuple[type[Struct], str]]:
    """Return the `errors` of an operation that may answer with any status of a client's or the server's fault."""
    return {"4XX": (error, BLAMES_CLIENT), "5XX": (error, BLAMES_SERVER)}


def tenant_of(request: Request) -> Tenant:
    """Return whose request it is, as the ingress has found out."""
    tenant: Tenant = request.state.tenant
    return tenant


def read_query(request: Request, kind: type[Q]) -> Q:
    """Return the query's parameters; others than the struct has are ignored.

    Raises:
        ApiError: 400, of the first that has not the form of its field.
    """
    given, values = request.query_params, dict[str, Any]()
    for name, parameter, type_, is_list in _parameters(kind):
        if parameter in given:
            text: Any = given.getlist(parameter) if is_list else given[parameter]
            values[name] = _value_of(parameter, type_, text)
    try:
        return kind(**values)
    except TypeError:
        missing = next(one.encode_name for one in fields(kind) if one.name not in values and one.required)
        raise invalid(f"The parameter {missing!r} is missing; give it.", missing, "missing_field") from None


def _value_of(name: str, type_: Any, text: str | list[str]) -> Any:
    """Return the value that a parameter's text stands for: "20" is a number, "true" is a truth.

    Args:
        text: Several texts, where the parameter may be given several times.

    Raises:
        ApiError: 400.
    """
    try:
        return msgspec.convert(text, type_, strict=False)
    except ValidationError as error:
        raise wrong_value(name, type_, error, text) from None


@cache
def _parameters(kind: type[Struct]) -> tuple[tuple[str, str, Any, bool], ...]:
    """Return of each field its name, the parameter's name, its type, and whether it may be given several times."""
    types = get_type_hints(kind, include_extras=True)
    return tuple((one.name, one.encode_name, types[one.name], _is_list(types[one.name])) for one in fields(kind))


def _is_list(type_: Any) -> bool:
    return any(isinstance(one, msgspec.inspect.ListType) for one in _alternatives(msgspec.inspect.type_info(type_)))


def _alternatives(info: msgspec.inspect.Type) -> Sequence[msgspec.inspect.Type]:
    return info.types if isinstance(info, msgspec.inspect.UnionType) else (info,)


def check_operator(tenant: Tenant, action: str) -> None:
    """Refuse a tenant that may not change what is served; without keys any may. Raises ApiError 403."""
    if not tenant.operator:
        raise ApiError(
            403,
            f"The key of {tenant.name!r} may not {action}; take one whose tenant has operator = true in the keys file.",
            code="not_an_operator",
        )


def check_manages(request: Request, settings: ServerSettings, action: str) -> None:
    """Refuse a client that may not change the server for all others: one whose key is no operator's, and without keys
    any that may be on another machine. Raises ApiError 403."""
    tenant = tenant_of(request)
    check_operator(tenant, action)
    if tenant.name:
        return
    if not settings.is_loopback:
        where, otherwise = f"listens on {settings.host}", ", or with --host 127.0.0.1"
    elif settings.root_path or settings.trusted_proxies or any(one in request.headers for one in _OF_PROXIES):
        where, otherwise = "is reached through a proxy", ""
    else:
        return
    raise ApiError(
        403,
        f"This server {where} and asks for no key, so that no client may {action}; start it with --api-key{otherwise}.",
        code="not_an_operator",
    )


class RouteTable:
    """The application's routes, for layers before it."""

    def __init__(self, routes: Iterable[BaseRoute]):
        self._routes = [route for route in routes if isinstance(route, Route)]
        self._plain = {route.path for route in self._routes if not route.param_convertors}

    def template(self, scope: Scope) -> str:
        """Return the path as its route has it, "other" where there is no route, so that there are few."""
        if scope["path"] in self._plain:  # nearly always
            return str(scope["path"])
        found = self._fitting(scope)
        return found[0].path if found else "other"

    def methods(self, scope: Scope) -> set[str]:
        methods = {method for route in self._fitting(scope) for method in route.methods or ()}
        return methods | {"HEAD"} if "GET" in methods else methods

    def nearest(self, path: str) -> str:
        """Return ` Did you mean …?` with the path that is written most alike; "" where none is. A client whose base
        address lacks /v1 asks for its end alone."""
        if (below := f"/v1{path}") in self._plain:
            return f" Did you mean {below}?"
        return did_you_mean(path, self._plain, alike=0.8) if len(path) <= LONGEST_SHOWN else ""

    def _fitting(self, scope: Scope) -> list[Route]:
        return [route for route in self._routes if route.matches(scope)[0] is not Match.NONE]
