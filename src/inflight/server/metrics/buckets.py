"""Upper bounds of histograms: ours, fine from one millisecond on, and those that dashboards made for vLLM expect."""

from __future__ import annotations

# Seconds. Steps of a half and less, so that a percentile read between two bounds is not far off.
SECONDS = (
    *(0.001, 0.002, 0.003, 0.005, 0.0075, 0.01, 0.015, 0.02, 0.03, 0.05, 0.075, 0.1, 0.15, 0.2, 0.3, 0.5, 0.75),
    *(1.0, 1.5, 2.0, 3.0, 5.0, 7.5, 10.0, 15.0, 20.0, 30.0, 60.0, 120.0, 300.0, 600.0, 1800.0),
)
POWERS = tuple(2**exponent for exponent in range(15))  # 1 … 16384: tokens and rows of a step

VLLM_FIRST_TOKEN = (
    *(0.001, 0.005, 0.01, 0.02, 0.04, 0.06, 0.08, 0.1, 0.25, 0.5, 0.75, 1.0, 2.5, 5.0, 7.5),
    *(10.0, 20.0, 40.0, 80.0, 160.0, 640.0, 2560.0),
)
VLLM_NEXT_TOKEN = (
    *(0.01, 0.025, 0.05, 0.075, 0.1, 0.15, 0.2, 0.3, 0.4, 0.5, 0.75, 1.0, 2.5, 5.0, 7.5),
    *(10.0, 20.0, 40.0, 80.0),
)
VLLM_REQUEST = (
    *(0.3, 0.5, 0.8, 1.0, 1.5, 2.0, 2.5, 5.0, 10.0, 15.0, 20.0, 30.0, 40.0, 50.0, 60.0),
    *(120.0, 240.0, 480.0, 960.0, 1920.0, 7680.0),
)
VLLM_STEP_TOKENS = (1, *(2**exponent for exponent in range(3, 15)))
VLLM_SAMPLES = (1, 2, 5, 10, 20)


def lengths(most: int) -> tuple[int, ...]:
    """1, 2, 5, 10, 20, 50 … up to `most`."""
    bounds: list[int] = []
    scale = 1
    while scale <= most:
        bounds += [step * scale for step in (1, 2, 5) if step * scale <= most]
        scale *= 10
    return tuple(bounds)
