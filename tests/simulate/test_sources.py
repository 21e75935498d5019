"""A result of `vllm bench serve`: what is a step in it, and what is not."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from inflight.core.types.features import Features
from inflight.simulate.fitted import StepModelError
from inflight.simulate.simulation import SimulationSetup, simulate
from inflight.simulate.sources import fitted_on_result
from inflight.workload.workload import Workload

from .setups import Affine, chat, pool


def result(path: Path, workload: Workload) -> Path:
    """Write the client's result of a simulated server."""
    seen = simulate(workload, SimulationSetup(pool(model=Affine(), budget=512))).observations
    rows: dict[str, Any] = {
        "start_times": [one.intended for one in seen],
        "ttfts": [one.ttft for one in seen],
        "itls": [one.gaps for one in seen],
        "input_lens": [one.prompt_tokens for one in seen],
        "output_lens": [one.output_tokens for one in seen],
    }
    path.write_text(json.dumps(rows))
    return path


def test_decodes_and_lonely_prompts_are_found_again(tmp_path: Path) -> None:
    model = fitted_on_result(result(tmp_path / "r.json", chat(200, 1.0)))
    for held in (Features(1, 1, 1, 60, 0.0), Features(3, 3, 3, 200, 0.0), Features(80, 1, 1, 0, 3200.0)):
        assert model.seconds(held) == pytest.approx(Affine().seconds(held), rel=0.05)
    assert model.provenance is not None
    assert "prompts that met no other" in model.provenance.source
    assert {"decode", "all"} <= set(model.provenance.held_out)


def test_a_busy_server_has_no_prompt_steps(tmp_path: Path) -> None:
    path = result(tmp_path / "r.json", chat(60, 1000.0))
    model = fitted_on_result(path)
    assert model.provenance is not None and "no prompts (all met others)" in model.provenance.source
    assert model.seconds(Features(4, 4, 4, 300, 0.0)) == pytest.approx(0.014, rel=0.1)


@pytest.mark.parametrize(
    ("text", "sentence"),
    [
        *((text, "--save-detailed") for text in ("{}", "[]", "no json")),
        ('{"start_times": [1], "ttfts": [], "itls": [], "input_lens": []}', "--save-detailed"),
        ('{"start_times": [0.0], "ttfts": [0.1], "itls": [[0.01, 0.01]], "input_lens": [5]}', "has 2 gaps"),
    ],
)
def test_other_files_and_too_few_gaps_are_refused(tmp_path: Path, text: str, sentence: str) -> None:
    (tmp_path / "r.json").write_text(text)
    with pytest.raises(StepModelError, match=sentence):
        fitted_on_result(tmp_path / "r.json")
