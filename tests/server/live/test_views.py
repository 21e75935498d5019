"""A tenant sees that other tenants have requests, and nothing else of them."""

from __future__ import annotations

from inflight.live.frames import Account, Ended, Frame, Hello, RequestInfo, Run, Setting, encode
from inflight.server.live.broadcaster import frame_for, hello_for

MINE = RequestInfo(1, "my-secret-id", "interactive", "acme", 1.0, 10, 0.5)
THEIRS = RequestInfo(2, "their-secret-id", "batch", "umbrella", 2.0, 4321, 0.7)
ACCOUNT = Account(1.0, 2.0, 3.0, 0.0, 0.0, 6.0, cached_tokens=777)


def test_others_have_no_names_and_no_accounts() -> None:
    frame = Frame(
        3,
        0.0,
        1.0,
        runs=[Run(0, 2, 1, 0.0, 1.0, 1)],
        requests=[MINE, THEIRS],
        ended=[Ended(MINE, "stop", 1.0, 5, ACCOUNT), Ended(THEIRS, "length", 1.0, 6, ACCOUNT)],
    )
    seen = frame_for(frame, "acme")
    assert seen.requests[0] == MINE and seen.ended[0] == frame.ended[0]
    other = seen.requests[1]
    assert (other.number, other.mine) == (2, False)
    text = encode(seen).decode()
    assert "my-secret-id" in text
    for secret in ("their-secret-id", "umbrella", "4321", "0.7", "length"):
        assert secret not in text, secret
    assert text.count("777") == 1
    assert seen.runs == frame.runs, "the picture is whole"


def test_settings_and_records_are_the_operators() -> None:
    hello = Hello(
        "live",
        "m",
        sees_all=True,
        has_record=True,
        settings=[Setting("model", "/secret/path")],
        requests=[MINE, THEIRS],
    )
    seen = hello_for(hello, "acme")
    assert (seen.sees_all, seen.has_record, seen.settings, seen.tenant) == (False, False, [], "acme")
    assert b"their-secret-id" not in encode(seen)
