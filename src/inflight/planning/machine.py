"""The machine of one engine: one or several GPUs by data sheet, or a calibrated machine; its step times and memory."""

from __future__ import annotations

import math
from dataclasses import dataclass, field, replace

from inflight.config.engine import default_depth
from inflight.core.types.features import Features
from inflight.core.types.kv_blocks import max_blocks, max_sequence_tokens
from inflight.core.types.plan import Capacity
from inflight.core.types.sampling import DEFAULT_RANK
from inflight.models.spec import ModelSpec
from inflight.planning.memory import MemoryBudget, max_concurrent_sequences
from inflight.simulate.efficiency import Case
from inflight.simulate.engine_costs import EngineCosts, engine_costs
from inflight.simulate.fitted import FittedModel, StepModelError
from inflight.simulate.hardware import Gpu, Precision
from inflight.simulate.parallelism import ONE_GPU, Parallelism, as_parallelism
from inflight.simulate.roofline import Roofline
from inflight.simulate.steps import StepModel

BLOCK_SIZE = 16  # tokens
VOCABULARY = 1 << 15  # of simulated prompts, whose contents mean nothing
MIN_CALIBRATED_ERROR = 0.05  # of a calibrated model: machines differ by as much from one day to the next
# Tokens of a forward pass and request slots, for activations and logits before the settings are known. No larger budget
# is proposed: steps were measured up to here (`efficiency`), and larger ones would take memory of keys and values.
WIDEST_STEP, DEFAULT_ROWS = 4096, 256


@dataclass(frozen=True, slots=True)
class Machine:
    """One engine's hardware.

    gpus: of the engine, and the parallelism by which they share the model; price_per_hour: of all of them, None where
    not known. blocks: of KV memory. memory: its budget; None where the engine reported its blocks. calibrated: whether
    steps were measured on the hardware itself. device: as engine settings name it; depth: steps in flight there. cases:
    the step model at the slow and at the fast end of what is uncertain; empty where not known. host_blocks: that may be
    swapped to, 0 where not known; block_bytes: of one over all GPUs; copy_seconds: to copy one either way. windows: of
    the KV groups; by data sheet block_bytes holds what windows save. state_snapshots: slots for copies of recurrent
    state, each as large as state_blocks blocks; 0: the model has none. state_rows: sequences whose states are reserved,
    which bounds those that run; 0: the model has none. max_loras: slots of
    adapters in its memory, each of max_lora_rank. engine: costs of its host; None: steps were measured with them.
    """

    name: str
    model: StepModel
    blocks: int
    max_model_len: int
    gpus: int = 1
    parallelism: Parallelism = ONE_GPU
    price_per_hour: float | None = None
    memory: MemoryBudget | None = None
    calibrated: bool = False
    device: str = "cuda"  # as by data sheets
    depth: int = default_depth("cuda")
    block_size: int = BLOCK_SIZE
    cases: tuple[StepModel, ...] = ()
    host_blocks: int = 0
    block_bytes: float = 0.0
    copy_seconds: float = 0.0
    windows: tuple[int, ...] = (0,)
    state_snapshots: int = 0
    state_blocks: int = 0
    state_rows: int = 0
    max_loras: int = 0
    max_lora_rank: int = DEFAULT_RANK
    engine: EngineCosts | None = None

    @property
    def is_pooled(self) -> bool:
        """Whether its answers are vectors."""
        return isinstance(self.model, Roofline) and self.model.spec.head is None

    @property
    def has_estimates(self) -> bool:
        """Whether the shares of its data sheet that kernels reach are estimates."""
        return isinstance(self.model, Roofline) and self.model.is_estimated

    @property
    def is_encoder_only(self) -> bool:
        """Whether a token sees those behind it too, so that a text is computed in one step, and no prefix is cached."""
        return isinstance(self.model, Roofline) and self.model.spec.encoder_only

    @property
    def on_gpu(self) -> bool:
        return self.device.startswith("cuda")

    @property
    def unit(self) -> str:
        """Return the noun for one of its `gpus`."""
        return "GPU" if self.on_gpu else "processor"

    @property
    def swap_gib(self) -> float:
        """Return the GiB of host memory of `host_blocks`."""
        return self.host_blocks * self.block_bytes / 2**30

    @property
    def tokens(self) -> int:
        """Return the length of the longest sequence that fits into the KV memory, of one data-parallel group."""
        blocks = self.blocks // self.parallelism.data_attention
        return max_sequence_tokens(blocks, self.block_size, self.windows, WIDEST_STEP, self.max_model_len)

    def sequences(self, tokens: float) -> float:
        """Return how many sequences of a length have their keys and values in memory at once, in whole blocks."""
        return self.blocks / max_blocks(math.ceil(max(1.0, tokens)), self.block_size, self.windows, 1)

    def in_larger_blocks(self, size: int) -> Machine:
        """Return the machine with the same memory in blocks of `size` tokens, a multiple of its own: prompts of so many
        thousand blocks are simulated several times as fast. Where something depends on a block's size, itself."""
        times = size // self.block_size
        if times < 2 or self.windows != (0,) or self.state_snapshots:
            return self
        return replace(
            self,
            block_size=times * self.block_size,
            blocks=self.blocks // times,
            block_bytes=times * self.block_bytes,
            copy_seconds=times * self.copy_seconds,
            host_blocks=self.host_blocks // times,
        )

    def capacity(self, rows: int, swaps: bool = False) -> Capacity:
        """Return the capacity of its engine. swaps: whether blocks may be swapped to the host."""
        host = (self.host_blocks, self.copy_seconds) if swaps else (0, 0.0)
        sizes = (self.blocks, self.block_size, rows, self.max_model_len, VOCABULARY, *host)
        snapshots, state_blocks = self.state_snapshots, self.state_blocks
        return Capacity(
            *sizes,
            windows=self.windows,
            state_snapshots=snapshots,
            state_blocks=state_blocks,
            encoder_only=self.is_encoder_only,
        )


@dataclass(frozen=True, slots=True, kw_only=True)
class Hardware:
    """A GPU with a model, under any parallelism. price_per_hour: of one GPU. max_loras: slots of adapters, each
    of max_lora_rank. engine: costs of the host."""

    model: ModelSpec
    gpu: Gpu
    weights: Precision = "bf16"
    kv: Precision = "bf16"
    price_per_hour: float | None = None
    max_loras: int = 0
    max_lora_rank: int = DEFAULT_RANK
    engine: EngineCosts = field(default_factory=engine_costs)

    def machine(
        self,
        parallelism: Parallelism | int,
        mean_context: float,
        block_size: int = BLOCK_SIZE,
        rows: int = DEFAULT_ROWS,
    ) -> Machine:
        """Return the machine of one engine, with memory for `rows` request slots; raise ParallelismError where the
        model cannot be divided so. parallelism: a number: tensor parallelism of that degree."""
        divided = as_parallelism(parallelism)
        memory = max_concurrent_sequences(
            self.model,
            self.gpu,
            max(1.0, mean_context),
            tensor_parallel=divided,
            weights=self.weights,
            kv=self.kv,
            max_num_batched_tokens=WIDEST_STEP * divided.batches,
            max_num_seqs=rows,
            block_size=block_size,
            max_loras=self.max_loras,
            max_lora_rank=self.max_lora_rank,
            packed=self.engine.packing(self.weights, self.model.has_experts),
        )
        name = self.gpu.name if divided.gpus == 1 else f"{divided.gpus} × {self.gpu.name}"
        name = name if divided.is_tensor_alone else f"{name} ({divided})"
        return Machine(
            name=name,
            model=self._model(divided, "typical", block_size),
            blocks=memory.blocks,
            block_size=block_size,
            max_model_len=self.model.default_model_len,
            gpus=divided.gpus,
            parallelism=divided,
            price_per_hour=None if self.price_per_hour is None else self.price_per_hour * divided.gpus,
            memory=memory,
            state_snapshots=memory.state_snapshots * divided.data_attention,
            state_blocks=memory.state_blocks,
            state_rows=rows if memory.state_bytes else 0,
            max_loras=self.max_loras,
            max_lora_rank=self.max_lora_rank,
            device=self.gpu.device,
            depth=default_depth(self.gpu.device) if self.engine.overlapped else 1,
            cases=(self._model(divided, "low", block_size), self._model(divided, "high", block_size)),
            # as much again: hosts of GPUs have more memory than the GPUs, and a processor's is its own
            host_blocks=memory.blocks if self.gpu.device == "cuda" else 0,
            block_bytes=memory.kv_bytes_per_token * block_size * divided.gpus / divided.data_attention,
            copy_seconds=memory.kv_bytes_per_token * block_size / (self.gpu.host_gb_per_s * 1e9),
            engine=self.engine,
        )

    def _model(self, parallelism: Parallelism, case: Case, block_size: int) -> Roofline:
        return Roofline(
            self.model,
            self.gpu,
            parallelism,
            weights=self.weights,
            kv=self.kv,
            case=case,
            block_size=block_size,
            engine=self.engine,
        )


@dataclass(frozen=True, slots=True)
class ScaledStepModel:
    """A step model whose steps all take longer, or shorter, by a factor."""

    model: StepModel
    factor: float

    @property
    def name(self) -> str:
        return f"{self.model.name}, × {self.factor:.3g}"

    def seconds(self, features: Features) -> float:
        return self.factor * self.model.seconds(features)

    def extrapolates(self, features: Features) -> str | None:
        return self.model.extrapolates(features)


def calibrated_machine(model: FittedModel, price_per_hour: float | None = None) -> Machine:
    """Return the machine that a step model was measured on, with the memory of its engine and the error on held-out
    steps as its uncertainty; raise StepModelError where the file does not hold the engine's size."""
    known = model.engine_size
    if "num_blocks" not in known or "max_model_len" not in known:
        raise StepModelError(
            f"The step model ({model.name}) does not say how many KV blocks its engine had, which sizing needs; make "
            "one with `inflight calibrate --output FILE`."
        )
    held_out = model.provenance.held_out if model.provenance is not None else {}
    error = max((error for error, _ in held_out.values()), default=0.0)
    error = max(MIN_CALIBRATED_ERROR, min(0.5, error))
    block_size, windows = known.get("block_size", BLOCK_SIZE), tuple(known.get("windows", (0,)))
    machine = model.provenance.machine if model.provenance is not None else "the calibrated machine"
    return Machine(
        name=machine,
        model=model,
        blocks=known["num_blocks"],
        max_model_len=known["max_model_len"],
        price_per_hour=price_per_hour,
        calibrated=True,
        device=model.device,
        depth=model.depth,
        block_size=block_size,
        cases=(ScaledStepModel(model, 1 + error), ScaledStepModel(model, 1 - error)),
        host_blocks=known["num_blocks"] if known.get("bytes_per_token") else 0,
        block_bytes=known.get("bytes_per_token", 0.0) * block_size / len(windows),
        copy_seconds=known.get("copy_seconds", 0.0),
        windows=windows,
        state_snapshots=known.get("state_snapshots", 0),
        state_blocks=known.get("state_blocks", 0),
    )
