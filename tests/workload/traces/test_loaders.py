"""Every format: what its fixture says, and what is dropped of broken files."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from msgspec import structs

from inflight.metrics.observation import Targets
from inflight.records.schema import encode_line, read_records
from inflight.workload.traces import load
from inflight.workload.traces.rows import NO_OUTPUT, Reading, Trace
from inflight.workload.workload import WorkloadError

FIXTURES = Path(__file__).parent.parent / "fixtures"
Written = Callable[[str], Path]


@pytest.fixture
def written(tmp_path: Path) -> Written:
    """Writes a file of this text."""

    def write(text: str) -> Path:
        (tmp_path / "trace").write_text(text, newline="")
        return tmp_path / "trace"

    return write


def figures(trace: Trace) -> list[tuple[float, int, int]]:
    return [(round(entry.arrival, 6), entry.prompt_tokens, entry.output_tokens) for entry in trace.entries]


def noted(trace: Trace, words: str) -> bool:
    return any(words in note for note in trace.notes)


def test_azure_has_seven_digits_or_zones_and_may_count_images_and_be_zipped() -> None:
    trace = load(FIXTURES / "azure_2023.csv")
    assert figures(trace) == [(0, 4808, 10), (0.052, 3180, 8), (0.098189, 110, 27), (57.0, 34, 12)]
    assert (trace.format, trace.rows, trace.dropped) == ("azure", 5, {NO_OUTPUT: 1})
    assert noted(trace, "the first is line 5")
    trace = load(FIXTURES / "azure_2024.csv")
    assert figures(trace) == [(0, 1452, 3), (0.05, 569, 55), (0.050416, 2359, 6), (1.55, 1010, 20)]
    trace = load(FIXTURES / "azure_2025.csv.gz")
    assert figures(trace) == [(0, 1200, 35), (2.25, 410, 180)] and noted(trace, "with images")


@pytest.mark.parametrize(
    "time",
    [
        *("2023-11-16 18:17", "2023-11-16 18:17:xx", "16.11.2023 18:17:03", ""),
        *("2023-11-16 18:17:03+0:00", "2023-11-16 18:17:nan"),
    ],
)
def test_azure_times_that_are_none_are_dropped(written: Written, time: str) -> None:
    file = written(
        "TIMESTAMP,ContextTokens,GeneratedTokens\n2023-11-16 18:17:00.5,3,2\n"
        f"{time},3,2\n2023-11-16T18:18:00Z,3,2\n2023-11-16 18:18:01-01:00,4,4\n"
    )
    trace = load(file)
    assert figures(trace) == [(0, 3, 2), (59.5, 3, 2), (3660.5, 4, 4)]
    assert sum(trace.dropped.values()) == 1 and noted(trace, "line 3")


def test_burstgpt_drops_failed_calls_and_version_1_2_has_its_columns_elsewhere() -> None:
    trace = load(FIXTURES / "burstgpt_1.csv")
    assert figures(trace) == [(0, 472, 18), (40, 1087, 230), (113, 417, 276), (180, 1360, 647)]
    assert (trace.format, trace.dropped) == ("burstgpt", {NO_OUTPUT: 1})
    assert [entry.traffic for entry in trace.entries[1:3]] == ["ChatGPT, Conversation log", "GPT-4, Conversation log"]
    trace = load(FIXTURES / "burstgpt_3.csv")
    assert figures(trace) == [(0, 50, 20), (2.5, 90, 35), (3.25, 700, 12)]
    assert [entry.session for entry in trace.entries] == ["a1", "a1", "b7"]
    assert all(entry.after is None for entry in trace.entries)


@pytest.mark.parametrize(
    ("times", "in_seconds"),
    [
        ([at // 2 for at in range(40)], True),
        ([at * 2.25 for at in range(40)], True),
        ([at * 500 for at in range(40)], False),
        ([at * 500.5 for at in range(40)], False),
        ([0, 1], False),
    ],
    ids=["whole seconds", "seconds", "milliseconds", "with fractions", "too few for a rate"],
)
def test_a_file_of_mooncakes_shape_may_have_seconds(times: list[float], in_seconds: bool, written: Written) -> None:
    row = {"input_length": 700, "output_length": 3, "hash_ids": [1, 2]}
    trace = load(written("".join(json.dumps({"timestamp": one, **row}) + "\n" for one in times)))
    assert trace.span_s == pytest.approx(times[-1] / (1 if in_seconds else 1000))
    assert noted(trace, "--speed 1000") == in_seconds


def test_mooncake_has_milliseconds_hashes_and_a_raster() -> None:
    trace = load(FIXTURES / "mooncake.jsonl")
    assert figures(trace) == [(0, 6758, 500), (0, 1100, 794), (3, 512, 4), (9, 1400, 20)]
    assert trace.entries[3].prefix == (0, 14, 16) and trace.entries[3].block_size == 512
    assert trace.bucket_s == 3.0 and noted(trace, "multiples of 3 s")


def test_hashes_that_do_not_fit_the_length_are_noted(written: Written) -> None:
    rows = [(1000, [1, 2]), (1000, [1]), (100, [1, 2, 3]), (512, "x"), (512, [1.5])]
    lines = (
        json.dumps({"timestamp": 500 * k, "input_length": length, "output_length": 9, "hash_ids": ids})
        for k, (length, ids) in enumerate(rows)
    )
    trace = load(written("\n".join(lines)))
    assert [entry.prefix for entry in trace.entries] == [(1, 2), (1,), (1,)]
    assert noted(trace, "than blocks of 512 tokens: 2, the first in line 2")
    assert list(trace.dropped) == ["malformed: hash_ids is no list of whole numbers"]


def test_bailian_links_turns() -> None:
    trace = load(FIXTURES / "bailian.jsonl")
    assert figures(trace)[2:] == [(30.375, 70, 33), (61.125, 120, 5), (61.875, 10, 7)]
    assert [entry.after for entry in trace.entries] == [None, None, 0, 2, None]
    assert [entry.session for entry in trace.entries] == ["10", "11", "10", "10", "14"]
    assert trace.entries[1].traffic == "search" and trace.entries[0].block_size == 16
    assert noted(trace, "not among the rows before them: 1")


def test_bailian_links_hold_when_rows_are_put_in_order(written: Written) -> None:
    lines, lengths = (FIXTURES / "bailian.jsonl").read_text().splitlines(), {"input_length": 5, "output_length": 5}
    early = {"chat_id": 99, "timestamp": 0.0, **lengths, "hash_ids": [7]}
    hasty = {"chat_id": 98, "parent_chat_id": 13, "timestamp": 1.0, **lengths, "hash_ids": [8]}
    trace = load(written("\n".join([*lines, json.dumps(early), json.dumps(hasty)])))
    assert [entry.prompt_tokens for entry in trace.entries] == [5, 40, 16, 70, 120, 5, 10]
    assert [entry.after for entry in trace.entries] == [None, None, None, 1, 3, 4, None]
    assert trace.entries[5].arrival == trace.entries[4].arrival  # a turn does not come before the one it follows
    assert noted(trace, "before the row above them: 1")


def test_sharegpt_takes_first_turns_and_estimates_lengths() -> None:
    trace = load(FIXTURES / "sharegpt.json")
    prompts = ["What does a scheduler of requests decide?", "Was ist ein Block?"]
    assert [entry.prompt for entry in trace.entries] == prompts
    assert figures(trace) == [(0, 11, 16), (0, 5, 16)]  # 41 and 64, 18 and 61 bytes
    assert trace.rows == 4 and trace.dropped == {"an empty conversation": 1, "no question with an answer": 1}
    assert noted(trace, "the first is conversation 2") and noted(trace, "begin with no question: 1")
    assert noted(trace, "estimated at one token for 4 bytes")


def test_sharegpt_counts_with_a_tokenizer_and_gives_all_turns() -> None:
    reading = Reading(count_tokens=lambda text: len(text.split()), turns=None)
    trace = load(FIXTURES / "sharegpt.json", reading=reading)
    assert figures(trace) == [(0, 7, 13), (0, 7 + 13 + 4, 5), (0, 4, 10)]
    assert [entry.after for entry in trace.entries] == [None, 0, None]
    assert [entry.session for entry in trace.entries] == ["one", "one", ""]
    assert trace.entries[1].prompt == "And who is preempted?"
    assert trace.rows == 4 and not noted(trace, "estimated")


def test_sharegpt_is_read_in_pieces_and_may_be_cut_off(written: Written, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("inflight.workload.traces.sharegpt._CHUNK", 7)
    whole = load(FIXTURES / "sharegpt.json")
    assert len(whole.entries) == 2 and not noted(whole, "file ends")
    text = (FIXTURES / "sharegpt.json").read_text()
    cut = load(written(text[: text.index('"three"') + 60]))
    assert len(cut.entries) == 1 and noted(cut, "after conversation 2;")


def test_custom_prompts() -> None:
    trace = load(FIXTURES / "prompts.jsonl", reading=Reading(output_tokens=77))
    assert [entry.prompt for entry in trace.entries] == ["Count to ten.", "Tell me about lanes.", (5, 6, 7, 8)]
    assert figures(trace) == [(0, 4, 30), (0, 5, 77), (0, 4, 2)]
    assert noted(trace, "without output_tokens: 1; 77") and noted(trace, "without a time: 3")


def test_custom_lengths_may_have_quoted_columns(written: Written) -> None:
    assert figures(load(FIXTURES / "lengths.jsonl")) == [(0, 100, 20), (0.25, 90, 10), (2.5, 80, 5)]
    assert figures(load(FIXTURES / "lengths.csv")) == [(0, 100, 20), (0.25, 90, 10)]
    file = written('"timestamp","input_length","output_length"\n"0.5","3","2"\n"1.5","4","5"\n')
    assert figures(load(file)) == [(0, 3, 2), (1, 4, 5)]


@pytest.mark.parametrize(
    "row",
    [
        {"prompt": 5},
        {"prompt": ["a"]},
        {"prompt": "a", "output_tokens": "3"},
        {"prompt": "a", "timestamp": "now"},
        {"timestamp": 3, "input_length": 5.5, "output_length": 5},
        {"timestamp": 3, "input_length": 5},
        {"other": 3},
    ],
)
def test_custom_rows_that_cannot_be_understood_are_dropped(written: Written, row: dict[str, Any]) -> None:
    good = json.dumps({"prompt": "a", "output_tokens": 3})
    trace = load(written(f"{good}\n{json.dumps(row)}\n{good}\n"))
    assert len(trace.entries) == 2 and sum(trace.dropped.values()) == 1 and noted(trace, "line 2")


def test_a_recorded_target_per_token_is_no_target_of_gaps(written: Written) -> None:
    text = (FIXTURES / "record.jsonl").read_text(encoding="utf-8")
    assert load(written(text.replace('"itl":0.1', '"tpot":0.1'))).entries[1].targets == Targets(ttft=0.5, tpot=0.1)


def test_our_record_is_a_trace() -> None:
    trace = load(FIXTURES / "record.jsonl")
    assert (trace.format, trace.rows, trace.dropped) == ("record", 3, {NO_OUTPUT: 1})
    several, asked = trace.entries
    assert several.prompt == (346, 281, 262, 884, 35) and several.output_tokens == several.max_tokens == 4
    assert several.cache_salt == "x" and not several.targets and noted(trace, "several samples: 1")
    assert asked.prompt_tokens == 6 and asked.output_tokens == 6 and asked.lane == "interactive"
    assert (asked.tenant, asked.priority, asked.targets) == ("acme", 3, Targets(ttft=0.5, itl=0.1))
    assert several.arrival == 0.0 and asked.arrival == pytest.approx(0.0038, abs=1e-4)
    assert not noted(trace, "order")  # requests are recorded as they end


def test_records_of_both_versions_are_the_same_trace(tmp_path: Path) -> None:
    header, *lines = read_records(FIXTURES / "record.jsonl")
    file = tmp_path / "record.jsonl"
    file.write_bytes(b"\n".join(map(encode_line, (structs.replace(header, version=2), *lines))))
    assert load(file).entries == load(FIXTURES / "record.jsonl").entries
    assert list(read_records(file))[1:] == lines


def test_a_broken_or_unfinished_record_is_counted_and_another_version_refused(written: Written) -> None:
    lines = (FIXTURES / "record.jsonl").read_text().splitlines()
    odd = json.loads(lines[-1])
    odd["samples"][0]["finish_reason"], odd["forced_output_tokens"] = "abort", 9
    without = {key: value for key, value in odd.items() if key != "params"}
    trace = load(written("\n".join([*lines, json.dumps(odd), json.dumps(without), lines[-1][:50]])))
    assert len(trace.entries) == 3 and max(entry.output_tokens for entry in trace.entries) == 9
    assert noted(trace, "aborted or failed: 1")
    assert noted(trace, f"the first is line {len(lines) + 2}") and noted(trace, f"the first is line {len(lines) + 3}")
    with pytest.raises(WorkloadError, match="version 7"):
        load(written('{"kind": "header", "version": 7, "settings": {}}\n'))


def test_a_vllm_result_is_a_trace() -> None:
    trace = load(FIXTURES / "vllm_result.json")
    assert figures(trace) == [(0, 128, 20), (0.5, 100, 30), (1.75, 124, 10)]
    assert (trace.rows, trace.dropped) == (4, {NO_OUTPUT: 1}) and noted(trace, "the first is request 4")


def test_a_vllm_result_without_details_says_what_to_do(written: Written) -> None:
    result = json.loads((FIXTURES / "vllm_result.json").read_text())
    del result["start_times"]
    trace = load(written(json.dumps(result)))
    assert {entry.arrival for entry in trace.entries} == {0.0} and noted(trace, "no start_times")
    shorter = {**result, "output_lens": result["output_lens"][:-1]}
    without = {key: value for key, value in result.items() if key != "input_lens"}
    for text, sentence in (
        (json.dumps(shorter), "4 input_lens but 3 output_lens"),
        (json.dumps(without), "--save-detailed"),
        (json.dumps(without)[:-9], "may be cut off"),
    ):
        with pytest.raises(WorkloadError, match=sentence):
            load(written(text))


def test_broken_lines_of_a_csv_file_are_dropped(written: Written) -> None:
    good = "0.5,ChatGPT,3,2,5,Conversation log\n"
    long = "x" * 200_000  # more than the reader of CSV takes
    bad = ['1,"ChatGPT,3,2,5,API log\n', f"2,{long},3,2,5,API log\n", "3,ChatGPT,3\n", "4,ChatGPT,3,two,5,x\n"]
    header = "Timestamp,Model,Request tokens,Response tokens,Total tokens,Log Type\r\n"
    trace = load(written(header + good * 3 + "".join(line + good for line in bad) + "\n"))
    assert len(trace.entries) == 8 and trace.rows == 11  # a quote in a name is none of the loader's business
    assert noted(trace, "line 7") and noted(trace, "line 9") and noted(trace, "line 11")
