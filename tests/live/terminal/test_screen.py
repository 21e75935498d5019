"""Frames on a terminal."""

from __future__ import annotations

import io

import pytest
from endless_server import endless_server
from msgspec.structs import replace
from rich.console import Console

from inflight.live.frames import (
    BlocksPart,
    Ended,
    Frame,
    FrameError,
    Hello,
    LanePart,
    Latencies,
    Member,
    Problem,
    Rates,
    RequestInfo,
    Run,
    StepPoint,
    TierPart,
    decode,
    encode,
)
from inflight.live.terminal.feed import FeedError, FeedReader
from inflight.live.terminal.screen import MAX_COLUMNS, FeedState, picture

HELLO = Hello("live", "tiny [red]model[/red]", server="a", num_blocks=100, block_size=16, max_rows=4, sees_all=True)


def frame(number: int, runs: list[Run], **more: object) -> Frame:
    return Frame(
        number,
        float(number),
        number + 1.0,
        steps=[StepPoint(0, 1, 0.05, 0.04, 1, 0, 1, 0, 0, 0)],
        runs=runs,
        lanes=[LanePart("interactive", 3, 2, "rows", "batch", [9], 1.5)],
        blocks=BlocksPart(held=30, shared=10, evictable=20, free=50),
        rates=Rates(10.0, 5.0, 1234.0, 1.0, Latencies(3, 0.25, 0.75, 2, 1), Latencies(9, 0.02, 0.05)),
        **more,  # type: ignore[arg-type]
    )


def shown(seen: FeedState, width: int = 80, height: int = 40) -> str:
    file = io.StringIO()
    Console(file=file, width=width, color_system=None).print(picture(seen, "http://x", width, height))
    return file.getvalue()


def test_numbers_and_rows_are_there() -> None:
    seen = FeedState()
    assert "waiting for http://x" in shown(seen)
    for message in (
        HELLO,
        frame(0, [Run(0, 1, 0, 0, 1, 9)]),
        frame(1, [Run(0, 1, 1, 1, 2, 1), Run(1, 2, 1, 1, 1.5, 1), Run(1, 2, 4, 1.5, 2, 0)]),
    ):
        seen.take(message)
    text = shown(seen)
    assert "tiny [red]model[/red]" in text, "names are text, whatever they hold"
    for part in (
        "1,234",
        "2 of 4",
        "250 ms, p95 750 ms 50% in time",
        "50 ms (40 ms predicted)",
        "held 20",
        "free 50",
    ):
        assert part in text, part
    assert "for a row, behind batch, 1.5 s" in text
    lines = {line[:4].strip(): line[5:].rstrip() for line in text.splitlines()}
    assert lines["0"].endswith("█▄") and lines["1"].endswith(" ▄"), "the newest stands right, a token before nothing"


def test_more_rows_than_a_screen_are_counted() -> None:
    seen = FeedState()
    seen.take(Hello("live", "m", max_rows=256, num_blocks=1, sees_all=True))
    seen.take(frame(0, [Run(row, row, 1, 0, 1, 1) for row in range(256)]))
    text = shown(seen, height=24)
    assert "more rows" in text and len(text.splitlines()) <= 26


def test_what_is_kept_is_bounded_and_a_new_server_begins_anew() -> None:
    seen = FeedState()
    seen.take(HELLO)
    for number in range(MAX_COLUMNS + 50):
        info = RequestInfo(number, f"r{number}")
        seen.take(frame(number, [], requests=[info], ended=[Ended(info, "stop", 1.0)]))
    assert len(seen.columns) == MAX_COLUMNS and not seen.requests and seen.ended == MAX_COLUMNS + 50
    seen.take(Hello("live", "other", server="b"))
    assert not seen.columns and seen.ended == 0


def test_paused_it_stands_still_and_trouble_is_reported() -> None:
    seen = FeedState()
    seen.take(HELLO)
    seen.take(frame(0, []))
    seen.paused = True
    seen.take(frame(1, []))
    assert seen.frame is not None and seen.frame.number == 0 and "paused" in shown(seen)
    seen.take(Problem("The engine stopped."))
    assert "The engine stopped." in shown(seen)


def test_a_tenant_is_shown_so_and_a_pool_shows_its_engines() -> None:
    seen = FeedState()
    seen.take(Hello("live", "pool", tenant="acme", members_only=True))
    seen.take(Frame(0, 0.0, 1.0, members=[Member("replica-0", "in memory", 3, 4, 100, 25, 77.0)]))
    text = shown(seen)
    assert "requests of acme" in text and "replica-0" in text and "25%" in text and "KV held" in text


@pytest.mark.parametrize("url", ["ftp://x", "http://", "http://host:port", "//"])
def test_what_is_no_address_is_reported(url: str) -> None:
    with pytest.raises(FeedError, match="is no address"):
        FeedReader(url, None)


def test_no_server_is_a_sentence() -> None:
    reader = FeedReader("127.0.0.1:9", None)
    with pytest.raises(FeedError, match="inflight serve"):
        next(reader.messages(wait=False))
    assert "trying again" in str(next(FeedReader("127.0.0.1:9", None).messages(wait=True)))


def test_each_of_several_engines_has_its_numbers_and_its_tiers() -> None:
    seen = FeedState()
    seen.take(Hello("live", "replicas", members_only=True, sees_all=True))
    seen.take(Frame(1, 0.0, 1.0, members=[Member("a", running=2, blocks=100, held_blocks=30), Member("b")]))
    for name in "ab":
        seen.take(Hello("live", f"tiny · {name}", engine=name, num_blocks=100, max_rows=4, sees_all=True))
        seen.take(frame(1, [], engine=name))
    host = TierPart(64, kept=5, wanted=3, map=[-2, 5, 7, 3, -3, 56])
    lanes = [LanePart("interactive", 3, 2, "rows", "batch", [9], 1.5, {"kv": 2})]
    blocks = BlocksPart(held=40, shared=10, moving=4, free=60, map=[-3, 100], host=host)
    seen.take(replace(frame(2, [], engine="b"), blocks=blocks, lanes=lanes))
    seen.take(frame(3, [], engine="b"))
    text = " ".join(shown(seen, width=140, height=0).split())
    assert text.count("1,234") == 2 and "tiny · a" in text and "tiny · b" in text
    assert "on the host 8 of 64 (3 of preempted requests)" in text, "tiers come seldom, and are kept"
    seen.take(replace(frame(4, [], engine="b"), lanes=lanes))
    assert "2 for keys and values in transfer" in " ".join(shown(seen, width=140, height=0).split())
    seen.take(Frame(2, 1.0, 2.0, members=[Member("a")]))
    assert "tiny · b" not in shown(seen, width=140, height=0), "it is gone"


def test_names_that_a_server_sends_do_not_steer_the_terminal() -> None:
    seen = FeedState()
    seen.take(replace(HELLO, title="evil\x1b]0;owned\u202e"))
    lane = LanePart("lane\x1b[2J", 3, 2, "\x9bH", "b\x1b", [9], 1.5, {"\x1b[5m": 1})
    seen.take(replace(frame(0, []), lanes=[lane], members=[Member("m\x1b[1m", "state\x1b[2m")]))
    text = shown(seen, 200)
    assert "evil\\x1b]0;owned\\u202e" in text and "lane\\x1b[2J" in text and "m\\x1b[1m" in text
    seen.take(Problem("no\x1b[2J"))
    assert not set("\x1b\x07\x9b\u202e") & set(text + shown(seen, 200))


def test_a_line_that_does_not_end_is_not_kept() -> None:
    with endless_server(begin=b"data: ") as url, pytest.raises(FeedError, match="has more than 8,388,608 bytes"):
        list(FeedReader(url, None).messages(wait=False))


def test_figures_that_cannot_be_are_drawn_within_the_screen_or_refused() -> None:
    seen = FeedState()
    seen.take(HELLO)
    wild = BlocksPart(held=2**60, shared=5, evictable=1 - 2**60, free=0)
    seen.take(replace(frame(0, []), blocks=wild, members=[Member("m", "[/nothing]")]))
    assert len(shown(seen)) < 4000 and "[/nothing]" in shown(seen)
    for message in (
        frame(0, [Run(0, 1, 7, 0, 1, 9)]),
        replace(frame(0, []), steps=[StepPoint(0, 1, 1, 1, 0, 0, 0, 0, 0, 0)]),
    ):
        with pytest.raises(FrameError):
            decode(encode(message))
