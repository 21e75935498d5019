"""KV memory that is too small costs throughput in proportion, and never more than reserving it would."""

from __future__ import annotations

import pytest

from benchmarks.oversubscription import requests, throughput


@pytest.mark.parametrize("demand", [1.5, 3.0])
def test_too_small_a_memory_never_collapses_throughput(demand: float) -> None:
    asked = requests(80)
    roomy, none, _ = throughput(asked, "paged", 0.25)
    paged, preemptions, _ = throughput(asked, "paged", demand)
    reserved, _, _ = throughput(asked, "reserve-request", demand)
    assert none == 0 < preemptions
    assert paged > reserved and paged > roomy / demand
