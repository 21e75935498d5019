"""Real models in each precision, against the same weights in float32 by transformers."""

from __future__ import annotations

import numpy as np
import pytest

from .bounds import (
    MAX_BF16_KL,
    MAX_FILE_KL,
    MAX_INT8_KL,
    MAX_KV_INT8_KL,
    MAX_LOG_PROB_ERROR,
    MIN_FILE_TOP1,
)
from .conftest import RealModel

pytestmark = pytest.mark.wide


def test_float32_is_as_by_transformers(real: RealModel) -> None:
    found = real.answers(real.file, load_format="dequantize", dtype="float32")
    likely = real.reference.log_probs[:, :20] - found.log_probs[:, :20]
    assert np.sqrt(np.square(likely).mean()) < MAX_LOG_PROB_ERROR
    assert np.sqrt(np.square(real.reference.of_next - found.of_next).mean()) < MAX_LOG_PROB_ERROR
    assert (real.reference.best == found.best).mean() > 0.999


def test_bf16_is_close_from_the_file_and_from_a_folder(real: RealModel) -> None:
    assert real.agreement(real.file, load_format="dequantize").kl_mean < MAX_BF16_KL
    assert real.agreement(real.folder).kl_mean < MAX_BF16_KL


def test_a_file_as_it_is_served(real: RealModel) -> None:
    served = real.agreement(real.file)
    assert served.kl_mean < MAX_FILE_KL[real.name] and served.same_best > MIN_FILE_TOP1[real.name]
    with_int8_keys = real.agreement(real.file, kv_cache_dtype="int8")
    assert with_int8_keys.kl_mean < served.kl_mean + MAX_KV_INT8_KL


@pytest.mark.parametrize("quantization", ["int8", "int8-all"])
def test_a_folder_in_int8(real: RealModel, quantization: str) -> None:
    assert real.agreement(real.folder, quantization=quantization).kl_mean < MAX_INT8_KL
