"""Trials that were run before: the same answer, without a trial."""

from __future__ import annotations

import os
from dataclasses import MISSING, fields, replace
from pathlib import Path

import pytest

from inflight.config.scheduling import SchedulingSettings
from inflight.metrics.slo import parse_slos
from inflight.planning import trial_cache, trial_runner
from inflight.planning.candidate import Candidate
from inflight.planning.demand import traffic_of
from inflight.planning.planned_load import PlannedLoadTrials
from inflight.planning.question import Question
from inflight.planning.simulation import Drafted, Topology, Trial, try_out
from inflight.planning.sizing import candidate_for
from inflight.planning.trial_cache import TrialCache, default_cache
from inflight.planning.trial_runner import TrialRunner

from .builders import drawn, machine


@pytest.fixture
def runs(monkeypatch: pytest.MonkeyPatch) -> list[object]:
    """The trials that are run, not read."""
    found: list[object] = []
    run = try_out

    def counted(*arguments: object, **options: object) -> Trial:
        found.append(arguments)
        return run(*arguments, **options)  # type: ignore[arg-type]

    monkeypatch.setattr(trial_runner, "try_out", counted)
    return found


def runner(folder: Path, slo: str = "ttft=4000,itl=900(p90)") -> tuple[TrialRunner, Candidate]:
    question = Question(machines=(machine(),), demand=drawn(2.0), slos=parse_slos([slo]), requests=(20, 30, 60))
    traffic = traffic_of(question.demand)
    one = candidate_for(question, traffic, question.machines[0], question.overrides)
    return TrialRunner(question, traffic, TrialCache(folder)), one


def test_a_trial_that_was_run_is_read(tmp_path: Path, runs: list[object]) -> None:
    trials, one = runner(tmp_path / "trials")
    first = trials.run(one, 2.0, topology=Topology())
    again, same = runner(tmp_path / "trials")
    priced = replace(same.machine, price_per_hour=9.0)
    reworded = replace(same, machine=priced, config=same.config.because("policy", "another reason"))
    assert again.run(reworded, 2.0, topology=Topology()) == first and len(runs) == 1


def test_whatever_differs_is_run(tmp_path: Path, runs: list[object], monkeypatch: pytest.MonkeyPatch) -> None:
    trials, one = runner(tmp_path)
    trials.run(one, 2.0, topology=Topology())
    trials.run(one, 2.1, topology=Topology())
    trials.run(one, 2.0, seed=1, topology=Topology())
    trials.run(one, 2.0, topology=Topology(2))
    trials.run(one, 2.0, topology=Topology(), model=machine(speed=2.0).model)
    trials.run(replace(one, machine=machine(blocks=64)), 2.0, topology=Topology())
    runner(tmp_path, "ttft=3000")[0].run(one, 2.0, topology=Topology())
    monkeypatch.setattr(trial_cache, "_source_digest", lambda: b"another version")
    trials.run(one, 2.0, topology=Topology())
    assert len(runs) == 8


def test_a_damaged_file_and_a_folder_that_cannot_be_written_cost_a_trial(tmp_path: Path, runs: list[object]) -> None:
    trials, one = runner(tmp_path)
    first = trials.run(one, 2.0, topology=Topology())
    (file,) = tmp_path.iterdir()
    file.write_bytes(file.read_bytes()[:-9])
    assert trials.run(one, 2.0, topology=Topology()) == first and len(runs) == 2
    (tmp_path / "file").write_text("no folder")
    assert runner(tmp_path / "file")[0].run(one, 2.0, topology=Topology()) == first and len(runs) == 3


def test_what_is_rare_in_a_trial_is_stored_too(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    trials, one = runner(tmp_path)
    found = trials.run(one, 2.0, topology=Topology())
    rare = replace(
        found,
        values=dict.fromkeys(found.values, float("inf")),
        spent=found.spent._replace(by_kind={("linear", "compute"): 0.25}),
        outside={"longer than fitted": 0.5},
        drafted=Drafted(0.5, 1.25),
        busy=(0.5, 1.0),
        busy_tokens_per_s=7.0,
        offered_by={"chat": 3},
        behind="chat",
        by_class={"chat": {"ttft": (1.0, 2.0, float("inf"))}},
        peak_rows=7,
        queue_grows=True,
        programs={trials.question.slos[0]: 2},
    )
    for field in fields(Trial):  # so that one that is not stored is found
        assert field.default is MISSING or getattr(rare, field.name) != field.default, field.name
    cache = TrialCache(tmp_path)
    assert cache.get_or_run(("rare",), lambda: rare) == rare
    assert cache.get_or_run(("rare",), lambda: found) == rare


def test_old_trials_make_room(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(trial_cache, "MAX_FILES", 4)
    trials, one = runner(tmp_path)
    for seed in range(5):
        trials.run(one, 2.0, seed=seed, topology=Topology())
    assert len(list(tmp_path.iterdir())) == 3


def test_files_of_processes_that_were_killed_are_removed_and_those_being_written_stay(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(trial_cache, "MAX_FILES", 4)
    trials, one = runner(tmp_path)
    left, fresh = tmp_path / "00ff.4321", tmp_path / "11ff.4321"
    for path in (left, fresh):
        path.write_bytes(b"half")
    os.utime(left, (1e9, 1e9))
    for seed in range(4):
        trials.run(one, 2.0, seed=seed, topology=Topology())
    assert not left.exists() and fresh.exists()
    assert len(list(tmp_path.iterdir())) == 4 + 1, "they do not count towards the most that are kept"


def test_trials_that_are_read_stay_when_others_make_room(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(trial_cache, "MAX_FILES", 2)
    trials, one = runner(tmp_path)
    trials.run(one, 2.0, topology=Topology())
    (read,) = tmp_path.iterdir()
    trials.run(one, 2.0, seed=1, topology=Topology())
    (other,) = set(tmp_path.iterdir()) - {read}
    os.utime(read, (1e9, 1e9))
    os.utime(other, (1.5e9, 1.5e9))
    for seed in (0, 2):
        trials.run(one, 2.0, seed=seed, topology=Topology())
    assert read.exists() and not other.exists()


def test_a_trial_of_a_plugin_is_run_each_time(tmp_path: Path, runs: list[object]) -> None:
    trials, one = runner(tmp_path)
    scheduling = SchedulingSettings.of(policy="inflight.core.policies.fcfs:Fcfs")
    of_plugin = replace(one, config=replace(one.config, scheduling=scheduling))
    for _ in range(2):
        trials.run(of_plugin, 2.0, topology=Topology())
    assert len(runs) == 2 and not list(tmp_path.iterdir())


def test_without_a_home_there_is_no_cache(monkeypatch: pytest.MonkeyPatch) -> None:
    def homeless(self: Path) -> Path:
        raise RuntimeError("Could not determine home directory.")

    monkeypatch.setattr(Path, "expanduser", homeless)
    assert default_cache() is None


def test_a_trial_that_is_not_stored_is_not_run_ahead(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    ahead: list[int] = []
    monkeypatch.setattr("inflight.planning.planned_load.run_ahead", lambda jobs, workers: ahead.append(len(jobs)))
    usual, one = runner(tmp_path)
    scheduling = SchedulingSettings.of(policy="inflight.core.policies.fcfs:Fcfs")
    of_plugin = replace(one, config=replace(one.config, scheduling=scheduling))
    trials = PlannedLoadTrials(usual, 1.0, decides=False, workers=2)
    trials.run_ahead(of_plugin, [1, 2])
    assert not ahead, "it would be run twice"
    trials.run_ahead(one, [1, 2])
    assert ahead == [2]
