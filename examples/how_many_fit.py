"""Planning from Python: what keys and values take, how many requests fit, and where the queue begins to grow.

Call: `python examples/how_many_fit.py llama-3-8b a100-80`
"""

from __future__ import annotations

import sys

from inflight.models.known import read_model
from inflight.planning import estimate_kv_cache, max_concurrent_sequences, throughput_latency_curve
from inflight.planning.demand import Drawn
from inflight.planning.engine_config import EngineConfig
from inflight.planning.machine import Hardware
from inflight.simulate.hardware import find_gpu
from inflight.workload.lengths import parse_lengths

PROMPT, ANSWER = "lognormal:400:3000", "lognormal:150:600"
RATES = (2.0, 8.0, 32.0)  # requests a second


def main(model: str, gpu: str) -> None:
    per_token = estimate_kv_cache(model, tokens=1).bytes_per_token
    room = max_concurrent_sequences(model, gpu, tokens_per_sequence=1000)
    print(f"{model} on {gpu}: {per_token / 1024:.0f} KiB a token; {room.sequences:,} requests of 1,000 tokens fit")

    machine = Hardware(model=read_model(model), gpu=find_gpu(gpu)).machine(1, mean_context=1000)
    config = EngineConfig(max_num_seqs=128, max_num_batched_tokens=2048)
    demand = Drawn(1.0, parse_lengths(PROMPT), parse_lengths(ANSWER), longest=machine.max_model_len)
    for point in throughput_latency_curve(machine, config, demand, RATES, requests=200):
        latency = "its queue grows without end" if point.ttft is None else f"TTFT p99 {1e3 * point.ttft[2]:,.0f} ms"
        print(f"{point.rate:4.0f} requests/s: {point.output_tokens_per_s:6,.0f} output tokens/s, {latency}")


if __name__ == "__main__":
    main(*(sys.argv[1:] or ("llama-3-8b", "a100-80")))
