"""The probe on a device and with adapters: the states that it reads, and whose they are."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from adapters import write_adapter
from models import write_model

from inflight.build import Engine, build_engine
from inflight.config.engine import EngineSettings
from inflight.config.scheduling import SchedulingSettings
from inflight.core.types.request import Request
from inflight.core.types.sampling import SamplingParams
from inflight.execution import computing
from inflight.execution.backends.reference import ReferenceBackend
from inflight.execution.length_probe import step_probe
from inflight.execution.length_probe.probe_file import load_probes, salted
from inflight.execution.length_probe.step_probe import AskedOutput, StepProbe

from ..test_depth import requests, run

Read = dict[tuple[int, int], tuple[np.ndarray, str]]  # by sequence and output so far: the state and the adapter


@pytest.fixture
def read(monkeypatch: pytest.MonkeyPatch) -> Read:
    """Hidden states that probes read, with a state at every eighth token."""
    found: Read = {}
    predict = StepProbe.predict

    def noted(probe: StepProbe, states: Any, asked: Sequence[AskedOutput]) -> Any:
        assert len(states) == len(asked)
        for state, (sequence, about, adapter) in zip(states, asked, strict=True):
            found[sequence, about.so_far] = np.array(state), adapter
        return predict(probe, states, asked)

    monkeypatch.setattr(StepProbe, "predict", noted)
    monkeypatch.setattr(step_probe, "REFRESH", 8)
    return found


def opened(folder: Path, backend: Any = None, scheduling: dict[str, Any] | None = None, **shape: Any) -> Engine:
    with pytest.MonkeyPatch.context() as patch:
        if backend is not None:
            patch.setattr(computing, "open_backend", lambda *given, **named: backend)
        settings = EngineSettings(model=str(folder), **{"device": "cpu", **shape})  # which `backend` stands in for
        return build_engine(settings, SchedulingSettings.of(**(scheduling or {"policy": "sjf", "predictor": "probe"})))


@pytest.mark.parametrize("depth", [1, 2])
def test_a_device_reads_the_states_of_the_definition(tiny: Path, read: Read, depth: int) -> None:
    """Prompts in chunks, prompts beside decodes, and decodes; with two steps in flight."""
    pytest.importorskip("torch")
    from ..backends.torch.opened import on_device

    said = run(opened(tiny, ReferenceBackend("float32")), requests(1))
    wanted = dict(read)
    read.clear()
    assert run(opened(tiny, on_device(depth=depth)), requests(1)) == said
    assert read.keys() == wanted.keys() and {so_far for _, so_far in read} >= {0, 8}
    for key, (state, _) in wanted.items():
        assert read[key][0].dtype == np.float32
        np.testing.assert_allclose(read[key][0], state, rtol=1e-3, atol=1e-3)


def test_states_of_adapters_are_their_own(tmp_path: Path, read: Read) -> None:
    """With fewer slots than adapters, so that slots change hands, and a file that has a probe of each."""
    write_model(tmp_path / "model")
    names = ("a", "b", "c")
    for seed, name in enumerate(names):
        write_adapter(tmp_path / name, tmp_path / "model", seed, rank=2)
    lora = tuple(f"{name}={tmp_path / name}" for name in names)
    file = tmp_path / "probe"
    scheduling = {"policy": "sjf", "predictor": "probe", "probe_file": str(file)}
    engine = opened(tmp_path / "model", None, scheduling, lora=lora, max_loras=2, max_num_seqs=4, threads=1)
    asked: list[Request] = []
    for number in range(12):
        adapter = engine.adapters.named((None, *names)[number % 4])
        prompt, params = tuple(range(40, 60)), SamplingParams(temperature=0.0, max_tokens=20, ignore_eos=True)
        asked.append(Request(request_id=str(number), prompt_token_ids=prompt, params=params, adapter=adapter))
    for request in asked:
        engine.loop.add(request)
    engine.loop.run()
    engine.loop.close()
    assert {(sequence, so_far) for sequence, so_far in read} >= {(number, 0) for number in range(12)}
    for (sequence, _), (_, adapter) in read.items():
        assert adapter == (("", *names)[sequence % 4])
    firsts = {adapter: state for (_, so_far), (state, adapter) in read.items() if so_far == 0}
    states = [firsts[adapter] for adapter in ("", *names)]
    assert all(np.abs(one - other).max() > 1e-3 for at, one in enumerate(states) for other in states[:at])
    salt = np.load(file)["salts"].tolist()[0].rpartition("/")[0]
    assert load_probes(file, len(states[0]), salt).keys() == {"", *names}
    assert salted(salt, "a") != salted(salt, "b")
