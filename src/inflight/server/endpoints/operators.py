"""Who may change what is served: operators, which is everybody where there are no keys."""

from __future__ import annotations

from inflight.server.errors import ApiError
from inflight.server.tenants import Tenant


def check_operator(tenant: Tenant, to_do: str) -> None:
    """to_do: in words. Raises ApiError 403."""
    if not tenant.operator:
        raise ApiError(
            403,
            f"The key of {tenant.name!r} may not {to_do}; take one whose tenant has operator = true in the keys file.",
            code="not_an_operator",
        )
