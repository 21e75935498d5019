"""Runs that are shown again: `report --live`, `simulate --html`, and the small server of both."""

from __future__ import annotations

import asyncio
import base64
import gzip
import json
import re
from pathlib import Path
from typing import Any

import httpx
import pytest
from core.builders import request
from report.recorded import Engine

from inflight.cli import call
from inflight.live.frames import Frame, Hello, Problem, encode
from inflight.live.replays import read_replay
from inflight.server.live.replaying import replay_app

GPU = ("--model", "llama-3-8b", "--hardware", "a100-80", "--max-num-seqs", "8", "--num-blocks", "500")
LOAD = ("--rate", "20", "--requests", "12", "--input-tokens", "uniform:50-400", "--output-tokens", "uniform:4-20")


@pytest.fixture
def records(tmp_path: Path) -> list[Path]:
    paths = [tmp_path / "one.jsonl", tmp_path / "two.jsonl"]
    for path in paths:
        Engine().record(path, [request(f"r{index}", prompt=range(40), output=9) for index in range(8)])
    return paths


def held(page: Path) -> list[list[dict[str, Any]]]:
    """The runs of a written page: their messages."""
    found = re.findall(r'<script type="application/x-inflight-frames">([^<]*)</script>', page.read_text())
    return [[json.loads(line) for line in gzip.decompress(base64.b64decode(one)).splitlines()] for one in found]


def test_records_are_written_side_by_side(
    records: list[Path], tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    page = tmp_path / "page.html"
    assert call(["report", "--live", *map(str, records), "--html", str(page)]) == 0
    runs = held(page)
    assert [run[0]["title"] for run in runs] == ["one", "two"]
    for run in runs:
        assert sum(len(frame.get("ended", [])) for frame in run[1:]) == 8
    assert "open it in a browser" in capsys.readouterr().err


def test_a_simulation_is_played_with_each_replica(tmp_path: Path) -> None:
    page = tmp_path / "page.html"
    assert call(["simulate", *GPU, *LOAD, "--replicas", "2", "--html", str(page)]) == 0
    runs = held(page)
    assert [run[0]["title"] for run in runs] == ["replica 0", "replica 1"]
    assert sum(len(frame.get("ended", [])) for run in runs for frame in run[1:]) == 12
    assert list(tmp_path.iterdir()) == [page], "no record is left behind"


@pytest.mark.parametrize(
    "arguments",
    [
        ["--live", "--json"],
        ["--port", "1"],
        ["--live", "--port", "70000"],
        ["--live", "--port", "1", "--html", "x.html"],
    ],
)
def test_what_does_not_go_together_is_reported(
    records: list[Path], arguments: list[str], capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(records[0].parent)
    assert call(["report", str(records[0]), *arguments]) != 0
    assert "--" in capsys.readouterr().err


def test_bad_files_are_sentences(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    for text in ("", "nonsense\n", '{"type":"hello"}\n', '{"kind":"header","version":1}\n'):
        path = tmp_path / "bad.jsonl"
        path.write_text(text)
        assert call(["report", "--live", str(path), "--html", str(tmp_path / "x.html")]) == 1
        err = capsys.readouterr().err
        assert str(path) in err and "Traceback" not in err


def test_what_a_page_has_saved_is_shown_again(tmp_path: Path) -> None:
    path = tmp_path / "saved.jsonl"
    frames = [Frame(0, 0.0, 1.0), Frame(1, 1.0, 2.0)]
    lines = [encode(Hello("live", "m", span=(0.0, 2.0))), *map(encode, frames)]
    path.write_bytes(b"\n".join(lines) + b"\n")
    replay = read_replay(path)
    assert (replay.hello.title, replay.hello.sees_all) == ("saved", True)
    assert list(replay.frames()) == frames
    path.write_bytes(b"\n".join(lines)[:-5])
    assert isinstance(list(replay.frames())[-1], Problem)


async def _answers(paths: list[Path], *asked: tuple[str, dict[str, str]]) -> list[httpx.Response]:
    transport = httpx.ASGITransport(app=replay_app([read_replay(path) for path in paths]))
    async with httpx.AsyncClient(transport=transport, base_url="http://127.0.0.1") as client:
        return [await client.get(path, headers=headers) for path, headers in asked]


def test_they_are_served_to_this_machine_alone(records: list[Path]) -> None:
    page, frames, script, none, foreign, rebound = asyncio.run(
        _answers(
            records,
            ("/", {}),
            ("/frames/1", {}),
            ("/ui/page.js", {}),
            ("/frames/2", {}),
            ("/frames/0", {"Origin": "https://evil.example"}),
            ("/frames/0", {"Host": "evil.example"}),
        )
    )
    assert (
        'name="inflight-replay" content="2"' in page.text
        and "default-src 'none'" in page.headers["content-security-policy"]
    )
    messages = [json.loads(line) for line in frames.text.splitlines()]
    assert messages[0]["title"] == "two" and len(messages) > 10
    assert (script.status_code, none.status_code) == (200, 404)
    assert (foreign.status_code, rebound.status_code) == (403, 403)
