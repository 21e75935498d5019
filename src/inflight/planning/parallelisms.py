"""The ways to divide a model among GPUs that a plan compares, and those that it discards, each with the reason."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, field, replace

from inflight.planning.machine import BLOCK_SIZE, DEFAULT_ROWS, Hardware, Machine
from inflight.planning.rendering import sentence
from inflight.simulate.parallelism import Parallelism, ParallelismError

WIDTHS = (1, 2, 4, 8, 16, 32)  # GPUs of a group
WITHIN = 16  # GPUs that are tried within a domain of links: more serve no rate that a few replicas do not
MAX_TENSOR = 8  # of tensor parallelism: beyond it each GPU's part is too narrow for its kernels
STAGES = (2, 4, 8)


@dataclass(frozen=True, slots=True)
class Machines:
    """Ways to run one engine.

    Attributes:
        fitting: That hold the longest request; where none does, all.
        refused: Ways to divide the model that it does not allow, each with the reason.
        small: Machines that do not hold the longest request.
    """

    fitting: list[Machine]
    refused: dict[Parallelism, str] = field(default_factory=dict)
    small: list[Machine] = field(default_factory=list)

    @property
    def discarded(self) -> tuple[str, ...]:
        """Return sentences on the ways that are not simulated."""
        found = [f"{one}: {reason}" for one, reason in self.refused.items()]
        return (*found, sentence("too_small", machines=self.small)) if self.small else tuple(found)


def machines_for(
    hardware: Hardware,
    mean_context: float,
    longest: int,
    *,
    rows: int = DEFAULT_ROWS,
    block_size: int = BLOCK_SIZE,
    served: bool = False,
) -> Machines:
    """Return the ways to run one engine that hold a request of `longest` tokens.

    First those within a domain of links: tensor parallelism, and of a mixture whole experts, with tensor-parallel or
    data-parallel attention. Where the model fits in none of them, pipelines and experts over several domains.

    Args:
        mean_context: Tokens of a typical sequence.
        rows: Request slots that memory is set aside for.
        served: Whether only those are tried that this engine runs itself: tensor parallelism.
    """
    found: list[Machine] = []
    small: list[Machine] = []
    refused: dict[Parallelism, str] = {}
    for ways in (_within(hardware), () if served else _beyond(hardware)):
        for one in ways:
            if served and not one.is_tensor_alone:
                continue
            try:
                machine = hardware.machine(one, mean_context, block_size, rows)
            except ParallelismError as error:
                refused[one] = str(error)
                continue
            (found if machine.tokens >= longest else small).append(machine)
        if found:
            break
    return Machines(found or small, refused, small if found else [])


def _within(hardware: Hardware) -> Iterator[Parallelism]:
    """Return the ways within a domain of links."""
    sizes = [width for width in WIDTHS if width <= min(hardware.gpu.domain, WITHIN)]
    tensor = [Parallelism(width) for width in sizes if width <= MAX_TENSOR]
    yield from tensor
    if hardware.model.has_experts:
        yield from (replace(one, expert=one.tensor) for one in tensor if one.tensor > 1)
        yield from (Parallelism(expert=width, data_attention=width) for width in sizes if width > 1)


def _beyond(hardware: Hardware) -> Iterator[Parallelism]:
    """Return the ways over several domains: stages that fill one each, and of a mixture experts over all of them."""
    if not hardware.gpu.network:
        return
    domain = hardware.gpu.domain
    width = max(width for width in WIDTHS if width <= min(domain, MAX_TENSOR))
    yield from (Parallelism(width, pipeline=stages) for stages in STAGES)
    if hardware.model.has_experts:
        yield from (Parallelism(expert=one, data_attention=one) for one in WIDTHS if one > min(domain, WITHIN))
