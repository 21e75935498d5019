"""Presets: settings that go together for a common use, with the reason of every value.

Options are named by their long names; the command line and configuration files win over a preset. Rows and budgets
differ on a GPU, whose steps take about as long for many rows as for few; those were not measured.
"""

from __future__ import annotations

from msgspec import Struct

from inflight.config.setting import SettingsError

Values = dict[str, tuple[str | int | float, str]]  # option → value and why


class Preset(Struct, frozen=True):
    """A preset. gpu: values that replace others on a GPU."""

    purpose: str
    values: Values
    gpu: Values

    def on(self, gpu: bool) -> Values:
        return {**self.values, **self.gpu} if gpu else self.values


PRESETS = {
    "latency": Preset(
        "few users, who read every word as it comes",
        {
            "strategy": ("adaptive", "prompts are computed only as fast as running streams allow"),
            "itl-target": (0.1, "a stream that is read needs about ten tokens per second"),
            "max-num-seqs": (8, "a step with few sequences is limited by memory and hardly slower than with one"),
            "max-num-batched-tokens": (72, "the maximum of adaptive: 8 sequences and 64 tokens of prompts"),
        },
        {
            "max-num-seqs": (
                32,
                "a step with few sequences reads the same weights, and is hardly slower than with one",
            ),
            "max-num-batched-tokens": (544, "the maximum of adaptive: 32 sequences and 512 tokens of prompts"),
        },
    ),
    "throughput": Preset(
        "maximum tokens per second, whatever the latency",
        {
            "strategy": ("chunked", "every step is filled to its budget"),
            "max-num-seqs": (64, "enough sequences that each weight is used many times when read"),
            "max-num-batched-tokens": (320, "long chunks read the weights less often"),
            "early-end-tokens": (0, "no step is cut short for a first token"),
        },
        {
            "max-num-seqs": (
                256,
                "the largest CUDA graph of decodes, so that each weight is used many times when read",
            ),
            "max-num-batched-tokens": (4352, "256 sequences and 4,096 tokens of prompts, for few steps"),
        },
    ),
    "mixed": Preset(
        "users and batch jobs on one engine",
        {
            "strategy": ("adaptive", "the budget follows what runs, so that jobs cannot slow the streams down"),
            "itl-target": (0.25, "fast enough to read along, slow enough to batch"),
            "max-num-seqs": (32, "room for both; batch requests are preempted when users need it"),
            "policy": ("sjf", "short questions do not wait behind long ones"),
        },
        {"max-num-seqs": (128, "room for both; batch requests are preempted when users need it")},
    ),
    "offline": Preset(
        "a file of requests; no client waits for single answers",
        {
            "strategy": ("chunked", "every step is filled to its budget"),
            "max-num-seqs": (128, "enough sequences to keep the cores busy"),
            "max-num-batched-tokens": (512, "prompts in long chunks"),
            "early-end-tokens": (0, "no step is cut short for a first token"),
            "policy": ("prefix", "prompts that begin alike run while their beginning is cached"),
        },
        {
            "max-num-seqs": (256, "the largest CUDA graph of decodes"),
            "max-num-batched-tokens": (8448, "256 sequences and 8,192 tokens of prompts, for few steps"),
        },
    ),
}


def preset(name: str) -> Preset:
    if name not in PRESETS:
        raise SettingsError(f"--preset is {name!r}; known are {', '.join(PRESETS)}.")
    return PRESETS[name]
