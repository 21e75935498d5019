"""A step model from a model's shape and a GPU's data sheet, where no step was measured.

Kernels run one after the other, so the time of each class of work is max(operations / rate, bytes / bandwidth), and
the classes are added (Williams et al., "Roofline", 2009); of experts and of recurrent states, some of which read while
others compute, both times are added, too. docs/planning-model.md has the formulas. Embedding look-ups,
the gathering of several GPUs' logits and sampling are not counted. Kernels reach a share of the data sheet's rates
(`efficiency`), collectives are measured (`collectives`), and an engine's host works beside the GPU or between its steps
(`engine_costs`).
"""

from __future__ import annotations

import copy
import math
import sys

from msgspec import structs

from inflight.core.types.features import Features
from inflight.models.arithmetic import matrix_parameters, table_parameters
from inflight.models.mixers.mla import LatentAttention
from inflight.models.sequence_memory import state_bytes
from inflight.models.spec import ModelSpec
from inflight.simulate.attention_costs import attention_costs
from inflight.simulate.collectives import all_reduce_seconds, expert_exchange_seconds, send_seconds
from inflight.simulate.costs import Cost, slower
from inflight.simulate.efficiency import (
    MAX_MEASURED_TOKENS,
    MIN_SHARD_BYTES,
    Case,
    Efficiencies,
    efficiencies,
    is_estimated,
    measured_family,
    profile,
    saturation,
    spread,
)
from inflight.simulate.engine_costs import EngineCosts, engine_costs
from inflight.simulate.hardware import ITEM_BYTES, Gpu, Precision
from inflight.simulate.parallelism import Parallelism, as_parallelism, check_parallelism, uneven_stages
from inflight.simulate.shards import (
    ExpertShard,
    busiest_batch,
    linear_shard,
    matrix_bytes,
    prompt_chunks,
)

NVLINK = "NVLink"
# Share of an H100's units that send tokens to experts in a step with prompts (DeepEP's README, 2025), taken for all
# GPUs; decodes alone are sent without any.
SENDING_UNITS = 24 / 132
EXPERT_PASSES = 3  # times that vectors of the chosen experts are read or written beside their products
# In a step with prompts all rows pass the kernels of chunks (vLLM, gated delta rule): one that decodes fills a chunk,
# and states are gathered before and scattered after, each time read and written.
STATE_CHUNK, STATE_PASSES = 64, 3


class Roofline:
    """The step model of a model on a GPU, or on several by a parallelism."""

    def __init__(
        self,
        spec: ModelSpec,
        gpu: Gpu,
        parallelism: Parallelism | int = 1,
        *,
        weights: Precision = "bf16",
        kv: Precision = "bf16",
        case: Case = "typical",
        block_size: int = 16,
        engine: EngineCosts | None = None,
        shares: Efficiencies | None = None,
    ):
        """Make the model of a GPU, or of several by a parallelism.

        Args:
            parallelism: how GPUs share the model; a number: so many by tensor parallelism.
            weights, kv: their precisions.
            case: the end of the spread of published runs around it.
            block_size: tokens of the KV blocks that are copied when sequences are swapped.
            engine: what its host costs; None: this engine's.
            shares: of the data sheet's rates; None: the GPU's.

        Raises:
            ParallelismError: the model cannot be divided so.
        """
        self.spec, self.gpu, self.parallelism = spec, gpu, as_parallelism(parallelism)
        check_parallelism(spec, self.parallelism)
        tensor, layers = self.parallelism.tensor, len(spec.layers)
        self.weights, self.kv, self.case = weights, kv, case
        self._bf16, self._bandwidth = gpu.flops_per_s("bf16"), gpu.bytes_per_s
        self._shares = efficiencies(gpu.kernels) if shares is None else shares
        self._profile = profile(gpu.device == "cpu")
        self._engine = (engine_costs() if engine is None else engine).over(self.parallelism.gpus)
        self._matrices = linear_shard(spec, self.parallelism)
        self.packing = self._engine.packing(weights, spec.has_experts)
        self._matrix_bytes = matrix_bytes(spec, self.parallelism, self.packing)
        expert = self.packing.expert
        self._expert_item = self.packing.matrix if expert is None else expert  # bytes of an element of its matrix
        self._is_native = self.packing.matrix < ITEM_BYTES["bf16"] and gpu.computes(weights)
        # Of layers with a state that is computed: short convolutions alone are one quick kernel.
        self._layers, self._recurrent = layers, sum(bool(layer.mixer.state_flops) for layer in spec.layers)
        self._factor = spread(gpu.kernels, spec.has_experts, case) * uneven_stages(spec, self.parallelism)
        self._shard = 2 * matrix_parameters(spec) / layers / self.parallelism.stage_gpus
        rate = self._rate(self.packing.matrix, self._shares.fp8_compute, self._shares.widened_compute)
        share = self._shares.linear_compute * self._profile.shard_share(2 * self._matrices.matrices / layers)
        self._matrix_rate = rate * share
        self._attention = attention_costs(spec, gpu, tensor, kv, self._shares, self._engine, self._matrix_rate)
        self._state_bytes = 2 * state_bytes(spec) / tensor  # of one row: read and written
        self._collectives = self._shares.all_reduce * (self._engine.all_reduce if gpu.link == NVLINK else 1.0)
        self._head = 0.0 if spec.head is None else table_parameters(spec) / tensor
        self._block_bytes = block_size * self._attention.token_bytes
        self._overlaps = self.parallelism.spans(gpu)
        self._batch_tokens: int | None = None  # of one of a pipeline's batches at most, where that is known
        self._pass_tokens = sys.maxsize
        self._has_graphs = gpu.device == "cuda"  # of decodes; other steps are launched kernel by kernel
        self._gaps = self._kernel_gaps()
        # What depends on numbers of tokens alone, of which few occur: linear layers, the logits' head, collectives.
        self._by_size: dict[tuple[int, int, float], tuple[Cost, Cost, Cost]] = {}

    @property
    def name(self) -> str:
        """A description that says that nothing was measured on this hardware."""
        one = self.parallelism
        split = "" if one.gpus == 1 else f" × {one.gpus}" if one.is_tensor_alone else f" × {one.gpus} ({one})"
        source = "estimated" if self.is_estimated else "published"
        engine = "" if self._engine.is_own else f"; host costs of {self._engine.name}: {self._engine.source}"
        return f"{self.gpu.name}{split}, data sheet and {source} efficiencies, not calibrated on your hardware{engine}"

    @property
    def is_estimated(self) -> bool:
        """Whether shares of the data sheet are estimates: nothing was measured of such GPUs."""
        return is_estimated(self.gpu.kernels)

    def in_steps_of(self, tokens: int | None, pass_tokens: int | None = None) -> Roofline:
        """Return the model of an engine whose steps have so many tokens at most.

        Args:
            tokens: Of all data-parallel groups and stages of a pipeline together; None: prompts are not divided between
                steps. Before, each step is taken to be full.
            pass_tokens: Of a forward pass at most, of all of them together, too; None: as before. A wider step of this
                engine takes several, that of another engine is a single one.
        """
        is_cut = tokens is None and self._engine.is_own
        bounded = copy.copy(self)
        if self.parallelism.pipeline > 1:
            bounded._batch_tokens = sys.maxsize if tokens is None else max(1, tokens // self.parallelism.batches)
        if is_cut and pass_tokens is not None:
            bounded._pass_tokens = pass_tokens
        return bounded

    def seconds(self, features: Features) -> float:
        """Return how long a step takes."""
        return sum(cost.seconds for cost in self.costs(features))

    def costs(self, features: Features) -> tuple[Cost, ...]:
        """Return a step's time by class of work, in the order of KINDS."""
        passes, features = self._passes(features)
        step, stage_tokens = features, features.tokens / self.parallelism.pipeline
        features = busiest_batch(step, self.parallelism, MAX_MEASURED_TOKENS, self._batch_tokens)
        if self._has_graphs and not features.has_prompts:
            features = structs.replace(features, tokens=self._engine.padded(features.tokens))
        stage_tokens = max(stage_tokens, features.tokens)
        work = self._work(features, stage_tokens)
        if self._overlaps:
            half = self._work(_part(features, 2), stage_tokens / 2)
            left = 1 - SENDING_UNITS if features.has_prompts else 1.0
            work = _overlapped(work, half, self._expert_exchange(stage_tokens / 2), left)
        rounds = passes * self._factor * self._rounds(step, features)
        factor = rounds * self._engine.kernels
        kernels = sum([cost.seconds for cost in work]) * self._engine.kernels
        launch = Cost("launch", rounds * self._launch(features, kernels), "launch")
        if factor == 1:
            return (*work, launch)
        return (*[Cost(cost.kind, cost.seconds * factor, cost.bound) for cost in work], launch)

    def _passes(self, step: Features) -> tuple[int, Features]:
        """Return the forward passes of a step, and what one of them computes; each has the host's work for a step."""
        if step.tokens <= self._pass_tokens:
            return 1, step
        passes = math.ceil(step.tokens / self._pass_tokens)
        return passes, _part(step, passes)

    def _rounds(self, step: Features, batch: Features) -> float:
        """Return how many times each stage of a pipeline has all of its batches in a step: at the end of a prompt that
        is alone, the last of its batches passes later stages while nothing follows it."""
        if self._batch_tokens is None or step.rows > 1 or not (step.samples and step.has_prompts):
            return 1.0
        return 1 + (math.ceil(step.tokens / batch.tokens) - 1) / self.parallelism.pipeline

    def __getstate__(self) -> dict[str, object]:
        return {**self.__dict__, "_by_size": {}}  # a model is known by its inputs, whatever it was asked before

    def _work(self, features: Features, stage_tokens: float) -> tuple[Cost, ...]:
        size = features.tokens, features.samples, stage_tokens
        known = self._by_size.get(size)
        if known is None:
            linear, exchange = self._linear(features, stage_tokens), self._exchange(features, stage_tokens)
            known = self._by_size[size] = linear, self._logits(features), exchange
        linear, logits, exchange = known
        prompts, decodes = self._attention.of_prompts(features), self._attention.of_decodes(features)
        if self._state_bytes:
            if features.has_prompts:
                prompts = self._with_states(prompts, features)
            else:
                decodes = self._with_states(decodes, features)
        return linear, prompts, decodes, logits, exchange

    def extrapolates(self, features: Features) -> str | None:
        """Return a sentence on a step beyond the measured efficiencies; None where it is within."""
        _, features = self._passes(features)
        features = busiest_batch(features, self.parallelism, MAX_MEASURED_TOKENS, self._batch_tokens)
        if features.tokens > MAX_MEASURED_TOKENS:
            return f"A step has {features.tokens:,} tokens; kernels were measured up to {MAX_MEASURED_TOKENS:,}."
        if self._shard < MIN_SHARD_BYTES and self.gpu.device != "cpu":  # whose profile is that of small ones
            return (
                f"A layer's weights on one GPU are {self._shard / 1e6:.0f} MB; shards were measured from "
                f"{MIN_SHARD_BYTES / 1e6:.0f} MB on, and smaller ones are slower than modelled."
            )
        return None

    def _linear(self, features: Features, stage_tokens: float) -> Cost:
        tokens = features.tokens
        if not tokens:
            return Cost("linear", 0.0, "bandwidth")
        computed = tokens * self._matrices.flops / (self._matrix_rate * self._profile.token_share(tokens))
        read = (
            self._matrix_bytes * self._profile.reading_factor(tokens) / (self._bandwidth * self._shares.linear_memory)
        )
        dense = slower("linear", computed, read)
        of_experts = [self._experts(stage_tokens, one) for one in self._matrices.experts]
        longest = max((dense, *of_experts), key=lambda cost: cost.seconds)
        return Cost("linear", dense.seconds + sum(cost.seconds for cost in of_experts), longest.bound)

    def _experts(self, tokens: float, experts: ExpertShard) -> Cost:
        """Return the time of the experts of all layers with the same MLP: each touched one is read, and computes the
        tokens that chose it, whose vectors are gathered for it and added up after it. Experts have so unlike numbers of
        tokens that some read while others compute, so that both times are added. tokens: of all GPUs that share the
        experts."""
        touched, shares = experts.mlp.touched_experts(tokens), self._shares
        item = self._expert_item
        chosen = tokens * experts.mlp.top_k
        rate = self._rate(item, self._expert_factor(item), shares.expert_widened) * self._expert_share(item, experts)
        rate *= saturation(chosen / touched, shares.expert_tokens)
        computed, read = chosen * experts.busiest(tokens, self._engine.expert_skew), touched * experts.max_read(tokens)
        compute = 2 * computed * experts.elements / rate
        moved = EXPERT_PASSES * computed * self.spec.hidden_size * ITEM_BYTES["bf16"] * experts.layers / experts.divided
        read *= experts.elements * item + experts.outputs * self.packing.matrix_scale
        memory = (read + moved) / (self._bandwidth * shares.expert_memory)
        return Cost("linear", compute + memory, "compute" if compute > memory else "bandwidth")

    def _expert_factor(self, item: float) -> float:
        """Return the factor on the rate of experts of so many bytes an element where units compute in them."""
        if item >= 1:
            return self._shares.expert_fp8 * self._engine.experts_fp8
        by_cutlass = self._engine.experts_cutlass and self.weights == "nvfp4"
        return self._shares.expert_fp4 * (self._shares.expert_cutlass if by_cutlass else 1.0)

    @property
    def _expert_launch(self) -> float:
        """Return the seconds more that a layer with experts takes, as their matrices compute."""
        if self._expert_item == ITEM_BYTES["bf16"] or not self.gpu.computes(self.weights):
            return self._shares.expert_launch
        return self._shares.expert_fp8_launch if self._expert_item >= 1 else self._shares.expert_fp4_launch

    def _expert_share(self, item: float, experts: ExpertShard) -> float:
        """Return the share of the peak that experts of so many bytes an element reach with many tokens each."""
        half = self._shares.expert_width
        if item != ITEM_BYTES["bf16"] and self.gpu.computes(self.weights):
            in_eight = self._shares.expert_fp8_width * self._engine.experts_fp8_width
            half = in_eight if item >= 1 else self._shares.expert_fp4_width
        share = self._shares.expert_compute * saturation(experts.width, half)
        family, whole = measured_family(self.gpu.kernels), experts.mlp.experts / experts.divided
        if item != ITEM_BYTES["bf16"] or self._engine.tunes_experts(family or self.gpu.kernels, whole, experts.width):
            return share
        return min(share, self._shares.expert_untuned)

    def _rate(self, item: float, native: float, widened: float) -> float:
        """Return the operations per second of matrices of so many bytes an element, at the rate of bf16's kernels but
        for these factors.

        Args:
            native: Where units compute in as many bits.
            widened: Where weights are widened for units of bf16.
        """
        if item == ITEM_BYTES["bf16"]:
            return self._bf16
        return self.gpu.flops_per_s(self.weights) * (native if self.gpu.computes(self.weights) else widened)

    def _with_states(self, attention: Cost, features: Features) -> Cost:
        """Return the time of attention and of layers' own states, which are computed, and read and written."""
        tokens, passes = features.tokens, 1
        if features.has_prompts:
            decodes = features.rows - prompt_chunks(features)
            tokens, passes = tokens + (STATE_CHUNK - 1) * decodes, STATE_PASSES
        computed = tokens * self._matrices.state_flops / (self._bf16 * self._shares.recurrent_compute)
        moved = passes * features.rows * self._state_bytes / (self._bandwidth * self._shares.recurrent_memory)
        states = computed + moved
        bound = attention.bound if attention.seconds > states else "compute" if computed > moved else "bandwidth"
        return Cost(attention.kind, attention.seconds + states, bound)

    def _logits(self, features: Features) -> Cost:
        if not features.samples:
            return Cost("logits head", 0.0, "bandwidth")
        rate = self._bf16 * self._shares.linear_compute * self._profile.token_share(features.samples)
        bandwidth = self._bandwidth * self._shares.linear_memory / self._profile.reading_factor(features.samples)
        read = self._head * ITEM_BYTES["bf16"] / bandwidth
        # A pipeline's last stage, for which the others wait, has it for each batch; a lone row is in one batch.
        batches = self.parallelism.pipeline if features.samples > 1 else 1
        return slower("logits head", batches * 2 * features.samples * self._head / rate, batches * read)

    def _exchange(self, features: Features, stage_tokens: float) -> Cost:
        """Return the time of collectives: two all-reduces a layer, of which data-parallel attention has one, and an
        exchange of tokens among the GPUs that share the experts; and what a pipeline's stages send on."""
        one, of_token = self.parallelism, self.spec.hidden_size * ITEM_BYTES["bf16"]
        each = all_reduce_seconds(self.gpu, one.tensor, features.tokens * of_token)
        reduces = 2 * self._layers
        if one.data_attention > 1:
            reduces -= sum(experts.layers for experts in self._matrices.experts)
        seconds = self._expert_exchange(stage_tokens) + reduces * each * self._collectives
        if one.pipeline > 1:
            seconds += one.pipeline * send_seconds(self.gpu, one, features.tokens * of_token)
        return Cost("all-reduce", seconds, "link")

    def _expert_exchange(self, stage_tokens: float) -> float:
        """Return the seconds that tokens of all layers take to the experts that data-parallel groups share."""
        if self.parallelism.data_attention == 1:
            return 0.0
        return sum([one.layers * self._between_experts(stage_tokens, one) for one in self._matrices.experts])

    def _between_experts(self, stage_tokens: float, experts: ExpertShard) -> float:
        """Return the seconds that one layer's tokens take to its experts and back: an all-gather and a reduce-scatter
        (together an all-reduce), or each token to its own experts, whichever is faster."""
        one, hidden = self.parallelism, self.spec.hidden_size
        gathered = all_reduce_seconds(self.gpu, one.stage_gpus, stage_tokens * hidden * ITEM_BYTES["bf16"])
        gathered *= self._shares.all_reduce
        if experts.divided == 1:
            return gathered
        tokens = stage_tokens / one.stage_gpus * experts.busiest(stage_tokens, self._engine.expert_skew)
        sent = expert_exchange_seconds(self.gpu, experts.divided, tokens, experts.mlp.top_k, hidden)
        return min(gathered, sent * self._shares.exchange)

    def _kernel_gaps(self) -> float:
        """Return the seconds between a step's kernels."""
        shares, with_experts = self._shares, sum(one.layers for one in self._matrices.experts)
        latent = sum(isinstance(layer.mixer, LatentAttention) for layer in self.spec.layers)
        each = shares.layer_launch + self._is_native * shares.fp8_launch
        more = shares.latent_launch * latent + shares.recurrent_launch * self._recurrent
        return (each * self._layers + self._expert_launch * with_experts + more) * self._engine.kernels

    def _launch(self, features: Features, kernels: float) -> float:
        """Return the seconds that a step takes beside its kernels: gaps between them, and what the host does meanwhile
        for longer than they take, or after them."""
        engine = self._engine
        decodes = bool(features.decode_context)
        launched = engine.launch_seconds(features.tokens, decodes, self._layers, self._recurrent)
        device = max(kernels + self._gaps, launched * self._has_graphs)
        host, batches = engine.step_seconds(features.rows), self.parallelism.pipeline
        whole = max(device + engine.step, batches * host) if engine.overlapped else device + host
        whole = max(whole, batches * engine.token * features.samples)
        copied = features.moved_blocks * self._block_bytes / (self.gpu.host_gb_per_s * 1e9)
        return whole - kernels + copied


def _part(features: Features, parts: int) -> Features:
    """Return what one of so many equal parts of a step computes."""
    return busiest_batch(features, Parallelism(pipeline=parts), features.tokens)


def _overlapped(whole: tuple[Cost, ...], half: tuple[Cost, ...], exchange: float, left: float) -> tuple[Cost, ...]:
    """Return the costs of a batch in two halves, one of which computes while the other is on its way to its experts
    and back; those of the whole batch where that is faster.

    Args:
        exchange: Seconds of that way, of one half; other collectives, which come last with it, wait for each half's own
            numbers.
        left: Share of the GPU's units that compute meanwhile.
    """
    compute = sum(cost.seconds for cost in half[:-1]) / left + half[-1].seconds - exchange
    if 2 * max(compute, exchange) >= sum(cost.seconds for cost in whole):
        return whole
    exposed = structs.replace(half[-1], seconds=2 * (half[-1].seconds - min(exchange, compute)))
    return (*(structs.replace(cost, seconds=2 * cost.seconds / left) for cost in half[:-1]), exposed)
