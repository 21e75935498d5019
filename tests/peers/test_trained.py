"""A trained model's copies and how near their answers are, without a download."""

from __future__ import annotations

import json
import sys
from pathlib import Path

import numpy as np
import pytest

from benchmarks.peers.engines import Copy, Engine
from benchmarks.peers.trained import Judge, for_older_tools
from benchmarks.real_models.agreement import Agreement
from benchmarks.real_models.answers import Answers, Questions
from benchmarks.real_models.engines import EngineFailed

from .builders import COPY, contest, job

RUNNER = """
import json, sys
from pathlib import Path
from benchmarks.real_models.answers import Answers, Collected, Questions
import numpy as np
job = json.load(sys.stdin)
assert job["settings"] == {settings}, job["settings"]
collected = Collected(Questions.load(Path(job["questions"])))
collected.take(np.load(Path(job["model"]) / "logits.npy"))
collected.answers("fake").save(Path(job["answers"]))
"""


def judge_of(folder: Path, logits: np.ndarray) -> Judge:
    """The reference's answers to one text of len(logits) + 1 tokens."""
    text = np.arange(len(logits) + 1, dtype=np.int32)
    asked = np.argsort(-logits, axis=1).astype(np.int32)
    log_probs = logits - np.log(np.exp(logits).sum(axis=1, keepdims=True))
    of_next = np.take_along_axis(log_probs, text[1:, None], axis=1)[:, 0]
    Questions([text], asked).save(folder / "questions.npz")
    Answers(np.take_along_axis(log_probs, asked, axis=1), asked[:, 0], of_next).save(folder / "reference.npz")
    return Judge(folder)


def fake_engine(folder: Path, name: str, settings: dict[str, str]) -> Engine:
    """One that answers from logits.npy beside its model, and is to get these settings."""
    (folder / f"{name}.py").write_text(RUNNER.replace("{settings}", repr(settings)))
    return Engine("one", Path(sys.executable), "none", {}, {"PYTHONPATH": str(folder)}, name)


def test_an_engine_is_asked_over_its_own_copy(tmp_path: Path) -> None:
    logits = np.random.default_rng(0).normal(size=(6, 16)).astype(np.float32)
    judge = judge_of(tmp_path, logits)
    np.save(tmp_path / "logits.npy", logits)
    engine = fake_engine(tmp_path, "answers_alike", {})
    same = judge.agreement(engine, Copy(tmp_path, "", ""), "int8")
    assert same.kl_mean == pytest.approx(0, abs=1e-6) and same.same_best == 1
    np.save(tmp_path / "logits.npy", -logits)
    assert judge.agreement(engine, Copy(tmp_path, "", ""), "int8").kl_mean > 0.5


def test_an_engine_that_does_not_answer_is_named(tmp_path: Path) -> None:
    judge = judge_of(tmp_path, np.ones((2, 4), np.float32))
    with pytest.raises(EngineFailed, match="one ended with status 1: FileNotFoundError"):
        judge.agreement(fake_engine(tmp_path, "answers_nothing", {}), Copy(tmp_path, "", ""), "bf16")


def test_both_generations_of_tools_read_where_positions_turn() -> None:
    plain = {"rope_parameters": {"rope_theta": 1e5, "rope_type": "default"}, "_model_name_or_path": "elsewhere"}
    assert for_older_tools(plain) == {"rope_theta": 1e5, "rope_parameters": plain["rope_parameters"]}
    layers = {"full_attention": {"rope_theta": 1e6}, "sliding_attention": {"rope_theta": 1e4}}
    assert for_older_tools({"rope_parameters": layers}) == {
        "rope_theta": 1e6, "rope_local_base_freq": 1e4, "rope_parameters": layers,
    }  # fmt: skip
    assert for_older_tools({"rope_theta": 5e5}) == {"rope_theta": 5e5}
    assert json.dumps(for_older_tools(plain))


class Counting:
    """Judges as the test says, and counts how often each engine is asked."""

    def __init__(self) -> None:
        self.asked: list[str] = []

    def agreement(self, engine: Engine, copy: Copy, precision: str) -> Agreement:
        assert (copy, precision) == (COPY, "bf16")
        self.asked.append(engine.name)
        if engine.name == "two":
            raise EngineFailed("two ended with status 1: no logits")
        return Agreement(6, 0.01, 0.01, 0.02, 0.95, 0.0, 0.0, 0.1)


def test_answers_are_judged_once() -> None:
    found, judge = contest({name: job() for name in ("inflight", "two")}), Counting()
    found.judge = judge
    found.round(0)
    found.round(1)
    assert judge.asked == ["inflight", "two"]
    judged = {(one.engine, one.measure): one.value for one in found.figures if "float32" in one.measure}
    assert judged == {
        ("inflight", "KL from float32, nats"): 0.01, ("inflight", "likeliest token as in float32, %"): 95.0,
    }  # fmt: skip
    assert found.unjudged == {"two": "two ended with status 1: no logits."}
