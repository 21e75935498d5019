"""`inflight lab` on the command line: who contends, on what, what it prints and writes, and what it refuses."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
from simulate.setups import saved_model

from inflight.cli import call

CAPACITY = {"num_blocks": 400, "block_size": 16, "max_rows": 4, "max_model_len": 512, "vocab_size": 512}
POLICY = """
from inflight.core.policies import Ordered

class {name}(Ordered):
    name = "{label}"

    def rank(self, view, now):
        return ({rank},)
"""
LOAD = ("--rate", "3", "--requests", "60", "--slo", "ttft=2000", "--seeds", "3")
FIXTURES = Path(__file__).parents[1] / "workload" / "fixtures"


@pytest.fixture
def model(tmp_path: Path) -> str:
    return saved_model(tmp_path / "model.json", CAPACITY)


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    path = tmp_path / "policies"
    path.mkdir()
    # Named as a module of the standard library: what a plugin of this name imports is the file.
    (path / "random.py").write_text(POLICY.format(name="Short", label="short", rank="view.prompt_tokens"))
    (path / "lifo.py").write_text(POLICY.format(name="Lifo", label="lifo", rank="-view.arrival"))
    (path / "_shared.py").write_text("raise RuntimeError('it is no policy')")
    return path


def said(capsys: pytest.CaptureFixture[str], *arguments: str, fails: bool = False) -> tuple[str, str]:
    assert (call(["lab", *arguments]) != 0) is fails
    out = capsys.readouterr()
    return out.out, out.err


def test_a_folder_contends_with_policies_by_name(
    capsys: pytest.CaptureFixture[str], model: str, folder: Path, tmp_path: Path
) -> None:
    page = tmp_path / "page.html"
    arguments = (str(folder), "sjf", "--step-model", model, *LOAD)
    out, err = said(capsys, *arguments, "--html", str(page))
    *_, best = lines = out.splitlines()
    rows = {line.split()[0].rstrip(","): line for line in lines[:-1] if "requests/s" in line}
    assert list(rows) == ["fcfs", "lifo", "short", "sjf"], "the baseline comes first"
    assert "1 workload: 12 simulations" in err and " to " in rows["lifo"], "ratios have intervals"
    assert out.count(" *") == 1, "one of them is the best"
    assert best.startswith("* best goodput with ") and best.endswith(" times that of fcfs.")
    text = page.read_text()
    assert all(name in text for name in rows)
    assert said(capsys, *arguments)[0] == out, "the same seeds give the same figures"


def test_standings_are_data(capsys: pytest.CaptureFixture[str], model: str, folder: Path) -> None:
    arguments = (str(folder / "lifo.py"), "--setting", "wide=--strategy continuous", "--step-model", model, *LOAD)
    out, _ = said(capsys, *arguments, "--workload", "calm=--rate 2", "--workload", "busy=", "--by", "e2e_p99", "--json")
    result = json.loads(out)
    found = {(one["load"], one["contender"]): one for one in result["standings"]}
    assert result["by"] == "e2e_p99" and list(found)[:3] == [("calm", one) for one in ("fcfs", "lifo", "wide")]
    assert len(found) == 6 and found["calm", "fcfs"]["ratio"] is None
    assert found["busy", "fcfs"]["figures"]["e2e_p99"]["repeats"] == 3
    assert found["busy", "fcfs"]["figures"]["e2e_p99"]["mean"] > found["calm", "fcfs"]["figures"]["e2e_p99"]["mean"]
    for load in ("calm", "busy"):
        best = min(
            (one for one in found.values() if one["load"] == load), key=lambda one: one["figures"]["e2e_p99"]["mean"]
        )
        assert best["is_best"]


def test_a_file_of_a_predictor_contends_under_sjf(
    capsys: pytest.CaptureFixture[str], model: str, tmp_path: Path
) -> None:
    path = tmp_path / "guess.py"
    path.write_text(
        "class Guess:\n    name = 'guess'\n\n"
        "    def predict(self, request, max_output_tokens, so_far):\n        return so_far + 1.0\n\n"
        "    def observe(self, request, output_tokens):\n        pass\n"
    )
    out, err = said(capsys, str(path), "--step-model", model, *LOAD, "--json")
    assert [one["contender"] for one in json.loads(out)["standings"]] == ["fcfs", "guess"]
    assert "has taken over" not in err


def test_stretches_of_a_trace_are_its_seeds(capsys: pytest.CaptureFixture[str], model: str) -> None:
    trace = (
        "--trace",
        str(FIXTURES / "azure_2023.csv"),
        "fcfs",
        "sjf",
        "--step-model",
        model,
        "--max-model-len",
        "9000",
    )
    trace += ("--num-blocks", "4000", "--warmup", "0")
    _, err = said(capsys, *trace, "--seeds", "2", fails=True)
    assert "--trace-seconds" in err and "2 seeds" in err
    out, _ = said(capsys, *trace, "--seeds", "1")
    assert "1 run each" in out


def test_the_best_run_on_the_real_engine(capsys: pytest.CaptureFixture[str], model: str, folder: Path) -> None:
    arguments = (
        str(folder),
        "--step-model",
        model,
        "--rate",
        "inf",
        "--requests",
        "24",
        "--seeds",
        "2",
        "--warmup",
        "0",
    )
    arguments += (
        "--input-tokens",
        "uniform:8-60",
        "--output-tokens",
        "uniform:2-9",
        "--verify",
        "2",
        "--verify-repeats",
        "1",
    )
    out, err = said(capsys, *arguments, "--by", "e2e_mean")
    assert "on the real engine; 1 run each" in out and "simulated as on the real engine; 1 run each" in out
    assert "Rank correlation of simulation and engine over 3 contenders" in err


@pytest.mark.parametrize(
    ("arguments", "parts"),
    [
        (("fcsf",), ("'fcsf' is no policy", "fcfs")),
        (("missing.py",), ("missing.py is no file",)),
        (("nowhere:Class",), ("nowhere:Class cannot be loaded", "PYTHONPATH")),
        (("math:sqrt",), ("none of the methods rank, shape, predict",)),
        (("sjf", "sjf"), ("2 contenders have the name 'sjf'",)),
        (("--by", "speed"), ("--by is 'speed'", "goodput")),
        (("--verify", "2", "--hardware", "h100", "--model", "llama-3-8b"), ("--verify", "--step-model")),
        (("--setting", "sjf"), ("write NAME=OPTIONS",)),
        (("--setting", "a=--policy nosuch"), ("nosuch")),
        (("--workload", "a=--rate -1"), ("-1", "rate")),
    ],
)
def test_it_refuses(
    capsys: pytest.CaptureFixture[str], model: str, arguments: tuple[str, ...], parts: tuple[str, ...]
) -> None:
    machine = () if "--hardware" in arguments else ("--step-model", model)
    _, err = said(capsys, *arguments, *machine, *LOAD, fails=True)
    assert all(part in err for part in parts), err
    assert "Traceback" not in err


def test_files_that_cannot_contend(capsys: pytest.CaptureFixture[str], model: str, tmp_path: Path) -> None:
    broken, empty = tmp_path / "broken.py", tmp_path / "empty.py"
    broken.write_text("def rank(:\n")
    empty.write_text("VALUE = 1\n")
    (tmp_path / "none").mkdir()
    for path, part in (
        (broken, "cannot be imported (SyntaxError"),
        (empty, "has no class"),
        (tmp_path / "none", "0 Python"),
    ):
        _, err = said(capsys, str(path), "--step-model", model, *LOAD, fails=True)
        assert part in err and "Traceback" not in err


def test_a_policy_that_fails_is_replaced_by_the_baseline(
    capsys: pytest.CaptureFixture[str], model: str, tmp_path: Path
) -> None:
    path = tmp_path / "fails.py"
    path.write_text(POLICY.format(name="Fails", label="fails", rank="1 / 0"))
    out, err = said(capsys, str(path), "--step-model", model, *LOAD)
    assert "'fails' failed in rank (ZeroDivisionError" in err
    assert "1.000 (1.000 to 1.000)" in out


def test_a_figure_that_no_run_has_decides_nothing(capsys: pytest.CaptureFixture[str], model: str) -> None:
    """Answers of one token have no time per output token."""
    load = ("--rate", "3", "--requests", "20", "--seeds", "1", "--output-tokens", "1")
    out, _ = said(capsys, "fcfs", "sjf", "--step-model", model, *load, "--by", "tpot_p99")
    assert "; 1 run each" in out and "*" not in out
