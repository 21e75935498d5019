"""Options of vLLM, llama-server and SGLang: the one of ours that each is read as, or why it has none.

The option parser of the verbs that run an engine and the tables in docs/ read the rows here. A row has the servers that
have the option (v, l, s), its names with the form of its value, and what becomes of it.
"""

from __future__ import annotations

import json
from collections.abc import Callable
from typing import NamedTuple


class NoEffect(ValueError):
    """A value that needs no option here; the sentence says why."""


class Refused(ValueError):
    """A value that no option here has the meaning of; the sentence says why, and what to use."""


Convert = Callable[[str], list[str]]  # a value → words behind our option. Raises NoEffect, Refused


class ReadAs(NamedTuple):
    """An option that means one of ours.

    Attributes:
        servers: Letters of the servers that have it.
        names: Its names; behind them N where a value follows, N... for several, [N] for one that may be left out.
        ours: Our option, with its value where theirs has none; empty: the value is an argument.
        convert: Makes our value of theirs; None: they are alike.
        note: Shown in the tables behind our option.
    """

    servers: str
    names: str
    ours: str
    convert: Convert | None = None
    note: str = ""


def _words(**known: str) -> Convert:
    """Return a converter that replaces some values and keeps others; an empty replacement means the default."""

    def convert(value: str) -> list[str]:
        found = known.get(value, value)
        if not found:
            raise NoEffect(f"{value} is how it is here")
        return [found]

    return convert


def _unless(reason: str, *values: str) -> Convert:
    """Return a converter for values of which some have no effect here."""

    def convert(value: str) -> list[str]:
        if value in values:
            raise NoEffect(reason)
        return [value]

    return convert


def _scaled(divisor: float) -> Convert:
    def convert(value: str) -> list[str]:
        number = float(length_of(value))
        if number < 0:
            raise Refused("give a size")
        return [f"{number / divisor:.6g}"]

    return convert


def length_of(value: str) -> str:
    """Return a number in figures: vLLM writes 32k for 32,000 and 32K for 32,768. Other words are kept."""
    number, unit = value[:-1], value[-1:]
    factor = {"k": 10**3, "m": 10**6, "g": 10**9, "K": 2**10, "M": 2**20, "G": 2**30}.get(unit)
    try:
        return value if factor is None else str(int(float(number) * factor))
    except ValueError:
        return value


def _parts(value: str) -> list[str]:
    """Return comma-separated values, or those of a JSON list."""
    return [str(one) for one in json.loads(value)] if value[:1] == "[" else value.split(",")


def _layers(value: str) -> list[str]:
    if value == "0":
        return ["cpu"]
    raise NoEffect("all layers are on one device, a GPU if there is one")


def _thinking(value: str) -> list[str]:
    if value in ("0", "off"):
        return ['{"enable_thinking": false}']
    if value == "on":
        return ['{"enable_thinking": true}']
    if value in ("-1", "auto"):
        raise NoEffect("the model decides")
    raise Refused("a request limits reasoning by thinking_token_budget")


def _kv_type(value: str) -> list[str]:
    if value in ("f16", "bf16", "f32"):
        raise NoEffect("keys and values have the type of activations")
    if value == "q8_0":
        return ["int8"]
    raise Refused("--kv-cache-dtype int8 is the smallest")


def _speculation(value: str) -> list[str]:
    """Return our source of drafts for vLLM's JSON."""
    try:
        given = json.loads(value)
        method, model, tokens = given.get("method", "draft_model"), given.get("model"), given["num_speculative_tokens"]
    except (ValueError, AttributeError, KeyError):
        raise Refused("write --speculation suffix, heads or draft:MODEL") from None
    found = "suffix" if method in ("ngram", "suffix") else f"draft:{model}"
    if "mtp" in method or method.startswith("eagle"):
        found = "heads" if model is None else f"heads:{model}"
    return [found, "--speculation-max-tokens", str(tokens)]


def _draft_kind(value: str) -> list[str]:
    if value == "none":
        return ["off"]
    if value.lower().startswith("ngram"):
        return ["suffix"]
    if value in ("draft-mtp", "NEXTN"):
        return ["heads"]
    raise Refused("write --speculation draft:MODEL or heads:FOLDER")


def _lora_module(value: str) -> list[str]:
    """Return NAME=PATH of vLLM's two forms."""
    if not value.startswith("{"):
        return [value]
    try:
        given = json.loads(value)
        return [f"{given['name']}={given['path']}"]
    except (ValueError, KeyError):
        raise Refused("write --lora NAME=PATH") from None


def _only_one(instead: str) -> Convert:
    def convert(value: str) -> list[str]:
        if value == "1":
            raise NoEffect("there is one")
        raise Refused(instead)

    return convert


def _pooling(value: str) -> list[str]:
    given = json.loads(value) if value.startswith("{") else {}
    found = str(given.get("pooling_type") or given.get("seq_pooling_type") or "").lower()
    if not found:
        raise Refused("write --pooling cls, mean or last")
    return [found]


def _log_number(value: str) -> list[str]:
    levels = ("error", "error", "warning", "info", "debug", "debug")
    return [levels[min(int(value), 5)] if value.isdigit() else value]


_LEVELS = _words(critical="error", trace="debug", warn="warning")
_QUIETER = "its requests are lines of the level info"
_PARALLEL = (
    "there is no pipeline and no expert parallelism; leave it out. --tensor-parallel-size N shares every layer and "
    "every expert among N GPUs of a machine"
)
_SAMPLER = "that way of sampling is not there; leave it out"
_HERE = "weights and keys and values are in the memory of one device; take a smaller quantization (--quantization)"
_ROPE = "the model's files say it; change rope_scaling in its config.json"
_ENGINES = "write --replicas N for N engines behind one address (docs/scaling.md)"

READ_AS = (
    ReadAs("vs", "-tp --tp --tp-size N", "--tensor-parallel-size"),
    ReadAs("vs", "-q N", "--quantization"),
    ReadAs("v", "--device-memory-utilization N", "--gpu-memory-utilization"),
    ReadAs("s", "--mem-fraction-static N", "--gpu-memory-utilization"),
    ReadAs("v", "--num-gpu-blocks-override N", "--num-blocks"),
    ReadAs("v", "--kv-cache-memory-bytes N", "--kv-memory", _scaled(2**30), "in GiB"),
    ReadAs("vs", "--kv-offloading-size --hicache-size N", "--kv-cache-host"),
    ReadAs("l", "-cram --cache-ram N", "--kv-cache-host", _scaled(2**10), "in GiB"),
    ReadAs("vs", "--default-chat-template-kwargs JSON", "--chat-template-kwargs"),
    ReadAs("v", "--scheduling-policy NAME", "--policy"),
    ReadAs("s", "--schedule-policy NAME", "--policy", _words(lpm="prefix")),
    ReadAs("v", "--max-num-queued-reqs N", "--max-queued-requests"),
    ReadAs("v", "--max-num-queued-tokens N", "--max-queued-tokens"),
    ReadAs("vs", "--lora-modules --lora-paths NAME=PATH...", "--lora", _lora_module),
    ReadAs("s", "--max-loras-per-batch N", "--max-loras"),
    ReadAs("vl", "--allowed-origins --cors-origins LIST", "--cors-origin", _parts),
    ReadAs("v", "--api-server-count -asc N", "--api-processes"),
    ReadAs("v", "--uvicorn-log-level NAME", "--log-level", _LEVELS),
    ReadAs("v", "--disable-uvicorn-access-log", "--log-level warning", note=_QUIETER),
    ReadAs("v", "--model-impl NAME", "--backend", _words(vllm="auto")),
    ReadAs("v", "--no-enable-prefix-caching", "--no-prefix-caching"),
    ReadAs("ls", "--no-cache-prompt --disable-radix-cache", "--no-prefix-caching"),
    ReadAs("v", "--no-enable-chunked-prefill", "--strategy continuous"),
    ReadAs("v", "--speculative-config -sc JSON", "--speculation", _speculation),
    ReadAs("ls", "--spec-type --speculative-algorithm NAME", "--speculation", _draft_kind),
    ReadAs("l", "-md --model-draft --spec-draft-model M", "--speculation", lambda name: [f"draft:{name}"], "draft:M"),
    ReadAs("l", "--draft --draft-n --draft-max --spec-draft-n-max N", "--speculation-max-tokens"),
    ReadAs("v", "--shutdown-timeout N", "--drain-timeout"),
    ReadAs("v", "--pooler-config --override-pooler-config JSON", "--pooling", _pooling),
    ReadAs("vl", "--sse-keep-alive-interval --sse-ping-interval N", "--keep-alive"),
    ReadAs("v", "--preemption-mode NAME", "--preemption"),
    ReadAs("vs", "-dp --data-parallel-size --dp --dp-size N", "", _only_one(_ENGINES)),
    ReadAs("vs", "-pp --pipeline-parallel-size --pp-size N", "", _only_one(_PARALLEL)),
    ReadAs("vs", "--nnodes N", "", _only_one("write --ray-address for engines on several machines (docs/scaling.md)")),
    ReadAs("s", "--ep --ep-size --expert-parallel-size N", "", _only_one(_PARALLEL)),
    ReadAs("ls", "-m --model-path M", "--model"),
    ReadAs("l", "-hf -hfr --hf-repo M", "--model"),
    ReadAs("s", "--tokenizer-path M", "--tokenizer"),
    ReadAs("l", "-c --ctx-size N", "--max-model-len", _unless("it is the model's own", "0"), "of each request"),
    ReadAs("s", "--context-length N", "--max-model-len"),
    ReadAs("l", "-np --parallel N", "--max-num-seqs", _unless("it is chosen", "-1")),
    ReadAs("s", "--max-running-requests N", "--max-num-seqs"),
    ReadAs("l", "-b N", "--max-num-batched-tokens"),
    ReadAs("s", "--chunked-prefill-size N", "--max-num-batched-tokens"),
    ReadAs("l", "-t N", "--threads", _unless("it is chosen", "-1")),
    ReadAs("l", "-ngl --gpu-layers --n-gpu-layers N", "--device", _layers, "cpu for 0; else no effect"),
    ReadAs("l", "-mg --main-gpu N", "--device", lambda index: [f"cuda:{index}"], "cuda:N"),
    ReadAs("l", "-Cr --cpu-range CPUS", "--cpu-list"),
    ReadAs("l", "-a --alias NAMES", "--served-model-name", _parts),
    ReadAs("l", "-ctk -ctv --cache-type-k --cache-type-v NAME", "--kv-cache-dtype", _kv_type, "int8 for q8_0"),
    ReadAs("l", "--chat-template-file FILE", "--chat-template"),
    ReadAs("l", "-to --timeout N", "--request-timeout"),
    ReadAs("l", "--ssl-key-file FILE", "--ssl-keyfile"),
    ReadAs("l", "--ssl-cert-file FILE", "--ssl-certfile"),
    ReadAs("ls", "--api-prefix --fastapi-root-path PATH", "--root-path"),
    ReadAs("l", "--no-webui", "--no-ui"),
    ReadAs(
        "l", "--reasoning-format NAME", "--reasoning-parser", _words(auto="", deepseek="", **{"deepseek-legacy": ""})
    ),
    ReadAs("l", "--skip-chat-parsing", "--tool-parser none"),
    ReadAs("l", "-rea --reasoning --reasoning-budget N", "--chat-template-kwargs", _thinking, "enable_thinking"),
    ReadAs("l", "-v", "--log-level debug"),
    ReadAs("l", "-lv --verbosity --log-verbosity N", "--log-level", _log_number),
    ReadAs("l", "--log-disable", "--log-level error"),
    ReadAs("l", "--log-jsonl", "--log-format json"),
    ReadAs("ls", "-s --random-seed N", "--seed", _unless("it is chosen", "-1")),
    ReadAs("s", "--disable-cuda-graph", "--enforce-eager"),
    ReadAs("s", "--page-size N", "--block-size"),
    ReadAs("s", "--sampling-defaults NAME", "--generation-config", _words(openai="vllm", model="")),
    ReadAs("s", "--preferred-sampling-params JSON", "--override-generation-config"),
    ReadAs("s", "--file-storage-path DIR", "--data-dir"),
    ReadAs("l", "--temp N", "--temperature"),
    ReadAs("l", "--repeat-penalty N", "--repetition-penalty"),
    ReadAs("l", "-n --predict --n-predict N", "--max-tokens"),
    ReadAs("l", "-r --reverse-prompt TEXT", "--stop"),
    ReadAs("l", "-sys --system-prompt TEXT", "--system"),
    ReadAs("l", "-p --prompt TEXT", "", lambda text: [text], "the argument PROMPT"),
)

# Names and forms as above, and the reason.
NO_EFFECT: tuple[tuple[str, str, str], ...] = (
    ("o", "--keepalive N", "the model is in memory until this command ends"),
    ("vs", "--trust-remote-code", "no code of a model is ever run"),
    ("v", "--enable-prefix-caching", "it is on"),
    ("l", "--cache-prompt --cache-reuse N", "prefixes are cached by blocks"),
    ("v", "--enable-chunked-prefill", "it is on (--strategy chunked)"),
    ("v", "--async-scheduling --no-async-scheduling", "steps on a GPU are planned ahead"),
    ("s", "--disable-overlap-schedule", "steps on a GPU are planned ahead"),
    ("v", "--enable-auto-tool-choice", "calls are parsed wherever a request has tools"),
    ("vs", "--enable-lora", "--lora, --max-loras and --lora-dir allow adapters"),
    ("v", "--fully-sharded-loras", "adapters are shared as the model is"),
    ("v", "--max-cpu-loras --lora-dtype N", "adapters are read again when they are needed"),
    ("vs", "--disable-log-requests --enable-log-requests --log-requests", "prompts are never logged"),
    ("vs", "--max-log-len --log-requests-level N", "prompts are never logged"),
    ("vs", "--disable-log-stats --enable-metrics --aggregate-engine-logging", "metrics are at /metrics alone"),
    ("l", "--metrics", "metrics are at /metrics"),
    ("v", "--task --runner --convert NAME", "the model's files say what it does"),
    ("s", "--is-embedding", "the model's files say what it does"),
    ("l", "--embedding --embeddings --rerank --reranking", "the model's files say what it does"),
    ("vs", "--tokenizer-mode --config-format NAME", "files have one form"),
    ("v", "--limit-mm-per-prompt --mm-processor-kwargs --mm-encoder-tp-mode VALUE", "models read text alone"),
    ("v", "--mm-processor-cache-gb --mm-processor-cache-type --media-io-kwargs VALUE", "models read text alone"),
    ("v", "--language-model-only --skip-mm-profiling", "models read text alone"),
    ("l", "--no-mmproj --no-mmproj-auto", "models read text alone"),
    ("v", "--allowed-local-media-path --allowed-media-domains VALUE", "models read text alone"),
    ("v", "--distributed-executor-backend NAME", "the GPUs of a machine have a process each"),
    ("vs", "--disable-custom-all-reduce", "there is one way of reducing"),
    ("v", "-cc --compilation-config VALUE", "CUDA graphs are chosen by the model; --enforce-eager has none"),
    ("v", "-O -O0 -O1 -O2 -O3 --optimization-level [N]", "kernels are compiled in one way"),
    ("v", "--cudagraph-capture-sizes N...", "graphs are chosen by --max-num-seqs"),
    ("vs", "--max-cudagraph-capture-size --cuda-graph-max-bs N", "graphs are chosen by --max-num-seqs"),
    ("vs", "--enable-torch-compile --disable-cascade-attn", "our kernels compute"),
    ("vs", "--moe-backend --linear-backend --moe-runner-backend --sampling-backend NAME", "our kernels compute"),
    ("v", "--attention-config --kernel-config --performance-mode VALUE", "our kernels compute"),
    ("l", "-fa --flash-attn [on]", "our kernels compute attention"),
    ("v", "--structured-outputs-config --guided-decoding-backend VALUE", "grammars have one implementation"),
    ("s", "--grammar-backend NAME", "grammars have one implementation"),
    ("v", "--prefix-caching-hash-algo NAME", "blocks are named by one hash"),
    ("v", "--disable-hybrid-kv-cache-manager", "layers with windows have blocks of their own"),
    ("l", "--swa-full --kv-unified -kvu --no-kv-unified", "all requests share one memory of blocks"),
    ("v", "--max-parallel-loading-workers --safetensors-load-strategy VALUE", "weights are read in one way"),
    ("v", "--use-tqdm-on-load --no-use-tqdm-on-load", "the log says how far loading is"),
    ("l", "--mmap --no-mmap --mlock --check-tensors", "weights are read in one way"),
    ("l", "-lm --load-mode NAME", "weights are read in one way"),
    ("v", "--stream-interval N", "each token is sent at once"),
    ("v", "--enable-prompt-tokens-details", "cached tokens are in usage"),
    ("s", "--enable-cache-report", "cached tokens are in usage"),
    ("v", "--enable-request-id-headers", "each answer has X-Request-Id"),
    ("v", "--enable-tokenizer-info-endpoint", "/tokenizer_info is there"),
    ("v", "--disable-frontend-multiprocessing", "--api-processes says how many there are"),
    ("l", "--threads-http N", "--api-processes says how many there are"),
    ("v", "--chat-template-content-format NAME", "it is read from the template"),
    ("v", "--use-v2-block-manager --worker-use-ray --engine-use-ray", "it is of old versions"),
    ("v", "--num-scheduler-steps --num-lookahead-slots N", "it is of old versions"),
    ("v", "--max-num-partial-prefills --max-long-partial-prefills N", "the policy orders prompts"),
    ("v", "--long-prefill-token-threshold N", "the policy orders prompts"),
    ("l", "--jinja", "templates are Jinja"),
    ("l", "-cb --cont-batching", "it is on"),
    ("l", "-ub --ubatch-size N", "a step is one pass"),
    ("l", "-tb --threads-batch N", "--threads holds for prompts and answers"),
    ("l", "--numa --prio --poll --cpu-strict N", "set them by the system; --cpu-list pins threads"),
    ("ls", "--warmup --no-warmup --skip-server-warmup", "steps are tried at the start"),
    ("l", "--slots --no-slots --ui --webui", "the live page is at /"),
    ("l", "--context-shift --no-context-shift", "an answer ends at the context's end"),
    ("l", "-fit --fit [on]", "sizes are chosen by memory"),
    ("l", "--repack --no-repack -nr --no-perf --perf --spm-infill", "it is decided here"),
    ("l", "--log-colors --log-prefix --log-timestamps [on]", "--log-format decides"),
    ("l", "-ctxcp --ctx-checkpoints --swa-checkpoints N", "--state-memory decides"),
    ("l", "-sps --slot-prompt-similarity --draft-min --draft-n-min --draft-p-min N", "it is decided here"),
    (
        "l",
        "-ngld --gpu-layers-draft --n-gpu-layers-draft -devd --device-draft N",
        "drafts are made on the model's device",
    ),
    ("l", "--prefill-assistant --no-prefill-assistant", "requests say it (continue_final_message)"),
)

REFUSED: tuple[tuple[str, str, str], ...] = (
    (
        "o",
        "--think --hidethinking",
        "write /set think in a chat, or --chat-template-kwargs '{\"enable_thinking\": true}'",
    ),
    ("o", "--format N", "give a line of --input a response_format"),
    ("v", "-ep --enable-expert-parallel", _PARALLEL),
    ("v", "--headless --master-addr --data-parallel-address [N]", _ENGINES),
    ("vs", "--node-rank --dist-init-addr N", _ENGINES),
    ("vs", "--cpu-offload-gb N", _HERE),
    ("l", "-nkvo --no-kv-offload -ot --override-tensor -cmoe --cpu-moe -ncmoe --n-cpu-moe [N]", _HERE),
    ("l", "-sm --split-mode -ts --tensor-split -dev [N]", "--tensor-parallel-size N shares a model among GPUs"),
    ("v", "--hf-overrides JSON", "change the model's config.json"),
    ("v", "--rope-scaling --rope-theta VALUE", _ROPE),
    ("l", "--rope-scale --rope-freq-base --rope-freq-scale --yarn-orig-ctx N", _ROPE),
    ("l", "--override-kv VALUE", "change the file's metadata"),
    ("v", "--kv-transfer-config JSON", "write --role prefill, decode or both (docs/disaggregation.md)"),
    ("s", "--disaggregation-mode NAME", "write --role prefill or decode (docs/disaggregation.md)"),
    (
        "v",
        "--ssl-ca-certs --ssl-cert-reqs VALUE",
        "clients' certificates are checked by a proxy (docs/behind-a-proxy.md)",
    ),
    ("v", "--middleware VALUE", "put it into a proxy (docs/behind-a-proxy.md)"),
    ("v", "--disable-fastapi-docs", "/docs shows no data; close it in a proxy"),
    ("v", "--tool-parser-plugin --reasoning-parser-plugin FILE", "write --tool-parser package.module:Class"),
    ("v", "--return-tokens-as-token-ids --enable-force-include-usage", "requests say it, by the field of that name"),
    ("v", "--trust-request-chat-template", "templates of requests are not run; write --chat-template"),
    (
        "v",
        "--max-logprobs --logprobs-mode VALUE",
        "limits and form of log-probabilities are fixed (docs/serving-reference.md)",
    ),
    (
        "v",
        "--logits-processors --worker-cls --scheduler-cls VALUE",
        "write a policy or strategy (docs/write-a-policy.md)",
    ),
    ("v", "--enable-prompt-embeds --skip-tokenizer-init", "prompts are texts, messages or token ids"),
    ("v", "--log-config-file FILE", "write --log-format and --log-level"),
    ("v", "--enable-sleep-mode", "one model stays loaded; write --models FILE for several that are unloaded when idle"),
    ("v", "--tokenizer-revision NAME", "give the tokenizer's folder (--tokenizer)"),
    ("s", "--max-total-tokens N", "write --kv-memory or --num-blocks"),
    ("s", "--enable-hierarchical-cache", "write --kv-cache-host GiB or --kv-cache-dir DIR"),
    ("s", "--speculative-draft-model-path M", "write --speculation draft:M or heads:M"),
    ("vl", "-hft --hf-token TOKEN", "set the environment variable HF_TOKEN, which other users cannot see"),
    ("l", "-hff --hf-file FILE", "write --model owner/name:FILE"),
    ("l", "-mu --model-url -dr --docker-repo VALUE", "give a file, or a hub id"),
    ("l", "-mm --mmproj -mmu --mmproj-url --image-min-tokens VALUE", "models read text alone; leave it out"),
    ("l", "--offline", "set the environment variable HF_HUB_OFFLINE=1"),
    ("l", "--no-jinja", "templates are Jinja"),
    ("l", "-nocb --no-cont-batching", "write --strategy static"),
    ("l", "-C --cpu-mask VALUE", "write --cpu-list 0-7"),
    ("l", "--api-key-file FILE", "write --api-keys-file with a TOML file of tenants"),
    ("l", "--slot-save-path DIR", "write --kv-cache-dir DIR, which stores cached blocks"),
    ("l", "--models-dir --models-preset PATH", "write --models FILE.toml (docs/several-models.md)"),
    ("l", "--props --path --tools --agent [VALUE]", "settings and files of a running server do not change"),
    ("l", "--lora-scaled --control-vector VALUE", "write --lora NAME=PATH"),
    ("l", "--log-file FILE", "redirect standard error: 2> FILE"),
    (
        "l",
        "--grammar --grammar-file -j --json-schema -jf --json-schema-file VALUE",
        "requests say it (response_format)",
    ),
    ("l", "--samplers --sampling-seq --mirostat --mirostat-lr --mirostat-ent --dynatemp-range VALUE", _SAMPLER),
    ("l", "--dry-multiplier --dry-base --xtc-probability --xtc-threshold --typical VALUE", _SAMPLER),
    ("l", "--repeat-last-n N", "penalties read the whole text"),
)

SEVERAL = ("--served-model-name", "--api-key", "--lora")  # of ours, which take several words behind them at vLLM
# Sampling settings that llama-server has as options of the server: keys of --override-generation-config.
SAMPLING = {
    "--temp": "temperature", "--temperature": "temperature", "--top-k": "top_k", "--top-p": "top_p", "--min-p": "min_p",
    "--repeat-penalty": "repetition_penalty", "--presence-penalty": "presence_penalty",
    "--frequency-penalty": "frequency_penalty",
}  # fmt: skip


def _of_files(*values: str) -> Convert:
    return _unless("it is read from the model's files", *values)


def _length(value: str) -> list[str]:
    if value in ("auto", "-1"):
        raise NoEffect("it is the model's own")
    return [length_of(value)]


def _dtype(value: str) -> list[str]:
    if value in ("half", "float16"):
        raise Refused("float16 is not computed; --dtype bfloat16 takes as little memory, and float32 is more exact")
    return ["float32" if value == "float" else value]


# Values of options that we have, too.
VALUES: dict[str, Convert] = {
    "--max-model-len": _length,
    "--max-num-batched-tokens": lambda value: [length_of(value)],
    "--dtype": _dtype,
    "--quantization": _of_files(
        *("awq", "awq_marlin", "gptq", "gptq_marlin", "compressed-tensors", "gguf", "mxfp4", "fbgemm_fp8"),
        *("bitsandbytes", "modelopt", "modelopt_fp4", "w8a8_int8", "w8a8_fp8"),
    ),
    "--load-format": _of_files("safetensors", "hf", "gguf", "mistral", "pt", "bitsandbytes", "runai_streamer"),
    "--kv-cache-dtype": _words(fp8_e4m3="fp8", fp8_e5m2="fp8", bfloat16="auto", bf16="auto"),
}
