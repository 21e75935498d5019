"""Keys and certificates that are read again while the server runs, on SIGHUP. Calls and streams in flight go on.

A file that cannot be used changes nothing: what was in force stays, and the log says why.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Callable, Sequence

from inflight.server.settings import ServerSettings
from inflight.server.tenants import KeysError, Tenants
from inflight.server.tls import CertificateInForce, TlsError

log = logging.getLogger("inflight.server")


def can_reload(settings: ServerSettings, tenants: Tenants) -> bool:
    """Return whether any option names a file that can be read again."""
    return tenants.file is not None or settings.ssl_certfile is not None


async def reload_keys(
    tenants: Tenants, settings: ServerSettings, prepare: Callable[[Sequence[str]], None] = lambda names: None
) -> bool:
    """Read the keys file again, if there is one, and put its tenants in force.

    Args:
        prepare: Called with the new tenants' names before they are in force; raises KeysError where they cannot be.

    Returns:
        Whether other keys are in force.
    """
    if tenants.file is None:
        return False
    async with tenants.reloading:
        return await _reload_keys(tenants, settings, prepare)


async def _reload_keys(tenants: Tenants, settings: ServerSettings, prepare: Callable[[Sequence[str]], None]) -> bool:
    before, weights = set(tenants.names), tenants.weights
    try:
        reread = await asyncio.to_thread(tenants.reread)
        prepare(reread.names)
    except KeysError as error:
        log.error(f"{error} The previous keys stay in force.")
        return False
    tenants.take(reread)
    after = set(tenants.names)
    changed = (("new", after - before), ("gone", before - after))
    changes = "".join(f"; {what}: {', '.join(sorted(names))}" for what, names in changed if names)
    log.info(f"--api-keys-file {tenants.file} is reloaded{changes}.")
    if tenants.weights != weights:
        log.warning("Weights of tenants take effect when the server is restarted.")
    if len(after) > 1 == len(before) and not settings.isolate_tenants:
        log.warning("The server was started with one tenant: all share cached prefixes until it is restarted.")
    return True


def reload_certificate(certificate: CertificateInForce | None) -> bool:
    """Read the certificate and its key again. Return whether there is one, and it is in force."""
    if certificate is None:
        return False
    try:
        certificate.read()
    except TlsError as error:
        log.error(f"{error} The previous certificate stays in force.")
        return False
    log.info(f"--ssl-certfile {certificate.path} is reloaded, for new connections.")
    return True
