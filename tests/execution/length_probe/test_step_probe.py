"""The probe inside of an engine: it learns, its predictions reach sequences, records replay, and no token changes."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest

from inflight.core.types.length_distribution import EndedOutput
from inflight.core.types.plan import BatchPlan, Chunk, NewRequest
from inflight.core.types.sampling import SamplingParams
from inflight.execution.length_probe import probe_saver
from inflight.execution.length_probe.probe_file import arrays_of, load_probes
from inflight.execution.length_probe.probe_saver import ProbeSaver
from inflight.execution.length_probe.step_probe import REFRESH, StepProbe


class Hidden:
    """A pass whose states it hands out."""

    def __init__(self) -> None:
        self.places: list[int] = []

    def read(self, hidden: object, places: list[int]) -> None:
        self.places = places


def probe(**given: object) -> StepProbe:
    return StepProbe(None, 4, 2, "m", **given)  # type: ignore[arg-type]


def begun(one: StepProbe) -> None:
    one.begin(BatchPlan(0, (), (NewRequest(0, (1,) * 10, 10, SamplingParams(max_tokens=99)),)))


def test_states_are_read_at_the_prompts_end_and_every_so_many_tokens() -> None:
    one, forward = probe(), Hidden()
    begun(one)
    assert one.read(forward, [Chunk(7, 0, 0, 6, (), 0)]) == [], "inside of the prompt"
    ((sequence, asked, adapter),) = one.read(forward, [Chunk(-1, 2, 0, 3, (), 0), Chunk(7, 0, 6, 4, (), 1)])
    assert (sequence, asked.so_far, asked.prompt_tokens, adapter, forward.places) == (7, 0, 10, "", [6])
    decodes = [Chunk(7, 0, position, 1, (), 1) for position in range(10, 10 + 3 * REFRESH)]
    read = [chunk.start for chunk in decodes if one.read(forward, [chunk])]
    assert read == [9 + REFRESH, 9 + 2 * REFRESH, 9 + 3 * REFRESH]


def test_drafts_are_not_read() -> None:
    one, forward = probe(), Hidden()
    begun(one)
    drafted = Chunk(7, 0, 9, 4, (), 4, draft_token_ids=(1, 2, 3), num_drafts=3)
    ((_, asked, _),) = one.read(forward, [drafted])
    assert (asked.so_far, forward.places) == (0, [0])


def test_a_probe_that_fails_ends_no_step(caplog: pytest.LogCaptureFixture) -> None:
    one = probe()
    begun(one)
    asked = one.read(Hidden(), [Chunk(7, 0, 0, 10, (), 1)])
    assert one.predict(None, asked) == () and "predicts nothing from now on" in caplog.text
    assert one.read(Hidden(), [Chunk(7, 0, 9 + REFRESH, 1, (), 1)]) == []


def test_states_of_outputs_that_never_end_are_dropped() -> None:
    one = probe()
    begun(one)
    for sequence in range(100):
        asked = one.read(Hidden(), [Chunk(sequence, 0, 0, 10, (), 1)])
        one.predict(np.random.default_rng(sequence).standard_normal((1, 4)).astype(np.float32), asked)
    assert len(one._reads) <= 16
    one.begin(BatchPlan(1, (), ended=(EndedOutput(99, 20, True), EndedOutput(98, 20, None), EndedOutput(5, 1, True))))
    assert not {98, 99} & one._reads.keys()


def test_a_file_that_is_damaged_is_reported_and_replaced(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    path = tmp_path / "probe"
    path.write_bytes(b"nothing")
    one = probe(path=path)
    assert "is damaged" in caplog.text
    begun(one)
    one.predict(np.ones((1, 4), np.float32), one.read(Hidden(), [Chunk(7, 0, 0, 10, (), 1)]))
    one.close()
    assert load_probes(path, 4, "m").keys() == {""}


def test_a_probe_is_saved_while_it_is_used(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    monkeypatch.setattr(probe_saver, "SAVE_S", 0.0)
    path = tmp_path / "probe"
    one = probe(path=path)
    states = np.random.default_rng(0).standard_normal((2, 64, 4)).astype(np.float32)
    plan = (NewRequest(0, (1,) * 10, 10, SamplingParams(max_tokens=99)),)
    for sequence in range(128):
        one.begin(BatchPlan(0, (), plan))
        asked = one.read(Hidden(), [Chunk(sequence, 0, 0, 10, (), 1)])
        one.predict(states[sequence // 64, sequence % 64][None], asked)
        one.begin(BatchPlan(1, (), ended=(EndedOutput(sequence, 20, True),)))
    saver = one._saver
    assert saver is not None
    saver.wait()
    assert 0 < load_probes(path, 4, "m")[""].ended <= 64, "a process that is killed now has lost little"
    assert list(tmp_path.iterdir()) == [path]
    one.close()
    assert load_probes(path, 4, "m")[""].ended == 64
    assert not any(
        np.shares_memory(values, other)
        for values in arrays_of(one._probes).values()
        for other in one._probes[""].state().values()
    ), "what is saved is of one moment"
    (tmp_path / "gone").mkdir()
    lost = ProbeSaver(tmp_path / "gone" / "probe")
    (tmp_path / "gone").rmdir()
    lost.save_if_due(one._probes)
    lost.close(one._probes)
    assert caplog.text.count("cannot be saved to") == 1
