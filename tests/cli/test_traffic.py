"""Options that say what is asked mean the same to every verb."""

from __future__ import annotations

from pathlib import Path

import click
import pytest

from inflight.cli.bench_options import share_of
from inflight.cli.demand import DemandOptions, PlannedDemandOptions, classes_of, demand_of
from inflight.cli.traffic import arrivals_of
from inflight.metrics.slo import SloError
from inflight.planning.demand import Drawn, Traced
from inflight.planning.mixture import Mixed
from inflight.workload.arrivals import Gamma, Poisson


def test_arrivals_are_given_by_a_rate_or_a_form() -> None:
    assert arrivals_of(5.0, None) == Poisson(5.0)
    assert arrivals_of(None, "gamma:5:0.25") == Gamma(5.0, 0.25)
    assert arrivals_of(None, None) is None
    with pytest.raises(click.UsageError, match="both say when"):
        arrivals_of(5.0, "poisson:5")


def test_a_demand_clumps_as_the_measured_load_does() -> None:
    """`gamma:5:0.25` of bench, as of vLLM: gaps with a coefficient of variation of 2, its square 4."""
    demand = demand_of(DemandOptions(arrivals="gamma:5:0.25", input_tokens="100", output_tokens="20"), 1000)
    assert isinstance(demand, Drawn) and (demand.rate, demand.gap_variation) == (5.0, 4.0)


def test_options_of_a_plan_alone_are_those_of_no_other_verb() -> None:
    lengths = {"input_tokens": "100", "output_tokens": "20"}
    assert demand_of(PlannedDemandOptions(gpus=2, **lengths), 1000).rate == 1.0
    for more in ({"prefix_tokens": 64}, {"turns": "3"}):  # who comes is not known, and so not regular
        begun = demand_of(PlannedDemandOptions(gpus=2, **lengths, **more), 1000)
        assert isinstance(begun, Mixed) and begun.gap_variation == 1.0
    with pytest.raises(click.UsageError, match="--rate and --gpus both say"):
        demand_of(PlannedDemandOptions(rate=3.0, gpus=2, **lengths), 1000)
    assert DemandOptions(rate=3.0, **lengths).gpus is DemandOptions(rate=3.0, **lengths).sessions is None


def test_vectors_have_no_tokens_in_traces_and_classes(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    trace, classes = tmp_path / "trace.csv", tmp_path / "classes.toml"
    trace.write_text("timestamp,input_length,output_length\n0,100,50\n1,200,250\n", encoding="utf-8")
    classes.write_text("[classes.a]\nshare = 1\ninput = 200\noutput = 30\nmax_tokens = 90\n", encoding="utf-8")
    of_trace = DemandOptions(trace=trace, output_tokens="0", seed=3)
    recorded = demand_of(of_trace, 1000, is_pooled=True)
    with pytest.raises(click.UsageError, match="leave --output-tokens out"):
        demand_of(of_trace, 1000)
    assert isinstance(recorded, Traced) and {one.output_tokens for one in recorded.trace.entries} == {1}
    assert recorded.busiest_seed == 3
    assert "Recorded answers were left out" in recorded.trace.notes[-1]
    asked = DemandOptions(classes=classes, rate=5.0)
    mixed = demand_of(asked, 1000, classes_of(asked), is_pooled=True)
    assert {(one.output_tokens, one.max_tokens) for one in mixed.workload(5.0, 20, 0).entries} == {(1, 1)}
    assert "Answers of --classes are left out" in capsys.readouterr().err


@pytest.mark.parametrize(
    ("slo", "share", "expected"),
    [((), None, 0.99), (("ttft=500(p95)",), None, 0.95), (("ttft=500",), 0.9, 0.9), (("ttft=500(p90)",), 0.9, 0.9)],
)
def test_the_share_is_that_of_the_limits(slo: tuple[str, ...], share: float | None, expected: float) -> None:
    assert share_of(slo, share) == expected


def test_two_shares_are_refused() -> None:
    with pytest.raises(click.UsageError, match=r"p95 and --share 0\.9"):
        share_of(("ttft=500(p95)",), 0.9)
    with pytest.raises(SloError, match="give one percentile"):
        share_of(("ttft=500(p95)", "e2e=50(p90)"), None)
