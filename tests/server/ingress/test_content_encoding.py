"""Compressed bodies: read as if they were not, and no further than a body may be."""

from __future__ import annotations

import gzip
import json
import random
import zlib
from collections.abc import Callable

import httpx
import pytest

from inflight.server.errors import ApiError
from inflight.server.ingress.bodies import INFLATED_BYTES, Inflater

from ..conftest import Server
from .raw import GENERATE, Raw, head

COMPLETIONS = "/v1/completions"
BODY = json.dumps(GENERATE).encode()


def post(server: Server, content: bytes, encoding: str, path: str = COMPLETIONS) -> httpx.Response:
    headers = {"Content-Type": "application/json", "Content-Encoding": encoding}
    return httpx.post(server.url + path, content=content, headers=headers, timeout=60)


@pytest.mark.parametrize(
    ("encoding", "content"),
    [
        ("gzip", gzip.compress(BODY)),
        ("GZIP", gzip.compress(BODY[:9]) + gzip.compress(BODY[9:])),
        ("deflate", zlib.compress(BODY)),
        ("identity", BODY),
    ],
    ids=["gzip", "two members", "deflate", "identity"],  # each worker names the same tests
)
def test_a_compressed_body_is_read(server: Server, encoding: str, content: bytes) -> None:
    answer = post(server, content, encoding)
    assert answer.status_code == 200 and answer.json()["usage"]["completion_tokens"] == GENERATE["max_tokens"]


@pytest.mark.parametrize(
    ("encoding", "content", "status", "code"),
    [
        ("gzip", BODY, 400, "invalid_encoding"),
        ("gzip", gzip.compress(BODY)[:-4], 400, "invalid_encoding"),
        ("gzip", gzip.compress(BODY) + b"more", 400, "invalid_encoding"),
        ("deflate", gzip.compress(BODY), 400, "invalid_encoding"),
        ("br", BODY, 415, "unsupported_encoding"),
        ("gzip, gzip", gzip.compress(gzip.compress(BODY)), 415, "unsupported_encoding"),
    ],
    ids=["not compressed", "cut off", "with more behind", "another encoding", "unknown", "twice"],
)
def test_what_cannot_be_inflated_is_refused(
    server: Server, encoding: str, content: bytes, status: int, code: str
) -> None:
    answer = post(server, content, encoding)
    assert (answer.status_code, answer.json()["error"]["code"]) == (status, code)
    assert answer.headers.get("accept-encoding") == ("gzip, deflate" if status == 415 else None)


def test_a_compressed_upload_is_refused(server: Server) -> None:
    answer = post(server, gzip.compress(b"x"), "gzip", "/v1/files")
    assert (answer.status_code, answer.headers["accept-encoding"]) == (415, "identity")


def test_the_limit_of_bodies_is_of_what_they_hold(start: Callable[..., Server]) -> None:
    server = start("--max-body-mb", "1")
    fits = gzip.compress(BODY + b" " * ((1 << 20) - len(BODY)))
    assert post(server, fits, "gzip").status_code == 200
    with Raw(server) as raw:  # the bomb's end never comes, and is not waited for
        bomb = gzip.compress(b" " * (1 << 24))
        asked = head("POST", COMPLETIONS, "Content-Encoding: gzip", length=len(bomb) + 100)
        answer = raw.send(asked + bomb).answer()
    assert (answer.status, answer.error["code"]) == (413, "body_too_large")


def test_the_limit_of_bodies_is_of_what_comes_too(start: Callable[..., Server]) -> None:
    server = start("--max-body-mb", "1")
    empty = [gzip.compress(b"") * 1000] * 60  # in chunks, so that its length is not announced
    answer = httpx.post(
        server.url + COMPLETIONS,
        content=iter([*empty, gzip.compress(BODY)]),
        headers={"Content-Type": "application/json", "Content-Encoding": "gzip"},
        timeout=60,
    )
    assert (answer.status_code, answer.json()["error"]["code"]) == (413, "body_too_large")


def test_no_piece_is_longer_than_a_step() -> None:
    content = bytes(INFLATED_BYTES * 5) + random.Random(0).randbytes(1000)
    inflater, packed = Inflater("gzip"), gzip.compress(content)
    pieces = [one for at in range(0, len(packed), 7) for one in inflater.inflate(packed[at : at + 7])]
    inflater.check_ended()
    assert b"".join(pieces) == content and max(map(len, pieces)) <= INFLATED_BYTES
    with pytest.raises(ApiError):
        Inflater("gzip").check_ended()
