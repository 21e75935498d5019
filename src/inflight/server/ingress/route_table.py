"""The application's routes, for those who stand before it: what a path is called, and which methods it has."""

from __future__ import annotations

from collections.abc import Iterable

from starlette.routing import BaseRoute, Match, Route
from starlette.types import Scope


class RouteTable:
    def __init__(self, routes: Iterable[BaseRoute]):
        self._routes = [route for route in routes if isinstance(route, Route)]
        self._plain = {route.path for route in self._routes if not route.param_convertors}

    def template(self, scope: Scope) -> str:
        """The path as its route writes it, "other" where there is none: of those there are few, whatever is asked."""
        if scope["path"] in self._plain:  # nearly always
            return str(scope["path"])
        found = self._fitting(scope)
        return found[0].path if found else "other"

    def methods(self, scope: Scope) -> set[str]:
        """Of all routes of the path."""
        methods = {method for route in self._fitting(scope) for method in route.methods or ()}
        return methods | {"HEAD"} if "GET" in methods else methods

    def _fitting(self, scope: Scope) -> list[Route]:
        return [route for route in self._routes if route.matches(scope)[0] is not Match.NONE]
