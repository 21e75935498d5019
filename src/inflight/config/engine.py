"""Settings of the engine with their defaults and limits, and how they are resolved, each with a reason.

`build` asks the machine and the model, and calls `resolve_…` with the answers.
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import dataclass
from functools import partial
from typing import Any, Literal

from inflight.config.setting import (
    Bound,
    Resolved,
    SettingsError,
    check_settings,
    option,
    read_json_object,
    read_template,
    setting,
    whole_number,
)
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
_GIB = Bound(0, UNBOUNDED, f"a number above 0, up to {UNBOUNDED:,}", above=True, unit="GiB")
_COUNT = whole_number(1, UNBOUNDED)


@dataclass(frozen=True, slots=True, kw_only=True)
class EngineSettings:
    """Settings of the engine; None means "choose for me". Names as in vLLM where they mean the same."""

    model: str | None = setting(
        None,
        "Model folder, .gguf file, hub id (owner/name, owner/name:Q4_K_M) or a name that `inflight pull` lists, such "
        "as smollm2; else the built-in one.",
        "Engine",
        metavar="M",
    )
    revision: str | None = setting(None, "Branch, tag or commit of a hub id.")
    download_dir: str | None = setting(
        None, "Folder for models of the hub; else its own cache (HF_HOME).", metavar="DIR", path="folder"
    )
    tokenizer: str | None = setting(
        None, "Folder, .gguf file or hub id of another tokenizer, whose chat template is used too.", metavar="M"
    )
    chat_template: str | None = setting(
        None,
        "Jinja template of conversations instead of the model's: a file, or the template itself.",
        metavar="FILE",
        text=partial(read_template, "--chat-template"),
    )
    chat_template_kwargs: Mapping[str, Any] | None = setting(
        None,
        'Variables of the chat template unless a request sets them, such as {"enable_thinking": false}.',
        metavar="JSON",
        text=partial(read_json_object, "--chat-template-kwargs"),
    )
    family: str | None = setting(None, "Family of a model of your own: package.module:NAME.", metavar="F")
    backend: BackendChoice = setting(
        "auto", "auto: our kernels; transformers: its modules, for families that inflight does not have; slow."
    )
    device: str = setting(
        "auto",
        "cpu, cuda or cuda:N; auto: a GPU if there is one (pip install 'inflight-llm[gpu]').",
        is_early=True,  # presets ask for it
    )
    enforce_eager: bool = setting(False, "On a GPU, run without CUDA graphs.")
    batch_invariant: bool = setting(
        False, "On a GPU, make answers bit-identical in any batch, as they always are on a CPU."
    )
    attention_backend: AttentionChoice = setting(
        "auto", "No effect: our kernels compute attention. flash-attn and flashinfer are still read."
    )
    tensor_parallel_size: int = setting(
        1, "GPUs of one machine that share the model, a process for each; the first is --device.", bound=_COUNT
    )
    dtype: DTypeChoice = setting("auto", "auto, bfloat16 or float32.")
    quantization: QuantizationChoice = setting(
        "none",
        "none; int8 or int4: weights of the layers; int8-all or int4-all: also the output projection and tied "
        "embeddings; fp8: weights of the layers, on GPUs.",
    )
    quantization_group_size: int = setting(32, "Weights that share a scale in int4: 32, 64 or 128.")
    kv_cache_dtype: KVCacheChoice = setting("auto", "auto: the dtype of activations; int8; fp8, on GPUs.")
    pooling: PoolingChoice = setting(
        "auto", "Tokens that an embedding is made of: cls, mean or last; auto: as in the model's files."
    )
    score_tokens: tuple[str, str] | None = setting(
        None,
        "Two answers of a generative reranker: a pair's score is the probability of the first against the second; yes "
        "no for Qwen3-Reranker.",
    )
    score_template: str | None = setting(
        None,
        "File with the Jinja template of prompts for --score-tokens; its messages have the roles query and document.",
    )
    lora: tuple[str, ...] = setting(
        (),
        "A LoRA adapter, a folder saved by PEFT or a hub id; requests name it as their model. Several times.",
        metavar="NAME=PATH",
    )
    max_loras: int | None = setting(
        None, "Adapters in memory at a time; requests for others wait. 8 with --lora.", bound=whole_number(1, MAX_LORAS)
    )
    max_lora_rank: int | None = setting(
        None,
        f"Rank that memory is reserved for, up to {MAX_RANK}; 16, or the largest of --lora, unless set.",
        bound=whole_number(1, MAX_RANK),
    )
    load_format: LoadFormat = setting(
        "auto",
        "auto: as in the files; dequantize: quantized weights as bfloat16, slower, more exact; dummy: random weights.",
    )
    max_num_seqs: int | None = setting(None, "Maximum sequences running at once.", bound=_COUNT)
    max_num_batched_tokens: int | None = setting(None, "Maximum tokens computed in one step.", bound=_COUNT)
    max_model_len: int | None = setting(None, "Maximum tokens of prompt and answer together.", bound=_COUNT)
    block_size: int = setting(16, "Tokens per KV block.")
    gpu_memory_utilization: float | None = setting(
        None,
        "Fraction of a GPU's memory for this engine; 0.9 unless this or --kv-memory is given.",
        bound=Bound(0, 1, "a share above 0, up to 1", above=True),
    )
    kv_memory: float | None = setting(None, "GiB for keys and values.", bound=_GIB)
    num_blocks: int | None = setting(None, "KV blocks, instead of --kv-memory.", bound=_COUNT)
    state_memory: float | None = setting(
        None, "GiB for checkpoints of recurrent state, for models that have one.", bound=_GIB
    )
    kv_eviction: EvictionChoice = setting(
        "lru", "Eviction from the prefix cache: lru, or sessions: blocks of the session least likely to continue first."
    )
    kv_cache_host: float | None = setting(
        None, "GiB of host memory for keys and values that the prefix cache evicts.", bound=_GIB, metavar="GiB"
    )
    kv_cache_dir: str | None = setting(
        None,
        "Also store cached blocks in this folder, for later starts and other engines that share it.",
        metavar="DIR",
        path="folder",
    )
    kv_cache_disk: float | None = setting(
        None, "Maximum GiB of blocks in --kv-cache-dir; 10 unless set.", bound=_GIB, metavar="GiB"
    )
    enable_prefix_caching: bool = setting(
        True, "Compute every prompt in full; share no prefixes.", flags=("--no-prefix-caching",)
    )
    watermark: float = setting(
        0.01,
        "Fraction of KV blocks kept free when admitting new requests.",
        bound=Bound(0, 1, "a share from 0 to below 1", below=True),
    )
    threads: int | None = setting(None, "Kernel threads; one for each core unless set.", bound=_COUNT)
    pin_threads: bool = setting(False, "Pin each kernel thread but the first to its own core.")
    cpu_list: str | None = setting(
        None, "Pin kernel threads to these CPUs, such as 0-7,16-23, one for each thread.", metavar="CPUS"
    )
    seed: int = setting(
        0, "Default sampling seed.", bound=Bound(0, 2**64 - 1, "a whole number from 0 to 2^64 - 1", whole=True)
    )

    def __post_init__(self) -> None:
        check_settings(self)
        if self.model == "":
            raise SettingsError("--model is empty; give a folder or a hub id, or leave it out for the built-in model.")
        if self.max_model_len == 1:
            raise SettingsError("--max-model-len is 1, which leaves no room for an answer; give at least 2.")
        if self.block_size < 16 or self.block_size % 16:
            raise SettingsError(f"--block-size is {self.block_size}; give a multiple of 16 tokens.")
        if self.kv_memory is not None and self.num_blocks is not None:
            raise SettingsError("--kv-memory and --num-blocks both set the size of the KV cache; give one of them.")
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
            raise SettingsError(
                "--kv-cache-disk limits --kv-cache-dir, which is not given; give it, or leave --kv-cache-disk out."
            )
        for given in ("kv_cache_host", "kv_cache_dir"):
            if getattr(self, given) is not None and not self.enable_prefix_caching:
                raise SettingsError(
                    f"{option(given)} stores blocks of the prefix cache, and --no-prefix-caching is given; leave one "
                    "of them out."
                )
        if self.kv_cache_dir is not None and self.tensor_parallel_size > 1:
            raise SettingsError(
                "--kv-cache-dir stores blocks of one device, and --tensor-parallel-size is "
                f"{self.tensor_parallel_size}; leave one of them out."
            )

    def _check_utilization(self) -> None:
        if self.gpu_memory_utilization is None:
            return
        if self.device == "cpu":
            raise SettingsError(
                "--gpu-memory-utilization is about a GPU's memory, and --device is cpu; leave one of them out."
            )
        if self.kv_memory is not None or self.num_blocks is not None:
            other = "--num-blocks" if self.kv_memory is None else "--kv-memory"
            raise SettingsError(
                f"--gpu-memory-utilization and {other} both set the size of the KV cache; give one of them."
            )

    @property
    def named_loras(self) -> list[tuple[str, str]]:
        """Return name and path of each adapter."""
        return [(one.partition("=")[0], one.partition("=")[2]) for one in self.lora]

    def _check_loras(self) -> None:
        for given in self.lora:
            name, _, path = given.partition("=")
            if not name or not path:
                raise SettingsError(f"--lora is {given!r}; give NAME=PATH, a folder saved by PEFT or a hub id.")
        names = [name for name, _ in self.named_loras]
        if twice := next((name for name in names if names.count(name) > 1), None):
            raise SettingsError(f"--lora names {twice!r} twice; give each adapter a name of its own.")
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
