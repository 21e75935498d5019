"""`inflight compare`: settings in turns on a real model, and a server beside them."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import click
import pytest
from server.conftest import Server

from inflight.cli.options import engine_options, scheduling_options
from inflight.cli.variants import FIELD, ServedVariant, read_served, read_variants
from inflight.records.schema import header_of, of_kind, read_records

from .terminal import Caller

SMALL = ("--input-tokens", "uniform:4-12", "--output-tokens", "uniform:2-6", "--requests", 8, "--warmup", 0)
TWO = ("--setting", "narrow=--max-num-seqs 2", "--setting", "wide=--max-num-seqs 8")


def columns(inflight: Caller, *arguments: object) -> list[dict[str, Any]]:
    result = inflight("compare", *arguments, *SMALL, "--json")
    assert result.code == 0, result.err
    found: list[dict[str, Any]] = json.loads(result.out)["columns"]
    return found


def test_settings_stand_side_by_side(inflight: Caller) -> None:
    result = inflight("compare", *TWO, "--rate", 200, "--repeats", 2, *SMALL, "--json")
    assert result.code == 0, result.err
    assert "4 runs: about 0 s." in result.err
    assert "Run 3 of 4: wide, 200 requests/s, round 2 of 2; about" in result.err
    narrow, wide = json.loads(result.out)["columns"]
    assert (narrow["name"], wide["name"]) == ("narrow", "wide")
    assert narrow["repeats"] == wide["repeats"] == 2
    for column in (narrow, wide):
        assert column["figures"]["requests"]["value"] == column["figures"]["offered"]["value"] > 0
        assert column["figures"]["steps"]["value"] > 0, "its steps were recorded"
    assert "ratio" in wide["figures"]["ttft_p50"], "the second is compared with the first"
    assert "ratio" not in narrow["figures"]["ttft_p50"]


def test_all_are_offered_the_same_and_answer_the_same(inflight: Caller, tmp_path: Path) -> None:
    records = tmp_path / "records"
    columns(inflight, *TWO, "--concurrency", 4, "--repeats", 1, "--records", records)
    narrow, wide = (answers(path) for path in sorted(records.iterdir()))
    assert len(narrow) == 8
    assert narrow == wide


def answers(record: Path) -> dict[str, tuple[tuple[int, ...], tuple[int, ...]]]:
    """Prompt and answer by request."""
    return {
        line.request.request_id: (line.request.prompt_token_ids, line.samples[0].token_ids)
        for line in of_kind(list(read_records(record)), "request")
        if line.request.request_id != "warm"
    }


def test_what_is_given_for_all_holds_for_all(inflight: Caller, tmp_path: Path) -> None:
    records = tmp_path / "records"
    columns(inflight, *TWO, "--block-size", 32, "--rate", 500, "--repeats", 1, "--records", records)
    headers = [header_of([next(iter(read_records(path)))]) for path in sorted(records.iterdir())]
    assert [one.capacity.block_size for one in headers] == [32, 32]
    assert sorted(one.capacity.max_rows for one in headers) == [2, 8]


def test_without_options_the_field_is_compared_at_two_loads(inflight: Caller, tmp_path: Path) -> None:
    page = tmp_path / "page.html"
    found = columns(inflight, "--repeats", 1, "--html", page)
    assert len(found) == 2 * len(FIELD)
    assert {one["load"] for one in found[: len(FIELD)]} == {"at once"}
    static = next(one for one in found if one["setting"] == "static, 32 rows")
    chunked = next(one for one in found if one["setting"] == "chunked")
    assert static["figures"]["padding_waste"]["value"] > 0
    assert chunked["figures"]["padding_waste"]["value"] == 0
    assert "The batch over time" in page.read_text(encoding="utf-8")


def test_a_trace_of_lengths_and_texts_is_compared(inflight: Caller, tmp_path: Path) -> None:
    """Texts are counted, and made tokens of, by the model's own tokenizer."""
    trace, records = tmp_path / "trace.jsonl", tmp_path / "records"
    rows = [{"prompt": "Count to ten, slowly.", "output_tokens": 3}, {"prompt": [5, 6, 7], "output_tokens": 2}]
    trace.write_text("".join(json.dumps({**row, "timestamp": 0.1 * k}) + "\n" for k, row in enumerate(rows)))
    result = inflight("compare", *TWO, "--trace", trace, "--repeats", 1, "--warmup", 0, "--records", records, "--json")
    assert result.code == 0, result.err
    assert [one["figures"]["requests"]["value"] for one in json.loads(result.out)["columns"]] == [2, 2]
    narrow, wide = (answers(path) for path in sorted(records.iterdir()))
    assert narrow == wide and "estimated" not in result.err


@pytest.mark.wide
def test_a_server_beside_an_engine(inflight: Caller) -> None:
    server = Server("--admission", "off").ready()
    try:
        result = inflight(
            "compare", "--setting", "here=", "--server", f"there={server.url}", "--rate", 50, "--repeats", 1, *SMALL,
            "--json",
        )  # fmt: skip
    finally:
        server.stop()
    assert result.code in (0, 1), result.err  # on a busy machine the client may not keep up, and says so
    here, there = json.loads(result.out)["columns"]
    assert here["figures"]["offered"]["value"] == there["figures"]["offered"]["value"]
    assert there["figures"]["requests"]["value"] > 0
    assert "steps" in here["figures"] and "steps" not in there["figures"]


@pytest.mark.parametrize(
    ("arguments", "sentence"),
    [
        (["--setting", "small"], "write NAME=OPTIONS"),
        (["--setting", "a=--xyzzy 1"], "--setting 'a': No such option '--xyzzy'"),
        (["--setting", "a=--window 1"], "--setting 'a': --window has no effect with --strategy chunked"),
        (["--setting", "a='--seed"], "look for a quote that is open"),
        (["--setting", "a=", "--setting", "a="], "Two of a, a have the same name"),
        (["--server", "http://localhost:1"], "write NAME=URL"),
        (["--setting", "a=", "--server", "a=http://localhost:1"], "give each its own"),
        (["--server", "a=http://127.0.0.1:1"], "No server answers at http://127.0.0.1:1"),
        (["--repeats", "0"], "--repeats is 0"),
        (["--rate", "1,x"], "--rate is '1,x'"),
        (["--rate", "1", "--concurrency", "1"], "one after the other"),
        (["--html", "/no/such/folder/page.html"], "does not exist"),
    ],
)
def test_mistakes_are_reported(inflight: Caller, arguments: list[str], sentence: str) -> None:
    assert sentence in inflight("compare", *arguments).sentence()


def test_outside_of_a_verb_variants_are_what_they_say() -> None:
    static, *_, adaptive = read_variants(FIELD)
    assert (static.name, static.engine.max_num_seqs) == ("static, 4 rows", 4)
    assert static.scheduling.options.given == {"batch_size": 4}
    assert adaptive.scheduling.strategy == "adaptive"


@pytest.mark.wide
def test_servers_are_started_and_stand_side_by_side(inflight: Caller) -> None:
    two = ("--serve", "few=", "--serve", "many=--max-num-seqs 8")
    given = (*two, "--max-num-seqs", 2, "--concurrency", 4, "--repeats", 2)
    result = inflight("compare", *given, *SMALL, "--json")
    assert result.code in (0, 1), result.err  # 1: on a busy machine the client is late, which it says
    few, many = json.loads(result.out)["columns"]
    assert (few["name"], many["name"], few["repeats"]) == ("few", "many", 2)
    for column in (few, many):
        assert column["figures"]["requests"]["value"] == column["figures"]["offered"]["value"] > 0
    assert "ratio" in many["figures"]["ttft_p50"]


def test_what_is_given_for_all_goes_to_every_server_and_gives_way() -> None:
    @click.command()
    @engine_options
    @scheduling_options
    def verb(**values: Any) -> list[ServedVariant]:
        return read_served(["one=", "two=--replicas 2 --max-num-seqs 8 --router 'least-work'"])

    words = ["--max-num-seqs", "4", "--policy", "sjf", "--no-prefix-caching"]
    one, two = verb.main(words, standalone_mode=False)
    assert (one.name, sorted(one.words)) == ("one", sorted(words))
    assert two.words[len(words) :] == ("--replicas", "2", "--max-num-seqs", "8", "--router", "least-work")


@pytest.mark.parametrize(
    ("served", "sentence"),
    [
        ("nothing", "write NAME=OPTIONS, such as 'two=--replicas 2'"),
        ("a=--policy 'x", "look for a quote that is open"),
        ("a=--port 8000", "compare chooses the address"),
        ("a=--max-num-seqs 0", "The server of --serve 'a' ended with 2: inflight: --max-num-seqs is 0"),
        ("a=--nonsense", "The server of --serve 'a' ended with 2"),
    ],
)
def test_a_server_that_cannot_be_started_is_reported(inflight: Caller, served: str, sentence: str) -> None:
    result = inflight("compare", "--serve", served, "--rate", 100, *SMALL)
    assert result.code != 0 and sentence in result.err
