"""Options of vLLM, llama-server, SGLang and ollama: the one of ours that each is read as, or why it has none.

The option parser of the verbs that run an engine and the tables in docs/ read the rows here. A row has the first
letters of the servers that have the option, its names with the form of its value, and what becomes of it.
"""

from __future__ import annotations

from typing import NamedTuple

from inflight.cli.foreign_values import (
    Convert,
    draft_kind,
    kv_type,
    layers,
    log_number,
    lora_module,
    only_one,
    parts,
    pooling,
    scaled,
    speculation,
    thinking,
    unless,
    words,
)


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


_LEVELS = words(critical="error", trace="debug", warn="warning")
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
    ReadAs("v", "-tp N", "--tensor-parallel-size"),
    ReadAs("s", "--tp --tp-size N", "--tensor-parallel-size"),
    ReadAs("v", "-q N", "--quantization"),
    ReadAs("v", "--device-memory-utilization N", "--gpu-memory-utilization"),
    ReadAs("s", "--mem-fraction-static N", "--gpu-memory-utilization"),
    ReadAs("v", "--num-gpu-blocks-override N", "--num-blocks"),
    ReadAs("v", "--kv-cache-memory-bytes N", "--kv-memory", scaled(2**30), "in GiB"),
    ReadAs("v", "--kv-offloading-size N", "--kv-cache-host"),
    ReadAs("s", "--hicache-size N", "--kv-cache-host"),
    ReadAs("l", "-cram --cache-ram N", "--kv-cache-host", scaled(2**10), "in GiB"),
    ReadAs("vs", "--default-chat-template-kwargs JSON", "--chat-template-kwargs"),
    ReadAs("v", "--scheduling-policy NAME", "--policy"),
    ReadAs("s", "--schedule-policy NAME", "--policy", words(lpm="prefix")),
    ReadAs("v", "--max-num-queued-reqs N", "--max-queued-requests"),
    ReadAs("v", "--max-num-queued-tokens N", "--max-queued-tokens"),
    ReadAs("v", "--lora-modules NAME=PATH...", "--lora", lora_module),
    ReadAs("s", "--lora-paths NAME=PATH...", "--lora", lora_module),
    ReadAs("s", "--max-loras-per-batch N", "--max-loras"),
    ReadAs("v", "--allowed-origins LIST", "--cors-origin", parts),
    ReadAs("l", "--cors-origins LIST", "--cors-origin", parts),
    ReadAs("v", "--api-server-count -asc N", "--api-processes"),
    ReadAs("v", "--uvicorn-log-level NAME", "--log-level", _LEVELS),
    ReadAs("v", "--disable-uvicorn-access-log", "--log-level warning", note=_QUIETER),
    ReadAs("v", "--model-impl NAME", "--backend", words(vllm="auto")),
    ReadAs("v", "--no-enable-prefix-caching", "--no-prefix-caching"),
    ReadAs("l", "--no-cache-prompt", "--no-prefix-caching"),
    ReadAs("s", "--disable-radix-cache", "--no-prefix-caching"),
    ReadAs("v", "--no-enable-chunked-prefill", "--strategy continuous"),
    ReadAs("v", "--speculative-config -sc JSON", "--speculation", speculation),
    ReadAs("v", "--speculative-model M", "--speculation", lambda name: [f"draft:{name}"], "draft:M"),
    ReadAs("v", "--num-speculative-tokens N", "--speculation-max-tokens"),
    ReadAs("l", "--spec-type NAME", "--speculation", draft_kind),
    ReadAs("s", "--speculative-algorithm NAME", "--speculation", draft_kind),
    ReadAs("l", "-md --model-draft --spec-draft-model M", "--speculation", lambda name: [f"draft:{name}"], "draft:M"),
    ReadAs("l", "--draft --draft-n --draft-max --spec-draft-n-max N", "--speculation-max-tokens"),
    ReadAs("v", "--shutdown-timeout N", "--drain-timeout"),
    ReadAs("v", "--pooler-config --override-pooler-config JSON", "--pooling", pooling),
    ReadAs("v", "--sse-keep-alive-interval N", "--keep-alive"),
    ReadAs("l", "--sse-ping-interval N", "--keep-alive"),
    ReadAs("v", "--preemption-mode NAME", "--preemption"),
    ReadAs("v", "-dp --data-parallel-size N", "", only_one(_ENGINES)),
    ReadAs("s", "--dp --dp-size N", "", only_one(_ENGINES)),
    ReadAs("v", "-pp --pipeline-parallel-size N", "", only_one(_PARALLEL)),
    ReadAs("s", "--pp-size N", "", only_one(_PARALLEL)),
    ReadAs("vs", "--nnodes N", "", only_one("write --ray-address for engines on several machines (docs/scaling.md)")),
    ReadAs("s", "--ep --ep-size --expert-parallel-size N", "", only_one(_PARALLEL)),
    ReadAs("l", "-m M", "--model"),
    ReadAs("s", "--model-path M", "--model"),
    ReadAs("l", "-hf -hfr --hf-repo M", "--model"),
    ReadAs("s", "--tokenizer-path M", "--tokenizer"),
    ReadAs("l", "-c --ctx-size N", "--max-model-len", unless("it is the model's own", "0"), "of each request"),
    ReadAs("s", "--context-length N", "--max-model-len"),
    ReadAs("l", "-np --parallel N", "--max-num-seqs", unless("it is chosen", "-1")),
    ReadAs("s", "--max-running-requests N", "--max-num-seqs"),
    ReadAs("l", "-b N", "--max-num-batched-tokens"),
    ReadAs("s", "--chunked-prefill-size N", "--max-num-batched-tokens"),
    ReadAs("l", "-t N", "--threads", unless("it is chosen", "-1")),
    ReadAs("l", "-ngl --gpu-layers --n-gpu-layers N", "--device", layers, "cpu for 0; else no effect"),
    ReadAs("l", "-mg --main-gpu N", "--device", lambda index: [f"cuda:{index}"], "cuda:N"),
    ReadAs("l", "-Cr --cpu-range CPUS", "--cpu-list"),
    ReadAs("l", "-a --alias NAMES", "--served-model-name", parts),
    ReadAs("l", "-ctk -ctv --cache-type-k --cache-type-v NAME", "--kv-cache-dtype", kv_type, "int8 for q8_0"),
    ReadAs("l", "--chat-template-file FILE", "--chat-template"),
    ReadAs("l", "-to --timeout N", "--request-timeout"),
    ReadAs("l", "--ssl-key-file FILE", "--ssl-keyfile"),
    ReadAs("l", "--ssl-cert-file FILE", "--ssl-certfile"),
    ReadAs("l", "--api-prefix PATH", "--root-path"),
    ReadAs("s", "--fastapi-root-path PATH", "--root-path"),
    ReadAs("l", "--no-webui", "--no-ui"),
    ReadAs(
        "l", "--reasoning-format NAME", "--reasoning-parser", words(auto="", deepseek="", **{"deepseek-legacy": ""})
    ),
    ReadAs("l", "--skip-chat-parsing", "--tool-parser none"),
    ReadAs("l", "-rea --reasoning --reasoning-budget N", "--chat-template-kwargs", thinking, "enable_thinking"),
    ReadAs("l", "-v", "--log-level debug"),
    ReadAs("l", "-lv --verbosity --log-verbosity N", "--log-level", log_number),
    ReadAs("l", "--log-disable", "--log-level error"),
    ReadAs("l", "--log-jsonl", "--log-format json"),
    ReadAs("l", "-s N", "--seed", unless("it is chosen", "-1")),
    ReadAs("s", "--random-seed N", "--seed"),
    ReadAs("s", "--disable-cuda-graph", "--enforce-eager"),
    ReadAs("s", "--page-size N", "--block-size"),
    ReadAs("s", "--sampling-defaults NAME", "--generation-config", words(openai="vllm", model="")),
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
    ("v", "--disable-log-requests --enable-log-requests", "prompts are never logged"),
    ("s", "--log-requests", "prompts are never logged"),
    ("v", "--max-log-len N", "prompts are never logged"),
    ("s", "--log-requests-level N", "prompts are never logged"),
    ("v", "--disable-log-stats --aggregate-engine-logging", "metrics are at /metrics alone"),
    ("s", "--enable-metrics", "metrics are at /metrics"),
    ("l", "--metrics", "metrics are at /metrics"),
    ("v", "--task --runner --convert NAME", "the model's files say what it does; --pooling makes vectors of others"),
    ("s", "--is-embedding", "the model's files say what it does"),
    ("l", "--embedding --embeddings --rerank --reranking", "the model's files say what it does"),
    ("v", "--config-format NAME", "files have one form"),
    ("vs", "--tokenizer-mode NAME", "files have one form"),
    ("v", "--limit-mm-per-prompt --mm-processor-kwargs --mm-encoder-tp-mode VALUE", "models read text alone"),
    ("v", "--mm-processor-cache-gb --mm-processor-cache-type --media-io-kwargs VALUE", "models read text alone"),
    ("v", "--language-model-only --skip-mm-profiling --disable-mm-preprocessor-cache", "models read text alone"),
    ("l", "--no-mmproj --no-mmproj-auto", "models read text alone"),
    ("v", "--allowed-local-media-path --allowed-media-domains VALUE", "models read text alone"),
    ("v", "--distributed-executor-backend NAME", "the GPUs of a machine have a process each"),
    ("vs", "--disable-custom-all-reduce", "there is one way of reducing"),
    ("v", "-cc --compilation-config VALUE", "CUDA graphs are chosen by the model; --enforce-eager has none"),
    ("v", "-O -O0 -O1 -O2 -O3 --optimization-level [N]", "kernels are compiled in one way"),
    ("v", "--cudagraph-capture-sizes N...", "graphs are chosen by --max-num-seqs"),
    ("v", "--max-cudagraph-capture-size --max-seq-len-to-capture N", "graphs are chosen by --max-num-seqs"),
    ("s", "--cuda-graph-max-bs N", "graphs are chosen by --max-num-seqs"),
    ("v", "--disable-cascade-attn", "our kernels compute"),
    ("s", "--enable-torch-compile", "our kernels compute"),
    ("v", "--moe-backend --linear-backend NAME", "our kernels compute"),
    ("s", "--moe-runner-backend --sampling-backend NAME", "our kernels compute"),
    ("v", "--attention-config --kernel-config --performance-mode VALUE", "our kernels compute"),
    ("l", "-fa --flash-attn [on]", "our kernels compute attention"),
    ("v", "--structured-outputs-config --guided-decoding-backend VALUE", "grammars have one implementation"),
    ("s", "--grammar-backend NAME", "grammars have one implementation"),
    ("v", "--prefix-caching-hash-algo NAME", "blocks are named by one hash"),
    ("v", "--disable-hybrid-kv-cache-manager", "layers with windows have blocks of their own"),
    ("l", "--swa-full --kv-unified -kvu --no-kv-unified", "all requests share one memory of blocks"),
    ("v", "--max-parallel-loading-workers --safetensors-load-strategy VALUE", "weights are read in one way"),
    ("v", "--use-tqdm-on-load --no-use-tqdm-on-load", "the log says how far loading is"),
    ("l", "--mmap --no-mmap --mlock --check-tensors", "weights are copied into memory"),
    ("l", "-lm --load-mode NAME", "weights are copied into memory"),
    ("l", "-dt --defrag-thold N", "blocks need no order"),
    ("v", "--stream-interval N", "each token is sent at once"),
    ("v", "--enable-prompt-tokens-details", "cached tokens are in usage"),
    ("s", "--enable-cache-report", "cached tokens are in usage"),
    ("v", "--enable-request-id-headers", "each answer has X-Request-Id"),
    ("v", "--enable-tokenizer-info-endpoint", "/tokenizer_info is there"),
    ("v", "--enable-server-load-tracking", "/load is there"),
    ("v", "--enable-reasoning", "reasoning is parsed (--reasoning-parser)"),
    ("v", "--mamba-cache-dtype --mamba-ssm-cache-dtype --mamba-backend NAME", "states have a type of their own"),
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
    ("l", "--warmup --no-warmup", "steps are tried at the start"),
    ("s", "--skip-server-warmup", "steps are tried at the start"),
    ("l", "--slots --no-slots", "/slots is there"),
    ("l", "--ui --webui", "the live page is at /"),
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
    ("o", "--format N", "write /set format json in a chat, or give a line of --input a response_format"),
    ("v", "-ep --enable-expert-parallel", _PARALLEL),
    (
        "v",
        "--headless --master-addr --data-parallel-address --data-parallel-size-local -dpl -dpr -dpa -dpp [N]",
        _ENGINES,
    ),
    ("vs", "--node-rank N", _ENGINES),
    ("s", "--dist-init-addr N", _ENGINES),
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
    ("vl", "--hf-token TOKEN", "set the environment variable HF_TOKEN, which other users cannot see"),
    ("l", "-hft TOKEN", "set the environment variable HF_TOKEN, which other users cannot see"),
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
    ("l", "--repeat-last-n N", "penalties count every token of prompt and answer"),
)

# Sampling settings that llama-server has as options of the server: keys of --override-generation-config.
SAMPLING = {
    "--temp": "temperature", "--temperature": "temperature", "--top-k": "top_k", "--top-p": "top_p", "--min-p": "min_p",
    "--repeat-penalty": "repetition_penalty", "--presence-penalty": "presence_penalty",
    "--frequency-penalty": "frequency_penalty",
}  # fmt: skip
