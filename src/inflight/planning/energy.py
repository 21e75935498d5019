"""Energy of a deployment: what its boards draw at the planned load, and what that is for an output token.

A board's power rises with its utilisation from idle to full (Fan, Weber and Barroso, "Power Provisioning for a
Warehouse-sized Computer", ISCA 2007). Its utilisation within a step is a share for each class of work: inference draws
most while it computes prompts and less while it reads memory for tokens (Patel et al., POLCA, arXiv 2308.12908).
"""

from __future__ import annotations

from collections.abc import Mapping

from msgspec import Struct

from inflight.planning.machine import Machine
from inflight.simulate.hardware import IDLE_SHARE, Gpu

# Share of the way from idle to full power, by what bounds the work. With these an H200 draws about 500 W in decodes of
# 128 rows of a model of 3 billion parameters, where 517 of 700 were measured (api.serialalice.pt, June 2026).
ACTIVITY: Mapping[str, float] = {"compute": 1.0, "bandwidth": 0.7, "link": 0.4, "launch": 0.3}
JOULES_PER_KWH = 3.6e6


class Energy(Struct, frozen=True):
    """Energy at the planned load: of boards alone, without hosts and networks, times the building's pue.

    Attributes:
        board_watts: Mean power of one board, without pue.
        full_watts, idle_watts: Between which it is.
        watts: Of all boards, with pue.
        joules_per_output_token: Those of prompts included.
        kwh_per_million_output_tokens: The same.
        pue: The building's power over its machines'.
    """

    board_watts: float
    full_watts: float
    idle_watts: float
    watts: float
    joules_per_output_token: float
    kwh_per_million_output_tokens: float
    pue: float


def energy_of(
    machine: Machine, shares: Mapping[str, float], busy: float, boards: int, tokens_per_s: float
) -> Energy | None:
    """Return the energy of a deployment; None where the power of its boards is not known.

    Args:
        shares: Of a step's time, by what bounds the work.
        busy: Share of the time in which steps run.
        boards: In all.
        tokens_per_s: Output tokens of the deployment.
    """
    gpu = getattr(machine.model, "gpu", None)
    if not isinstance(gpu, Gpu) or gpu.watts is None:
        return None
    idle = IDLE_SHARE * gpu.watts if gpu.idle_watts is None else gpu.idle_watts
    active = sum(ACTIVITY[bound] * share for bound, share in shares.items())
    board = idle + (gpu.watts - idle) * busy * active
    watts = boards * board * gpu.pue
    each = watts / tokens_per_s
    return Energy(board, gpu.watts, idle, watts, each, each * 1e6 / JOULES_PER_KWH, gpu.pue)
