from __future__ import annotations

import pytest

from inflight.bench.http_client import EventStream

STREAM = b': hello\r\n\r\nevent: x\r\ndata: {"a": 1}\r\n\r\ndata:{"b": 2}\n\ndata: one\ndata: two\n\ndata: [DONE]\n\n'
EVENTS = [b'{"a": 1}', b'{"b": 2}', b"one\ntwo", b"[DONE]"]


@pytest.mark.parametrize("size", [1, 2, 3, 7, 1000])
def test_events_do_not_depend_on_how_the_network_cut_them(size: int) -> None:
    stream = EventStream()
    found = []
    for begin in range(0, len(STREAM), size):
        found += stream.feed(STREAM[begin : begin + size])
    assert found + stream.close() == EVENTS
    assert stream.stray is None


def test_lone_carriage_returns_end_lines() -> None:
    stream = EventStream()
    assert stream.feed(b"data: a\r\rdata: b\r") == [b"a"]
    assert stream.feed(b"\r") + stream.close() == [b"b"]


def test_an_event_comes_with_the_bytes_that_complete_it() -> None:
    stream = EventStream()
    assert stream.feed(b"data: a\n") == []
    assert stream.feed(b"\ndata: b") == [b"a"]
    assert stream.close() == [b"b"]
    assert stream.close() == []


def test_the_first_line_of_something_else_is_kept() -> None:
    stream = EventStream()
    assert stream.feed(b"<html>\n<body>\n") == []
    assert stream.stray == b"<html>"


def test_an_event_of_endless_lines_is_given_up() -> None:
    stream = EventStream()
    for _ in range(20):
        assert stream.feed(b"data: " + b"x" * 100_000 + b"\n") == []
    assert stream.is_too_long and stream.feed(b"\n\ndata: more\n\n") == stream.close() == []
