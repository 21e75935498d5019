"""Records, step models and results come from anywhere: whatever is in them, they are read, or refused in a sentence."""

from __future__ import annotations

import contextlib
import io
import json
import re
from collections.abc import Callable
from pathlib import Path

import pytest
from bench.test_result import ABOUT, measured
from drawn import examples
from hypothesis import given, settings
from hypothesis import strategies as st
from simulate.setups import MODEL, chat, pool

from inflight.bench.result import bench_record
from inflight.cli import call
from inflight.config.scheduling import SchedulingSettings
from inflight.simulate.fitted import Provenance
from inflight.simulate.simulation import SimulationSetup, simulate

CAPACITY = {"num_blocks": 40, "block_size": 16, "max_rows": 8, "max_model_len": 512, "vocab_size": 1000}
ODD = ("-1", "0", "1e308", "-1e-9", "1" + "0" * 30, "0.5", "null", "true", '"x"', '""', "[]", "{}", "NaN", "[[1]]", "7")
_VALUE = re.compile(rb'"(?:[^"\\]|\\.)*"|-?\d[\d.eE+-]*|true|false|null|\[\]|\{\}')


def record(folder: Path) -> Path:
    path = folder / "record.jsonl"
    simulate(chat(6, 60.0, shared=32), SimulationSetup(pool(SchedulingSettings(policy="sjf"), num_blocks=40)), path)
    return path


def step_model(folder: Path) -> Path:
    path = folder / "steps.json"
    provenance = Provenance("a test", "a machine", "2026-01-01", 9, {"all": (0.1, 9)}, capacity={**CAPACITY})
    fitted = MODEL.__class__(
        0.01, (1e-3, 2e-3), knots=(8,), ranges={"rows": (1, 8)}, residuals=(0.9, 1.1), provenance=provenance
    )
    fitted.save(path)
    return path


def result(folder: Path) -> Path:
    path = folder / "result.json"
    path.write_text(json.dumps(bench_record(measured(), ABOUT)))
    return path


def vllm_result(folder: Path) -> Path:
    path = folder / "vllm.json"
    count = 12
    arrays = {
        "start_times": [float(k) for k in range(count)],
        "ttfts": [0.1] * count,
        "itls": [[0.01, 0.02, 0.03]] * count,
        "input_lens": [5] * count,
    }
    path.write_text(json.dumps(arrays))
    return path


MAKERS = {"record": record, "step model": step_model, "result": result, "vllm result": vllm_result}
VERBS: dict[str, tuple[str, tuple[str, ...]]] = {
    "replay": ("record", ("replay",)),
    "replay beside its own steps": ("record", ("replay", "{}", "--step-model")),
    "calibrate": ("record", ("calibrate", "--record")),
    "calibrate on a foreign result": ("vllm result", ("calibrate", "--vllm-result")),
    "simulate": ("step model", ("simulate", "--rate", "2", "--requests", "4", "--warmup", "0", "--step-model")),
    "report of a record": ("record", ("report",)),
    "report of a result": ("result", ("report",)),
}


@pytest.fixture(scope="module")
def sound(tmp_path_factory: pytest.TempPathFactory) -> dict[str, Path]:
    folder = tmp_path_factory.mktemp("sound")
    return {name: make(folder) for name, make in MAKERS.items()}


@st.composite
def damages(draw: st.DrawFn) -> Callable[[bytes], bytes]:
    """One or two places of a file changed: a value, a byte, a line, or where it ends."""
    kinds = st.sampled_from(("value", "value", "value", "byte", "cut", "twice", "lost"))
    plan = [(draw(kinds), draw(st.floats(0, 1)), draw(st.sampled_from(ODD)), draw(st.integers(0, 255))) for _ in "12"]
    plan = plan[: draw(st.integers(1, 2))]

    def damage(content: bytes) -> bytes:
        for kind, share, odd, byte in plan:
            content = _damaged(content, kind, share, odd, byte)
        return content

    return damage


def _damaged(content: bytes, kind: str, share: float, odd: str, byte: int) -> bytes:
    place = min(int(share * len(content)), max(0, len(content) - 1))
    if kind == "value":
        values = list(_VALUE.finditer(content))
        if not values:
            return content
        one = values[min(int(share * len(values)), len(values) - 1)]
        return content[: one.start()] + odd.encode() + content[one.end() :]
    if kind == "byte":
        return content[:place] + bytes([byte]) + content[place + 1 :]
    if kind == "cut":
        return content[:place]
    start = content.rfind(b"\n", 0, place) + 1
    end = content.find(b"\n", place) + 1 or len(content)
    return content[:end] + content[start:] if kind == "twice" else content[:start] + content[end:]


def ran(*arguments: str) -> tuple[int, str]:
    with contextlib.redirect_stdout(io.StringIO()), contextlib.redirect_stderr(io.StringIO()) as heard:
        return call(list(arguments)), heard.getvalue()


@pytest.mark.parametrize("name", VERBS)
@settings(examples(50), deadline=None)
@given(damage=damages())
def test_a_damaged_file_is_read_or_refused_in_one_sentence(
    sound: dict[str, Path], name: str, damage: Callable[[bytes], bytes]
) -> None:
    source, verb = VERBS[name]
    path = sound[source]
    hurt = path.with_stem("hurt")
    hurt.write_bytes(damage(path.read_bytes()))
    code, heard = ran(*(word.format(path) for word in verb), str(hurt))
    assert code in (0, 1, 2)
    assert code == 0 or heard.strip()
