"""The catalogue, and the whole program for a moment: two attacks on the built-in model."""

from __future__ import annotations

import asyncio
import os
import random
import re
from pathlib import Path
from typing import Any, cast

import pytest

import benchmarks.results as results
from benchmarks.attack import __main__ as command
from benchmarks.attack.calls import penalized
from benchmarks.attack.catalogue import catalogue, everything
from benchmarks.attack.grammars import grammar_attacks
from benchmarks.attack.memory import tree
from benchmarks.attack.target import BOMBS, make_model
from benchmarks.attack.visit import Tally, Visit
from benchmarks.attack.wire import MAX_BODY, filled, stretched, text
from inflight.server.openai.chat import CHAT
from inflight.server.openai.completions import COMPLETION
from inflight.text import ChatTemplate, Conversation


def test_bodies_are_as_large_as_the_server_takes_them_and_no_larger() -> None:
    body = filled('{"prompt":[', "-1", "]}")
    assert MAX_BODY - 3 < len(body) <= MAX_BODY
    assert body.startswith(b'{"prompt":[-1,-1,') and body.endswith(b",-1]}")
    assert stretched('"', "ab", '"', 7) == b'"abab"'


def test_the_template_is_the_models_own_until_a_message_asks_for_trouble(tmp_path: Path) -> None:
    template = ChatTemplate.load(make_model(tmp_path))
    assert template is not None
    assert "<|user|>" in template.render(Conversation([{"role": "user", "content": "Hello"}]))
    assert {f"template: {name}" for name in BOMBS} <= set(catalogue())


def test_the_call_with_everything_is_valid_or_the_engine_would_never_see_it() -> None:
    assert COMPLETION.decode(text(penalized())).n == 128


@pytest.mark.wide
def test_attackers_know_what_stands_about_too_but_a_mixture_does_not() -> None:
    assert set(everything()) - set(catalogue()) == {"crowd: idle", "crowd: slow bodies", "crowd: slow readers", "flood"}


@pytest.mark.parametrize(
    ("answer", "noted"), [(b"HTTP/1.1 418 x\r\n\r\n", "418"), (b"SSH-2.0\r\n", "no HTTP"), (b"", "closed")]
)
def test_attackers_note_the_answers(answer: bytes, noted: str) -> None:
    tally = Tally()
    addresses = []

    async def visited() -> None:
        async def answering(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
            addresses.append(writer.get_extra_info("peername")[0])
            await reader.readline()
            writer.write(answer)
            writer.close()

        async with await asyncio.start_server(answering, "127.0.0.1", 0) as server:
            port = server.sockets[0].getsockname()[1]
            await Visit(port, ["sk-1", "sk-2"], 3, random.Random(1), tally).ask(b"GET / HTTP/1.1\r\n\r\n")

    asyncio.run(visited())
    assert (tally.answers, tally.visits, addresses) == ({noted: 1}, 1, ["127.0.0.5"])


@pytest.mark.wide
def test_two_attacks_for_some_seconds_each(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr(results, "RESULTS", tmp_path / "results.md")
    before = tree(os.getpid())
    command.main(["TLS hello", "many samples", "--each", "4", "--write"])
    printed = capsys.readouterr().out
    assert "2 attacks by themselves, 4 s each" in printed
    for name in ("TLS hello", "many samples"):
        row = next(line for line in printed.splitlines() if line.startswith(f"| {name} |"))
        assert re.search(r"× 4\d\d", row)
        assert "the server ended" not in row and "another text" not in row and "not to its end" not in row
    assert "## Each attack by itself" in (tmp_path / "results/server.md").read_text()
    assert set(tree(os.getpid())) <= set(before), "whatever it started has ended"


def test_a_mistake_is_reported_before_anything_starts(capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(SystemExit):
        command.main(["no such attack"])
    assert "'no such attack' is unknown; --list names all" in capsys.readouterr().err


def test_grammars_are_valid_bodies_and_each_visit_has_its_own() -> None:
    for attack in grammar_attacks():
        bodies: list[bytes] = []

        class Kept(Visit):
            async def post(self, path: str, body: bytes, key: str | None = None) -> str:
                (CHAT if "chat" in path else COMPLETION).decode(body)
                bodies.append(body)  # noqa: B023
                return "200"

        visit = Kept(1, ["k"], 0, random.Random(1), Tally())
        if "left" not in attack.name:
            for _ in range(2):
                asyncio.run(cast(Any, attack.act(visit)))
            assert len(set(bodies)) == 2
