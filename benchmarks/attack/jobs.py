"""Batch jobs that attackers leave behind: cancelled, or they would go on through the quiet times that follow."""

from __future__ import annotations

import contextlib
import http.client
import json
from collections.abc import Sequence
from typing import Any

from benchmarks.attack.wire import HOST

_ENDED = ("completed", "failed", "expired", "cancelled", "cancelling")
_SECONDS = 20.0  # for an answer


def cancel_jobs(port: int, keys: Sequence[str]) -> None:
    """Cancel the jobs of these keys; without any, those of a server without keys. Ignore a server that is gone."""
    with contextlib.suppress(OSError, ValueError, http.client.HTTPException):
        for key in keys or [""]:
            jobs = _asked(port, key, "GET", "/v1/batches?limit=100").get("data", [])
            for job in jobs:
                if job["status"] not in _ENDED:
                    _asked(port, key, "POST", f"/v1/batches/{job['id']}/cancel")


def _asked(port: int, key: str, method: str, path: str) -> Any:
    connection = http.client.HTTPConnection(HOST, port, timeout=_SECONDS)
    try:
        connection.request(method, path, headers={"Authorization": f"Bearer {key}"} if key else {})
        return json.loads(connection.getresponse().read())
    finally:
        connection.close()
