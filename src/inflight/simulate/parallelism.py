"""How the GPUs of one engine share a model: tensor, expert and pipeline parallelism, and data-parallel attention.

The terms are vLLM's. Memory, collectives, step times and plans all read one `Parallelism`.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass

from inflight.models.parts import Mlp
from inflight.models.spec import ModelSpec
from inflight.simulate.hardware import Gpu


class ParallelismError(ValueError):
    """A model cannot be divided so; the message names the size and the number of GPUs."""


@dataclass(frozen=True, slots=True)
class Parallelism:
    """How the GPUs of one engine share a model.

    Attributes:
        tensor: GPUs among which each layer's heads and matrices are divided (`--tensor-parallel-size`).
        expert: GPUs among which whole experts are divided (`--enable-expert-parallel`); 1: each expert is divided
            among all GPUs of the stage, as a dense MLP is.
        data_attention: Groups of `tensor` GPUs, each of which computes attention, dense layers and shared experts of
            its own sequences, and holds only their keys and values (`--data-parallel-size`).
        pipeline: Stages of consecutive layers (`--pipeline-parallel-size`), each with `stage_gpus`.
    """

    tensor: int = 1
    expert: int = 1
    data_attention: int = 1
    pipeline: int = 1

    @property
    def stage_gpus(self) -> int:
        return self.tensor * self.data_attention

    @property
    def gpus(self) -> int:
        return self.stage_gpus * self.pipeline

    @property
    def batches(self) -> int:
        """Return the batches that a step consists of: of each data-parallel group, and one in each pipeline stage."""
        return self.data_attention * self.pipeline

    @property
    def is_tensor_alone(self) -> bool:
        """Return whether it is tensor parallelism alone, which inflight itself serves."""
        return self.gpus == self.tensor and self.expert == 1

    def spans(self, gpu: Gpu) -> bool:
        """Return whether experts are divided among GPUs beyond a domain of links. Engines hide the network there: one
        half of a batch computes while the other travels (DeepSeek-V3's report, arXiv 2412.19437, 3.4)."""
        return self.expert > gpu.domain

    def __str__(self) -> str:
        degrees = (("DP", self.data_attention), ("TP", self.tensor), ("EP", self.expert), ("PP", self.pipeline))
        return " ".join(f"{name}{degree}" for name, degree in degrees if degree > 1) or "TP1"

    @property
    def vllm_options(self) -> str:
        """Return vLLM's options of it; empty for one GPU."""
        sizes = (
            ("--tensor-parallel-size", self.tensor),
            ("--data-parallel-size", self.data_attention),
            ("--pipeline-parallel-size", self.pipeline),
        )
        options = [f"{name} {size}" for name, size in sizes if size > 1]
        return " ".join(options + ["--enable-expert-parallel"] * (self.expert > 1))


ONE_GPU = Parallelism()


def as_parallelism(degree: Parallelism | int) -> Parallelism:
    """Return tensor parallelism of a degree; a Parallelism as it is."""
    return degree if isinstance(degree, Parallelism) else Parallelism(tensor=degree)


def check_parallelism(spec: ModelSpec, parallelism: Parallelism) -> None:
    """Check that a model's heads, experts and layers can be divided so. Raises ParallelismError."""
    tensor, stages, layers = parallelism.tensor, parallelism.pipeline, len(spec.layers)
    if min(parallelism.expert, parallelism.data_attention, stages) < 1:
        raise ParallelismError(f"{parallelism!r}: each degree must be at least 1.")
    if stages > layers:
        raise ParallelismError(
            f"{_name(spec)} has {layers} layers, fewer than {stages} pipeline stages; give --pipeline-parallel "
            f"{layers} at most."
        )
    for layer, _ in spec.kinds_of_layers:
        mixer, read = layer.mixer, layer.mixer.reads
        if mixer.shared_heads is not None:
            _check_heads(spec, *mixer.shared_heads, tensor)
        if read is not None and read.heads % tensor and tensor % read.heads:
            raise ParallelismError(
                f"{_name(spec)} has {read.heads} KV heads, which {tensor} GPUs can neither share nor copy "
                "evenly; give a degree that divides them or is a multiple of them."
            )
    _check_experts(spec, parallelism)


def _check_heads(spec: ModelSpec, kind: str, heads: int, tensor: int) -> None:
    if tensor < 1 or heads % tensor:
        raise ParallelismError(
            f"{_name(spec)} has {heads} {kind}, which {tensor} GPUs cannot share evenly; give a "
            "tensor-parallel degree that divides them."
        )


def _check_experts(spec: ModelSpec, parallelism: Parallelism) -> None:
    mixtures, groups = list(mixtures_of(spec)), parallelism.data_attention
    if not mixtures:
        if parallelism.expert > 1:
            raise ParallelismError(f"{_name(spec)} has no experts to divide; leave --expert-parallel out.")
        if groups > 1:
            raise ParallelismError(
                f"{_name(spec)} has no experts, and --data-parallel {groups} would be {groups} engines that share "
                "nothing; leave it out, and plan replicas."
            )
    if parallelism.stage_gpus % parallelism.expert:
        raise ParallelismError(
            f"Experts are divided among {parallelism.expert} GPUs, which do not divide the {parallelism.stage_gpus} of "
            "a stage; give --expert-parallel with a tensor-parallel times data-parallel degree that they divide."
        )
    for mlp in mixtures:
        if mlp.experts % parallelism.expert:
            raise ParallelismError(
                f"{_name(spec)} has {mlp.experts} experts, which {parallelism.expert} GPUs cannot share evenly; give "
                "--tensor-parallel and --data-parallel whose product divides them, or leave --expert-parallel out."
            )


def _name(spec: ModelSpec) -> str:
    return spec.name or spec.family


def mixtures_of(spec: ModelSpec) -> Iterator[Mlp]:
    """Return the different mixtures of experts of a model's layers."""
    return (layer.mlp for layer, _ in spec.kinds_of_layers if layer.mlp.experts)


def uneven_stages(spec: ModelSpec, parallelism: Parallelism) -> float:
    """Return how many times its even part the largest stage of the pipeline has, in whole layers: the others wait."""
    return largest_stage(spec, parallelism) * parallelism.pipeline


def largest_stage(spec: ModelSpec, parallelism: Parallelism) -> float:
    """Return the share of the layers that the largest stage of the pipeline has."""
    layers = len(spec.layers)
    return -(-layers // parallelism.pipeline) / layers
