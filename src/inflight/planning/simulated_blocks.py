"""The size of the blocks that a trial simulates: the engine's, or larger where prompts have so many blocks that most of
a trial's work is to look them up, hold and release them one by one.

Only whole blocks are shared. In blocks of B tokens in place of b, a prompt that begins as an earlier one computes
(B - b) / 2 tokens more on average, and a sequence takes as much more memory: both err on the safe side. B is the
largest multiple of b by a power of two with which these are at most LOSS of the tokens that half of the prompts of each
class compute, and with which a prompt has MIN_BLOCKS.
"""

from __future__ import annotations

from inflight.planning.engine_config import EngineConfig
from inflight.planning.machine import Machine
from inflight.planning.traffic import Traffic

LOSS = 0.015  # of the tokens that a prompt computes
MIN_BLOCKS = 128  # of a prompt, mean: with fewer, steps are most of a trial's work


def in_simulated_blocks(machine: Machine, traffic: Traffic, config: EngineConfig, has_tiers: bool = False) -> Machine:
    """Return the machine with blocks as large as a trial of this traffic simulates, in which the longest request still
    fits. Where windows, states or copies depend on a block's size, trials have the engine's. has_tiers: for copies of
    keys and values."""
    if has_tiers or config.scheduling.preemption != "recompute":
        return machine
    size, found = machine.block_size, machine
    computed = min((one.p50 or 0.0 for one in (traffic.fresh, *traffic.fresh_of.values())), default=0.0)
    times = 1
    while traffic.input_mean >= 2 * MIN_BLOCKS * times * size and (2 * times - 1) * size / 2 <= LOSS * computed:
        times *= 2
        larger = machine.in_larger_blocks(times * size)
        if larger.tokens < traffic.longest:
            break
        found = larger
    return found
