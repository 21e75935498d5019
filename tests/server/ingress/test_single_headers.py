"""Headers that may stand once: a second one is refused, whoever would have read it."""

from __future__ import annotations

import pytest

from ..conftest import Server
from .raw import Raw, head


@pytest.mark.parametrize(
    "name", ["Authorization", "X-Api-Key", "X-Request-Id", "Content-Type", "X-Session-Id", "X-Slo-Ttft-Ms", "Host"]
)
def test_a_second_header_is_refused(server: Server, name: str) -> None:
    with Raw(server) as raw:
        answer = raw.send(head("GET", "/v1/models", f"{name}: one", f"{name}: two")).one()
    assert answer.status == 400 and answer.error["code"] == "duplicate_header"
    assert f"two headers {name}" in answer.error["message"] and answer.error["param"] == name.lower()


def test_headers_that_are_lists_may_stand_twice(server: Server) -> None:
    with Raw(server) as raw:
        for name in ("Accept", "X-Forwarded-For", "Via"):
            assert raw.send(head("GET", "/v1/models", f"{name}: one", f"{name}: two")).one().status == 200
