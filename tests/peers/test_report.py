"""The tables, from figures made by hand."""

from __future__ import annotations

from pathlib import Path

import pytest

from benchmarks.peers.ceilings import Ceilings
from benchmarks.peers.contest import Contest, Figure
from benchmarks.peers.engines import Copy, Engine
from benchmarks.peers.report import highest, ratio, ratios, report
from benchmarks.peers.trials import FIRST_TOKEN, KL, TOP_1, Measure, measures
from benchmarks.real_models.agreement import Agreement
from benchmarks.shapes import QWEN25_05B, write_config
from inflight.execution.sizes import step_weight_bytes
from inflight.models.arithmetic import layer_flops_per_token
from inflight.models.registry import read_folder

from .builders import SMALL, contest, job

DECODE = "decode at batch 1, tokens/s"
HIGHER = Measure(DECODE, "higher")


def figure(number: int, engine: str, value: float, measure: str = DECODE, counts: bool = True) -> Figure:
    return Figure("bf16", number, engine, measure, value, 50e9, counts)


def with_figures(*figures: Figure, engines: tuple[str, ...] = ("inflight", "one", "two")) -> Contest:
    found = contest({name: job() for name in engines})
    found.figures += figures
    found.versions.update({name: "1.0 (plain)" for name in engines})
    return found


def cells(text: str, title: str) -> list[str]:
    line = next(line for line in text.splitlines() if line.startswith(f"| {title} "))
    return [cell.strip() for cell in line.strip("|").split("|")]


def test_the_best_peer_is_the_fastest_or_the_soonest() -> None:
    values = {"inflight": 60.0, "one": 50.0, "two": 40.0}
    assert ratio(HIGHER, values) == pytest.approx(60 / 50)
    assert ratio(FIRST_TOKEN, values) == pytest.approx(60 / 40)


def test_there_is_no_ratio_without_both_sides() -> None:
    assert ratio(HIGHER, {"inflight": 60.0}) is None
    assert ratio(HIGHER, {"one": 60.0, "two": 30.0}) is None


def test_ratios_are_taken_within_a_round() -> None:
    """The machine was half as fast in the second."""
    figures = [figure(0, "inflight", 60), figure(0, "one", 50), figure(1, "inflight", 30), figure(1, "one", 20)]
    assert ratios(HIGHER, figures) == pytest.approx([1.2, 1.5])


def test_a_row_has_medians_ratio_target_and_bandwidth() -> None:
    found = with_figures(
        *(figure(number, "inflight", value) for number, value in enumerate((60, 66, 90))),
        *(figure(number, "one", 50) for number in range(3)),
        *(figure(number, "two", 60) for number in range(3)),
    )
    row = cells(report([found]), DECODE)
    assert row == [DECODE, "66", "50", "60", "1.10× (1.00 to 1.50)", "≥ 1.2×", "", "50 (50 to 50)"]


def test_the_ceiling_has_a_ratio_too(tmp_path: Path) -> None:
    """By the bandwidth around inflight's own run of the round, against the same peer."""
    config = read_folder(write_config(tmp_path / "model", QWEN25_05B), to_run=True)
    ceilings = Ceilings(config, "none", {"bfloat16": 1e12, "int8": 2e12})
    decode = next(one for one in measures(SMALL) if one.title == DECODE)
    assert decode.most is not None
    allowed = decode.most(ceilings, 50e9)
    assert allowed == pytest.approx(50e9 / step_weight_bytes(config, "bfloat16"), rel=0.02), (
        "memory is the bottleneck of one row"
    )
    figures = [figure(0, "inflight", 40), figure(0, "one", 30), figure(0, "two", 20)]
    assert highest(decode, figures, ceilings) == pytest.approx([allowed / 30])
    assert highest(HIGHER, figures, ceilings) == [], "of what has no ceiling"
    found = with_figures(*figures)
    assert cells(report([found], {"bf16": ceilings}), DECODE)[6] == f"{allowed / 30:.2f}×"
    assert ceilings.prefill(512, 50e9) < ceilings.prefill(128, 50e9) < 1e12 / layer_flops_per_token(config)


def test_what_does_not_count_is_named_and_left_out() -> None:
    found = with_figures(
        figure(0, "inflight", 60),
        figure(0, "one", 50),
        figure(1, "inflight", 10, counts=False),
        figure(1, "one", 50, counts=False),
    )
    text = report([found])
    assert cells(text, DECODE)[4] == "1.20×"
    assert f"not alike for all engines: {DECODE} in round 2." in text


def judged(kl: dict[str, float]) -> Contest:
    """Make a contest at one token/s each, but two for peer two."""
    speed = [figure(0, name, 2.0 if name == "two" else 1.0) for name in ("inflight", "one", "two")]
    found = with_figures(*speed, *(figure(0, name, value, KL.title) for name, value in kl.items()))
    found.judge = Sentences()
    return found


class Sentences:
    """Has answered already."""

    def agreement(self, engine: Engine, copy: Copy, precision: str) -> Agreement:
        raise AssertionError("the figures are there")


@pytest.mark.parametrize(("kl", "compared"), [(0.0119, "0.50×"), (0.0121, "1.00×")])
def test_speed_is_compared_with_peers_whose_answers_are_as_near(kl: float, compared: str) -> None:
    text = report([judged({"inflight": 0.01, "one": 0.01, "two": kl})])
    assert cells(text, DECODE)[4] == compared
    assert cells(text, KL.title)[1:5] == ["0.01000", "0.01000", f"{kl:.5f}", "1.00×"]
    assert ("two is left out" in text) == (compared == "1.00×")


def test_peers_whose_answers_are_as_good_as_float32_are_compared() -> None:
    text = report([judged({"inflight": 0.0002, "one": 0.0002, "two": 0.0018})])
    assert cells(text, DECODE)[4] == "0.50×" and "left out" not in text


def test_where_all_peers_answer_worse_they_are_all_compared() -> None:
    text = report([judged({"inflight": 0.01, "one": 0.02, "two": 0.03})])
    assert cells(text, DECODE)[4] == "0.50×" and "left out" not in text
    assert "No peer's KL is 1.2 times inflight's or less" in text


def test_an_engine_that_gives_no_answers_has_a_dash_and_the_reason() -> None:
    found = judged({"inflight": 0.01, "one": 0.01})
    found.unjudged["two"] = "two ended with status 1: no logits."
    text = report([found])
    assert cells(text, KL.title)[1:4] == ["0.01000", "0.01000", "-"]
    assert cells(text, TOP_1.title)[1:4] == ["-", "-", "-"]
    assert cells(text, DECODE)[4] == "0.50×", "its speed is compared"
    assert text.endswith("two ended with status 1: no logits.")


def test_random_weights_have_no_rows_of_answers() -> None:
    assert KL.title not in report([with_figures(figure(0, "one", 50))])


def test_what_was_not_measured_is_a_dash() -> None:
    text = report([with_figures(figure(0, "one", 50))])
    assert cells(text, DECODE)[1:5] == ["-", "50", "-", "-"]


def test_engines_that_never_ran_have_no_column_but_a_sentence() -> None:
    found = with_figures(figure(0, "one", 50), engines=("inflight", "one"))
    del found.versions["inflight"]
    found.absent["inflight"] = "inflight is left out of bf16: exit status 1"
    text = report([found])
    assert text.startswith("| bf16 | one | ratio")
    assert text.endswith("one 1.0 (plain). inflight is left out of bf16: exit status 1")
