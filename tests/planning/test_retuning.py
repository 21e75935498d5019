"""Retuning: a record is simulated as it was, and settings are proposed only where that shows them to be better."""

from __future__ import annotations

import json
import math
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from inflight.config.engine import EngineSettings
from inflight.config.scheduling import SchedulingSettings
from inflight.core.types.plan import Capacity
from inflight.metrics.observation import Observation
from inflight.metrics.slo import parse_slos
from inflight.planning.paired_runs import GOODPUT, MIN_STRETCHES, Measure, PairedRuns
from inflight.planning.recorded_traffic import RecordedTraffic, read_recorded
from inflight.planning.retuning import Figure, SimulatedRecord, present_config, retune
from inflight.planning.shadow import shadow_replay, with_shadow
from inflight.records.schema import RecordError
from inflight.simulate.fitted import FittedModel
from inflight.simulate.omitted import TOKEN
from inflight.simulate.simulation import Pool, SimulationSetup, simulate
from inflight.workload.workload import Entry, Workload

SLOS = parse_slos(["ttft=500(p90)"])
STEPS = FittedModel(step=0.02, token=(1e-3,))


def recorded(path: Path, entries: Sequence[Entry], rows: int = 2, budget: int = 64, **scheduling: Any) -> Path:
    """Simulate an engine with a record."""
    settings = EngineSettings(device="cpu", max_num_seqs=rows, max_num_batched_tokens=budget)
    capacity = Capacity(400, 16, rows, 512, 2048)
    pool = Pool(capacity, settings, SchedulingSettings.of(**scheduling), lambda number: STEPS)
    simulate(Workload(tuple(entries), "made"), SimulationSetup(pool), path)
    return path


def steady(number: int, gap: float, prompt: int = 30, answer: int = 12) -> list[Entry]:
    return [
        Entry(gap * index + 0.01 * (index % 7), prompt + 9 * (index % 5), answer + index % 6) for index in range(number)
    ]


@pytest.fixture(scope="module")
def short_of_slots(tmp_path_factory: pytest.TempPathFactory) -> RecordedTraffic:
    """Two slots, with bursts of four once in a while, which wait for a slot; the engine had up to four before."""
    entries = steady(60, 0.5) + [
        Entry(30 + 2.0 * burst + 0.01 * one, 30, 20) for burst in range(30) for one in range(4)
    ]
    return read_recorded(recorded(tmp_path_factory.mktemp("record") / "run.jsonl", entries), 3600.0)


def test_the_recorded_run_is_simulated_as_it_was(short_of_slots: RecordedTraffic) -> None:
    record = SimulatedRecord(short_of_slots, SLOS)
    simulated, measured = record.observations(present_config(short_of_slots)), record.measured()
    assert len(simulated) == len(measured) > 150
    pairs = zip(simulated, measured, strict=True)
    assert all(abs(one.e2e - other.e2e) <= 0.03 * other.e2e for one, other in pairs)


def test_settings_whose_steps_were_never_recorded_are_named_but_not_chosen(short_of_slots: RecordedTraffic) -> None:
    found = retune(short_of_slots, SLOS)
    assert found.config.max_num_seqs == 2
    assert found.beyond is not None and found.beyond.config.max_num_seqs > 2


def test_with_the_real_engine_to_decide_they_are_tried(short_of_slots: RecordedTraffic) -> None:
    found = retune(short_of_slots, SLOS, beyond=True)
    assert found.is_better and found.changed["max-num-seqs"][1] in (4, 8)
    assert found.deciding.name == "goodput" and 1 < found.deciding.low <= 1 + found.deciding.change
    ran = []

    def run(config, workload, shares):  # type: ignore[no-untyped-def]
        ran.append(config.max_num_seqs)
        record = SimulatedRecord(short_of_slots, SLOS)
        return record.summary(config, workload, shares)

    shadow = shadow_replay(found, run, 20.0, 3)
    assert ran == [2, found.proposed.max_num_seqs] * 3
    assert shadow.proposed is not None and shadow.goodput_ratio is not None
    assert shadow.proposed.goodput > shadow.present.goodput and with_shadow(found, shadow).is_better
    worse = with_shadow(found, replace(shadow, present=shadow.proposed, proposed=shadow.present))
    assert "Not decided: goodput on the real engine was" in worse.reason and worse.config == found.present
    assert shadow.present.goodput == pytest.approx(shadow.present.simulated.attained_per_s, rel=0.02)


def test_an_idle_server_keeps_its_settings(tmp_path: Path) -> None:
    traffic = read_recorded(recorded(tmp_path / "run.jsonl", steady(80, 2.0), rows=4), 3600.0)
    found = retune(traffic, SLOS)
    assert not found.is_better and found.config == found.present and "nothing to gain" in found.reason


def test_few_requests_decide_nothing(tmp_path: Path) -> None:
    entries = [Entry(0.02 * one, 30, 20) for one in range(12)]
    found = retune(read_recorded(recorded(tmp_path / "run.jsonl", entries, rows=8), 3600.0), SLOS)
    assert not found.is_better and (not found.changed or "Not decided" in found.reason)


def test_refused_requests_are_offered_again(tmp_path: Path) -> None:
    """Four slots' worth of requests for two, and room for one to wait: the others are refused until later."""
    entries = [Entry(1.0 * burst + 0.001 * one, 30, 20) for burst in range(40) for one in range(6)]
    limits = {"admission": "queue", "max_queued_requests": 1}
    traffic = read_recorded(recorded(tmp_path / "run.jsonl", entries, **limits), 3600.0)
    refused = [one for one in traffic.observations if one.outcome == "rejected"]
    assert len(traffic.observations) == len(entries) and len(refused) > 40
    simulated = SimulatedRecord(traffic, SLOS).observations(present_config(traffic))
    again = sum(one.outcome == "rejected" for one in simulated)
    assert abs(again - sum(one.outcome == "rejected" for one in traffic.measured)) <= 0.1 * len(refused)
    assert "Refused until later" in traffic.notes[0]


def test_only_the_last_seconds_count(tmp_path: Path) -> None:
    path = recorded(tmp_path / "run.jsonl", steady(300, 0.5))
    whole, last = read_recorded(path, 3600.0), read_recorded(path, 40.0)
    assert len(whole.measured) > 280 and 60 < len(last.measured) < 90
    assert last.seconds <= 40 and last.measured[-1].request_id == whole.measured[-1].request_id
    assert last.workload.entries[0].arrival < last.begin, "requests before are simulated, too"
    by_id = {one.request_id: one for one in whole.observations}
    for one in last.measured:
        other = by_id[one.request_id]
        assert (one.ttft, one.e2e, len(one.token_times)) == (other.ttft, other.e2e, len(other.token_times))


def test_a_record_that_is_being_written_is_read_to_its_last_whole_line(tmp_path: Path) -> None:
    path = recorded(tmp_path / "run.jsonl", steady(60, 0.5))
    whole = read_recorded(path, 3600.0)
    lines = path.read_bytes().splitlines(keepends=True)
    path.write_bytes(b"".join(lines[:-1]) + lines[-1][:20])
    assert len(read_recorded(path, 3600.0).workload.entries) == len(whole.workload.entries) - 1


def test_the_next_turn_of_a_conversation_finds_the_answer_cached(tmp_path: Path) -> None:
    """The prompts of later turns contain earlier answers, which are other tokens in a simulation."""
    later = (Entry(0.0, 20 + 32 * turn, 16, after=turn - 1, think_s=1.0) for turn in range(1, 14))
    path = recorded(tmp_path / "run.jsonl", [Entry(0.0, 20, 16), *later])
    path.write_text("".join(map(with_own_answers, path.read_text().splitlines(keepends=True))))
    traffic = read_recorded(path, 3600.0)
    simulated = SimulatedRecord(traffic, SLOS).observations(present_config(traffic))
    cached = [one.cached_tokens for one in traffic.measured]
    assert cached[0] == 0 < 32 <= cached[1] and [one.cached_tokens for one in simulated] == cached
    assert traffic.original.entries[1].prompt != traffic.workload.entries[1].prompt


def with_own_answers(line: str) -> str:
    """Give the answers of a conversation's turns tokens of their own, where simulated ones are all alike."""
    found = json.loads(line)
    if found["kind"] != "request":
        return line
    prompt, turn = found["request"]["prompt_token_ids"], 0
    for at, token in enumerate(prompt):
        if token == TOKEN:
            prompt[at] = 1000 + turn
            turn += prompt[at + 1 : at + 2] != [TOKEN]
    for sample in found["samples"]:
        sample["token_ids"] = [1000 + turn for _ in sample["token_ids"]]
    return json.dumps(found) + "\n"


@pytest.mark.parametrize(
    ("content", "sentence"),
    [
        (b"", "is empty"),
        (b"not a record\n", "line 1"),
        (b'{"kind":"other"}\n', "kind 'other'"),
    ],
)
def test_files_that_are_no_records_are_refused(tmp_path: Path, content: bytes, sentence: str) -> None:
    path = tmp_path / "foreign"
    path.write_bytes(content)
    with pytest.raises(RecordError, match=sentence):
        read_recorded(path, 3600.0)


def test_a_record_without_answers_is_refused(tmp_path: Path) -> None:
    path = recorded(tmp_path / "run.jsonl", steady(4, 0.5))
    with pytest.raises(RecordError, match=r"4 requests and .* too few to tune by"):
        read_recorded(path, 3600.0)
    path.write_bytes(path.read_bytes().splitlines(keepends=True)[0])
    with pytest.raises(RecordError, match="no answer that ended"):
        read_recorded(path, 3600.0)


def observed(number: int, ttft: float) -> Observation:
    return Observation(str(number), float(number), number + ttft + 1, first_token=number + ttft, output_tokens=1)


def test_the_interval_of_a_ratio_contains_it_and_shrinks_with_differences_alike() -> None:
    times = [float(one) for one in range(240)]
    pairs = PairedRuns(times, 0.0, 240.0)
    slow = [observed(one, 1.0 + one % 7) for one in range(240)]
    fast = [observed(one, 0.5 * (1.0 + one % 7)) for one in range(240)]
    median = Measure("ttft", 0.5)
    assert pairs.value(slow, median) == sorted(1.0 + one % 7 for one in range(240))[119]
    assert pairs.ratio(fast, slow, median) == pytest.approx((0.5, 0.5))
    assert pairs.ratio(slow, slow, GOODPUT) == (1.0, 1.0)
    mixed = [two if one % 2 else one_ for one, (one_, two) in enumerate(zip(slow, fast, strict=True))]
    low, high = pairs.ratio(mixed, slow, Measure("ttft", 0.5))
    assert 0.4 < low <= pairs.value(mixed, median) / pairs.value(slow, median) <= high < 1.1


def test_where_nothing_was_in_time_any_gain_is_decided() -> None:
    """The ratio to 0 is infinite, and that of 0 to 0 no change."""
    pairs = PairedRuns([float(one) for one in range(240)], 0.0, 240.0)
    good = [observed(one, 1.0) for one in range(240)]
    bad = [replace(one, outcome="failed") for one in good]
    assert pairs.ratio(good, bad, GOODPUT) == (math.inf, math.inf) and pairs.ratio(bad, bad, GOODPUT) == (1.0, 1.0)
    figure = Figure("goodput", 0.0, 0.0, 1.0, math.inf, math.inf)
    assert (figure.change_text, figure.interval_text, figure.error) == ("from 0", "from 0", 0.0)


def test_a_figure_that_was_not_measured_bears_no_comparison() -> None:
    def error(measured: float, present: float) -> float:
        return Figure("TTFT p99", measured, present, 1.0, 0.5, 0.6).error

    assert math.isnan(error(math.nan, 2.0)) and error(math.inf, math.inf) == 0.0 and error(0.0, 1.0) == math.inf


def test_there_is_no_interval_of_a_single_burst() -> None:
    pairs = PairedRuns([0.1 * one for one in range(50)], 0.0, 100.0)
    assert pairs.stretches < MIN_STRETCHES and not pairs.has_interval
    low, _ = pairs.ratio([observed(one, 1.0) for one in range(50)], [observed(one, 2.0) for one in range(50)], GOODPUT)
    assert low != low
