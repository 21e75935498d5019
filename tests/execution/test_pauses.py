"""A pause between two layers comes exactly there, and changes nothing that is computed."""

from __future__ import annotations

import numpy as np
import pytest

from inflight.execution.runner import ModelRunner

from .conftest import OracleOf
from .driver import Driver, backends


@pytest.mark.parametrize("variant", ["llama2", "gemma4_e2b"])
@pytest.mark.parametrize("isa", backends()[:2])
def test_a_pass_pauses_between_its_layers_alone(oracle_of: OracleOf, variant: str, isa: str) -> None:
    oracle = oracle_of(variant)
    plain, driver = (Driver.of(oracle.folder, "float32", isa) for _ in range(2))
    expected = plain.prefill(plain.start(oracle.prompt[:40]), 16)
    pauses: list[int] = []
    driver.decoder.pauses(lambda: pauses.append(1))
    driver.decoder.taps([len(driver.config.layers) - 1, 0])
    assert np.array_equal(driver.prefill(driver.start(oracle.prompt[:40]), 16), expected)
    assert len(pauses) == 3 * (len(driver.config.layers) - 1) > 0
    driver.decoder.pauses(lambda: None)
    driver.prefill(driver.start(oracle.prompt[:5]), 16)
    assert len(pauses) == 3 * (len(driver.config.layers) - 1)


def test_what_a_pause_raises_ends_the_pass(oracle_of: OracleOf) -> None:
    driver = Driver.of(oracle_of("llama2").folder, "float32", "reference")

    def interrupt() -> None:
        raise KeyboardInterrupt

    driver.decoder.pauses(interrupt)
    with pytest.raises(KeyboardInterrupt):
        driver.step([(driver.start([1, 2, 3]), 3)])


class PausingDecoder:
    """A runner's decoder, as far as it is asked here."""

    def __init__(self) -> None:
        self.between: object = None

    def pauses(self, between: object) -> None:
        self.between = between


def test_a_runner_asks_its_decoder_to_pause_if_it_can() -> None:
    def between() -> None:
        pass

    runner, decoder = ModelRunner.__new__(ModelRunner), PausingDecoder()
    runner._decoder = decoder  # type: ignore[assignment]
    runner.pauses(between)
    assert decoder.between is between
    runner._decoder = object()  # type: ignore[assignment]
    runner.pauses(between)
