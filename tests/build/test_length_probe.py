"""`--predictor probe` in an engine: the same tokens, predictions that replay, a file, and what it is refused for."""

from __future__ import annotations

from pathlib import Path

import pytest

from inflight import LLM, SamplingParams
from inflight.config.setting import SettingsError
from inflight.execution.length_probe import probe, step_probe
from inflight.records.schema import StepRecord, read_records
from inflight.simulate.replay import replay

PROMPTS = [f"{number} sheep" for number in range(10)]
PARAMS = SamplingParams(max_tokens=40, temperature=0.8, seed=3)
SETTINGS = {"threads": 1, "max_num_seqs": 4, "policy": "sjf", "max_model_len": 128}


def test_tokens_are_the_same_and_predictions_are_recorded_and_replayed(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(probe, "MIN_ENDED", 0)
    monkeypatch.setattr(probe, "SCALED_BY", 2)
    monkeypatch.setattr(step_probe, "REFRESH", 16)
    plain = LLM(**SETTINGS)
    wanted = [one.outputs[0].token_ids for one in plain.generate(PROMPTS, PARAMS)]
    file, record = tmp_path / "probe", tmp_path / "record.jsonl"
    probing = LLM(**SETTINGS, predictor="probe", probe_file=str(file), record=record)
    assert [one.outputs[0].token_ids for one in probing.generate(PROMPTS, PARAMS)] == wanted
    probing._close()
    assert file.exists()
    records = list(read_records(record))
    predicted = [one for record in records if isinstance(record, StepRecord) for one in record.lengths]
    assert len(predicted) > 10 and {one.so_far for one in predicted} >= {0, 16}
    assert replay(records)[1].difference is None


@pytest.mark.parametrize("place", ["missing/probe", "", "file/probe"])
def test_a_file_that_could_not_be_saved_is_refused_at_the_start(tmp_path: Path, place: str) -> None:
    (tmp_path / "file").touch()
    with pytest.raises(SettingsError, match=r"--probe-file .* cannot be written \(.*\); give a file in a folder that"):
        LLM(**SETTINGS, predictor="probe", probe_file=str(tmp_path / place))
    assert [one.name for one in tmp_path.iterdir()] == ["file"]
