"""Settings of the engine with their defaults and limits, and how they are resolved, each with a reason.

`build` asks the machine and the model, and calls `resolve_…` with the answers.
"""

from __future__ import annotations

import re
from dataclasses import dataclass
from typing import Literal, get_args

from inflight.config.setting import Resolved, SettingsError, one_of, option
from inflight.core.strategies.registry import STRATEGIES
from inflight.core.types.sampling import MAX_RANK
from inflight.counted import UNBOUNDED, counted
from inflight.cpus import BadCpuList, parse_cpu_list
from inflight.models.spec import WeightFormat
from inflight.models.weight_format import described

DTypeChoice = Literal["auto", "bfloat16", "float32"]
LoadFormat = Literal["auto", "dequantize", "dummy"]
QuantizationChoice = Literal["none", "int8", "int8-all", "int4", "int4-all", "fp8"]
GROUP_SIZES = (32, 64, 128)
MAX_LORAS = 1024
KVCacheChoice = Literal["auto", "int8", "fp8"]
BackendChoice = Literal["auto", "transformers"]
EvictionChoice = Literal["lru", "sessions"]
PoolingChoice = Literal["auto", "cls", "mean", "last"]
AttentionChoice = Literal["auto", "flash-attn", "flashinfer"]
_CHOICES = {
    "backend": BackendChoice,
    "attention_backend": AttentionChoice,
    "dtype": DTypeChoice,
    "load_format": LoadFormat,
    "quantization": QuantizationChoice,
    "kv_cache_dtype": KVCacheChoice,
    "kv_eviction": EvictionChoice,
    "pooling": PoolingChoice,
}


@dataclass(frozen=True, slots=True, kw_only=True)
class EngineSettings:
    """Settings of the engine; None means "choose for me". Names as in vLLM where they mean the same.

    model: a folder or a hub id in the format of Hugging Face; None is the built-in model. family: package.module:NAME
    of a family of models that is not ours.
    backend: "transformers" computes with that library's modules: any model that it knows, slowly.
    device: "cpu", "cuda" (the first GPU) or "cuda:N"; "auto" is a GPU if there is one. enforce_eager: on a GPU, no step
    is replayed as a graph. batch_invariant: on a GPU, an answer has the same bits whatever is computed beside it.
    attention_backend: on a GPU, attention by a library that is installed, instead of our kernels.
    tensor_parallel_size: GPUs that share the model, from `device` on, a process for each.
    load_format: "dequantize" stores a quantized checkpoint's matrices as plain numbers, so that activations are not
    rounded to 8 bits; "dummy" makes random weights; "auto" is as the files are, or as a model that has a name needs it.
    quantization: "int8" and "int4" for the layers' plain matrices, "int8-all" and "int4-all" for the output projection
    (and a tied table) too; "fp8", on GPUs, the layers' alone. quantization_group_size: inputs that share a scale in
    int4.
    kv_cache_dtype: "int8" and "fp8" of keys and values, else they have the type of activations.
    gpu_memory_utilization: on a GPU, share of all its memory that this engine may have: what weights and the largest
    step leave of it is for keys and values. kv_memory: GiB for these. num_blocks: the same, counted in blocks (it
    wins). state_memory: GiB for snapshots of recurrent state, of models that have any.
    kv_eviction: first is evicted, "lru": what was used longest ago; "sessions": blocks of the least valuable session.
    kv_cache_host: GiB of the host's memory for keys and values of evicted blocks. kv_cache_dir: a folder in which they
    are stored as well, over restarts and for others. kv_cache_disk: GiB that it may take.
    max_num_seqs: maximum running sequences. max_num_batched_tokens: maximum tokens computed in one step.
    threads: kernel threads, the calling one included. pin_threads: each of them but the calling one stays on one core.
    cpu_list: CPUs such as "0-7,16-23", one for each thread, which stays on it; the calling one stays on them all.
    watermark: share of the KV blocks that new requests leave free.
    pooling: of which tokens a text's vector is made; "auto": as the model's files say, if they do.
    score_tokens: two answers, by which a model that continues texts scores pairs: the probability of the first against
    the second. score_template: a file whose Jinja template makes a prompt of a pair, which it is given as messages of
    the roles query and document.
    lora: adapters that requests may name as their model, each NAME=PATH or NAME=HUB_ID. max_loras: adapters in memory
    at a time; others wait for a slot. max_lora_rank: that memory is set aside for.
    """

    model: str | None = None
    revision: str | None = None
    family: str | None = None
    backend: BackendChoice = "auto"
    device: str = "auto"
    enforce_eager: bool = False
    batch_invariant: bool = False
    attention_backend: AttentionChoice = "auto"
    tensor_parallel_size: int = 1
    dtype: DTypeChoice = "auto"
    load_format: LoadFormat = "auto"
    quantization: QuantizationChoice = "none"
    quantization_group_size: int = 32
    kv_cache_dtype: KVCacheChoice = "auto"
    max_num_seqs: int | None = None
    max_num_batched_tokens: int | None = None
    max_model_len: int | None = None
    block_size: int = 16
    gpu_memory_utilization: float | None = None
    kv_memory: float | None = None
    num_blocks: int | None = None
    state_memory: float | None = None
    kv_eviction: EvictionChoice = "lru"
    kv_cache_host: float | None = None
    kv_cache_dir: str | None = None
    kv_cache_disk: float | None = None
    enable_prefix_caching: bool = True
    watermark: float = 0.01
    threads: int | None = None
    pin_threads: bool = False
    cpu_list: str | None = None
    seed: int = 0
    pooling: PoolingChoice = "auto"
    score_tokens: tuple[str, str] | None = None
    score_template: str | None = None
    lora: tuple[str, ...] = ()
    max_loras: int | None = None
    max_lora_rank: int | None = None

    def __post_init__(self) -> None:
        for name, choice in _CHOICES.items():
            one_of(name, getattr(self, name), get_args(choice))
        counts = ("max_num_seqs", "max_num_batched_tokens", "max_model_len", "num_blocks", "threads")
        for name in (*counts, "tensor_parallel_size"):
            value = getattr(self, name)
            if value is not None and not (isinstance(value, int) and 1 <= value <= UNBOUNDED):
                raise SettingsError(f"{option(name)} is {value!r}; give a whole number from 1 to {UNBOUNDED:,}.")
        if self.model == "":
            raise SettingsError("--model is empty; give a folder or a hub id, or leave it out for the built-in model.")
        if not 0 <= self.seed < 2**64:
            raise SettingsError(f"--seed is {self.seed}; give a whole number from 0 to 2^64 - 1.")
        if self.max_model_len == 1:
            raise SettingsError("--max-model-len is 1, which leaves no room for an answer; give at least 2.")
        if self.block_size < 16 or self.block_size % 16:
            raise SettingsError(f"--block-size is {self.block_size}; give a multiple of 16 tokens.")
        for name in ("kv_memory", "state_memory", "kv_cache_host", "kv_cache_disk"):
            given = getattr(self, name)
            if given is not None and not isinstance(given, int | float):
                raise SettingsError(f"{option(name)} is {given!r}; give a number of GiB.")
            if given is not None and not 0 < given <= UNBOUNDED:
                raise SettingsError(f"{option(name)} is {given:g} GiB; give a number above 0, up to {UNBOUNDED:,}.")
        if not 0 <= self.watermark < 1:
            raise SettingsError(f"--watermark is {self.watermark}; give a share from 0 to below 1.")
        if self.kv_memory is not None and self.num_blocks is not None:
            raise SettingsError("--kv-memory and --num-blocks both say how large the KV cache is; give one of them.")
        self._check_utilization()
        self._check_tiers()
        self._check_score_tokens()
        self._check_loras()
        self._check_group_size()
        if not isinstance(self.device, str) or not re.fullmatch(r"auto|cpu|cuda(:\d+)?", self.device):
            raise SettingsError(
                f"--device is {self.device!r}; known are auto, cpu, cuda and cuda:N, N the number of a GPU."
            )
        if self.device == "cpu" and self.enforce_eager:
            raise SettingsError("--enforce-eager is about graphs of a GPU, and --device is cpu; leave one of them out.")
        self._check_cpus()
        if self.backend == "transformers":
            self._check_transformers()

    def _check_cpus(self) -> None:
        for name in ("pin_threads", "cpu_list"):
            if getattr(self, name) and self.device.startswith("cuda"):
                raise SettingsError(
                    f"{option(name)} is about threads of the CPU's kernels, and --device is {self.device}; leave one "
                    "of them out."
                )
        if self.cpu_list is None:
            return
        if self.tensor_parallel_size > 1:
            raise SettingsError(
                "--cpu-list is about threads of the CPU's kernels, and --tensor-parallel-size is "
                f"{self.tensor_parallel_size}, which is for GPUs; leave one of them out."
            )
        try:
            parse_cpu_list(self.cpu_list)
        except (BadCpuList, AttributeError) as error:
            why = str(error) if isinstance(error, BadCpuList) else "it is no text"
            raise SettingsError(f"--cpu-list is {self.cpu_list!r}: {why}; give CPUs such as 0-7,16-23.") from None

    def _check_tiers(self) -> None:
        if self.kv_cache_dir == "":
            raise SettingsError("--kv-cache-dir is empty; give a folder, or leave it out.")
        if self.kv_cache_disk is not None and self.kv_cache_dir is None:
            raise SettingsError("--kv-cache-disk says how much --kv-cache-dir may hold, and that is not given.")
        for given in ("kv_cache_host", "kv_cache_dir"):
            if getattr(self, given) is not None and not self.enable_prefix_caching:
                raise SettingsError(
                    f"{option(given)} keeps what the prefix cache holds, and --no-prefix-caching is given; leave one "
                    "of them out."
                )
        if self.kv_cache_dir is not None and self.tensor_parallel_size > 1:
            raise SettingsError(
                "--kv-cache-dir keeps blocks of one device, and --tensor-parallel-size is "
                f"{self.tensor_parallel_size}; leave one of them out."
            )

    def _check_utilization(self) -> None:
        share = self.gpu_memory_utilization
        if share is None:
            return
        if not isinstance(share, int | float) or not 0 < share <= 1:
            raise SettingsError(f"--gpu-memory-utilization is {share!r}; give a share above 0, up to 1.")
        if self.device == "cpu":
            raise SettingsError(
                "--gpu-memory-utilization is about a GPU's memory, and --device is cpu; leave one of them out."
            )
        if self.kv_memory is not None or self.num_blocks is not None:
            other = "--num-blocks" if self.kv_memory is None else "--kv-memory"
            raise SettingsError(
                f"--gpu-memory-utilization and {other} both say how large the KV cache is; give one of them."
            )

    @property
    def named_loras(self) -> list[tuple[str, str]]:
        """Name and path of each."""
        return [(one.partition("=")[0], one.partition("=")[2]) for one in self.lora]

    def _check_loras(self) -> None:
        for given in self.lora:
            name, _, path = given.partition("=")
            if not name or not path:
                raise SettingsError(f"--lora is {given!r}; give NAME=PATH, the folder that PEFT has saved.")
        names = [name for name, _ in self.named_loras]
        if twice := next((name for name in names if names.count(name) > 1), None):
            raise SettingsError(f"--lora names {twice!r} twice; give each adapter a name of its own.")
        for field, largest in (("max_loras", MAX_LORAS), ("max_lora_rank", MAX_RANK)):
            value = getattr(self, field)
            if value is not None and not (isinstance(value, int) and 1 <= value <= largest):
                raise SettingsError(f"{option(field)} is {value!r}; give a whole number from 1 to {largest:,}.")
        if self.max_lora_rank is not None and not self.lora and self.max_loras is None:
            raise SettingsError("--max-lora-rank has no effect without --lora or --max-loras.")

    def _check_score_tokens(self) -> None:
        tokens = self.score_tokens
        if tokens is None:
            return
        if (
            isinstance(tokens, str)
            or len(tokens) != 2
            or not all(isinstance(one, str) and one for one in tokens)
            or tokens[0] == tokens[1]
        ):
            raise SettingsError(f"--score-tokens are {tokens!r}; give two different answers, such as yes and no.")
        if self.pooling != "auto":
            raise SettingsError(
                f"--score-tokens make a model a classifier, whose pooling is its own, and --pooling is {self.pooling}; "
                "leave one of them out."
            )

    def _check_transformers(self) -> None:
        ours = {
            "family": None,
            "quantization": "none",
            "kv_cache_dtype": "auto",
            "pin_threads": False,
            "cpu_list": None,
            "enforce_eager": False,
            "gpu_memory_utilization": None,
            "kv_cache_dir": None,
            "attention_backend": "auto",
            "batch_invariant": False,
            "tensor_parallel_size": 1,
            "pooling": "auto",
            "score_tokens": None,
            "score_template": None,
        }
        for name, unset in ours.items():
            if getattr(self, name) != unset:
                raise SettingsError(
                    f"{option(name)} is for models that are computed by our own kernels, not with --backend "
                    "transformers; leave one of them out."
                )
        if self.load_format == "dequantize":
            raise SettingsError(
                "--load-format dequantize is for our own kernels, not --backend transformers; leave it out."
            )
        if self.device not in ("auto", "cpu"):
            raise SettingsError(
                f"--device is {self.device}, but --backend transformers computes on the CPU; leave one of them out."
            )
        if self.model is None:
            raise SettingsError("--backend transformers needs a --model; the built-in one is computed by our kernels.")

    def _check_group_size(self) -> None:
        size = self.quantization_group_size
        if size not in GROUP_SIZES:
            raise SettingsError(f"--quantization-group-size is {size!r}; known are 32, 64 and 128.")
        if size != 32 and not self.quantization.startswith("int4"):
            raise SettingsError(
                f"--quantization-group-size is {size}, but only int4 has groups, and --quantization is "
                f"{self.quantization}; leave it out, or set --quantization int4."
            )


DEFAULT_ROWS, GPU_ROWS = 32, 256
WHOLE_SHARE = 512  # the same, where prompts come whole, or the strategy chooses less by itself
# Rows sampled at a time: bounds the memory that logits over a large vocabulary take. On a GPU those of all rows of a
# step are part of its graph, up to so many.
LOGIT_ROWS, GPU_LOGIT_ROWS = 32, 256
GPU_GRAPH_TOKENS = 512  # of steps with prompts or drafts that are graphs: the host is slower than fewer are computed
PROMPT_SHARE, GPU_PROMPT_SHARE = 128, 2048  # tokens of prompts beside one token of every running sequence


def default_depth(device: str) -> int:
    """Return the steps in flight on such a device: a GPU computes beside the host, which plans ahead meanwhile."""
    return 2 if device.startswith("cuda") else 1


def describe_engine(device: str, depth: int) -> str:
    """Describe an engine for messages."""
    return f"an engine on {device} with {counted(depth, 'step')} in flight"


def resolve_rows(settings: EngineSettings, on_gpu: bool = False) -> Resolved:
    if settings.max_num_seqs is not None:
        return Resolved(settings.max_num_seqs, "as set")
    if on_gpu:
        return Resolved(GPU_ROWS, "so many that reading weights is not what a step takes")
    return Resolved(DEFAULT_ROWS, "enough to reuse each weight read from memory until the cores are the limit")


def resolve_budget(settings: EngineSettings, rows: int, strategy: str = "chunked", on_gpu: bool = False) -> Resolved:
    """Resolve the maximum tokens of a step. Static and dynamic batching are limited by count instead."""
    given = settings.max_num_batched_tokens
    bounded_by = STRATEGIES[strategy].bounded_by if strategy in STRATEGIES else "tokens"
    if given is None:
        whole = GPU_PROMPT_SHARE if on_gpu else WHOLE_SHARE
        if bounded_by != "tokens":
            return Resolved(rows + whole, "tokens of one forward pass; whole prompts take as many as they need")
        if strategy == "adaptive":
            return Resolved(rows + whole, "the most that adaptive batching may choose")
        if on_gpu:
            why = f"one token for each of {rows} sequences and {GPU_PROMPT_SHARE:,} of prompts, which keep a GPU busy"
            return Resolved(rows + GPU_PROMPT_SHARE, why)
        return Resolved(
            rows + PROMPT_SHARE,
            f"one token for each of {rows} sequences and {PROMPT_SHARE} of prompts: on a CPU so many keep the cores "
            "busy, and more would only make running streams wait",
        )
    if bounded_by == "sequences":
        raise SettingsError(
            f"--max-num-batched-tokens is {given}, but static and dynamic batches are bounded by --batch-size alone; "
            "leave it out."
        )
    if given < rows:
        raise SettingsError(
            f"--max-num-batched-tokens is {given}, but {rows} sequences may run at once and each needs a token per "
            f"step; raise it to at least {rows} or lower --max-num-seqs."
        )
    return Resolved(given, "as set")


def resolve_quantization(settings: EngineSettings, dtype: str, format: WeightFormat | None = None) -> Resolved:
    """Resolve the quantization. format: of a checkpoint that is quantized already."""
    if format is not None and settings.quantization == "none":
        scales = "; activations get scales as they come, not the checkpoint's" if format.static_activations else ""
        return Resolved("none", f"the checkpoint's own, {described(format)}{scales}")
    groups = f"a scale for each {settings.quantization_group_size} inputs"
    reasons = {
        "none": f"all weights in {dtype}; int8 would halve what the layers' matrices take and a step reads of them"
        if dtype == "bfloat16"
        else f"all weights in {dtype}",
        "int8": f"as set: the layers' matrices and what meets them in int8, the output projection in {dtype}",
        "int8-all": "as set: all matrices and what meets them in int8, the output projection too",
        "fp8": f"as set: the layers' matrices and what meets them in fp8, the output projection in {dtype}",
        "int4": f"as set: the layers' matrices in int4, {groups}, what meets them in int8, the output projection in "
        f"{dtype}",
        "int4-all": f"as set: all matrices in int4, {groups}, the output projection too, what meets them in int8",
    }
    return Resolved(settings.quantization, reasons[settings.quantization])


def resolve_kv_cache_dtype(settings: EngineSettings, dtype: str) -> Resolved:
    if settings.kv_cache_dtype == "fp8":
        return Resolved("fp8", "as set: with a scale for each token and head")
    if settings.kv_cache_dtype == "int8":
        return Resolved("int8", "as set: with a scale for each token and head, read by whole-number products")
    more = "nearly twice" if dtype == "bfloat16" else "nearly four times"
    return Resolved(dtype, f"as activations are held; int8 would make room for {more} as many tokens")


def resolve_max_model_len(settings: EngineSettings, default: int) -> Resolved:
    """Resolve the maximum length of a sequence. default: the model's own."""
    if settings.max_model_len is None:
        return Resolved(default, "the model's own maximum")
    return Resolved(settings.max_model_len, "as set")
