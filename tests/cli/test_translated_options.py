"""Options of vLLM, llama-server and SGLang: read as ours, without effect, or refused with a sentence; each is said."""

from __future__ import annotations

import importlib
import shlex
from typing import Any

import click
import pytest

from inflight.cli.foreign_options import NO_EFFECT, READ_AS, REFUSED, SAMPLING
from inflight.cli.foreign_values import VALUES
from inflight.cli.translated_options import CONVERTED, SEVERAL, names_of

ENGINE_VERBS = ("serve", "run", "chat", "embed")


def command_of(verb: str) -> click.Command:
    found: click.Command = importlib.import_module(f"inflight.cli.{verb}").command
    return found


def given(line: str, verb: str = "serve") -> dict[str, Any]:
    """Return what a command line gives."""
    context = command_of(verb).make_context(verb, shlex.split(line))
    typed = click.core.ParameterSource.COMMANDLINE
    return {name: value for name, value in context.params.items() if context.get_parameter_source(name) is typed}


def test_an_option_of_several_values_leaves_run_its_prompt() -> None:
    for option in ("--lora", "--lora-modules"):
        found = given(f"smollm2 {option} x=/one 'What is a lane?'", "run")
        assert found == {"words": ("smollm2", "What is a lane?"), "lora": ("x=/one",)}


def test_sampling_of_others_is_joined_with_ours() -> None:
    line = """-m a.gguf --temp 0.7 --override-generation-config '{"top_k": 20}' --top-k 5"""
    assert given(line)["override_generation_config"] == {"temperature": 0.7, "top_k": 20}


def test_a_prompt_is_no_model() -> None:
    with pytest.raises(click.UsageError, match="No such option '-p'"):
        given("-p 8000")


# Lines of vLLM's and llama-server's documentation and of recipes for them.
WORK = {
    "a/b --dtype auto --api-key token": {"name": "a/b", "dtype": "auto", "api_key": ("token",)},
    "a/b --max-model-len 32k --gpu-memory-utilization 0.95": {
        "name": "a/b", "max_model_len": 32000, "gpu_memory_utilization": 0.95
    },
    "--model a/b --host 0.0.0.0 --port 8000": {"model": "a/b", "host": "0.0.0.0", "port": 8000},
    "./a --served-model-name=X --trust-remote-code --max-model-len 8192 --disable-log-requests": {
        "name": "./a", "served_model_name": ("X",), "max_model_len": 8192
    },
    "--disable-log-requests a/b --enable-prefix-caching": {"name": "a/b"},
    "a/b --quantization awq --attention-backend FLASH_ATTN": {"name": "a/b"},
    "a/b --reasoning-parser qwen3 --enable-auto-tool-choice --tool-call-parser hermes": {
        "name": "a/b", "reasoning_parser": "qwen3", "tool_parser": "hermes"
    },
    "a/b --enable-lora --lora-modules x=/one y=/two --max-loras 4 --max-cpu-loras 8": {
        "name": "a/b", "lora": ("x=/one", "y=/two"), "max_loras": 4
    },
    """a/b --lora-modules '{"name": "x", "path": "/one", "base_model_name": "m"}'""": {
        "name": "a/b", "lora": ("x=/one",)
    },
    "a/b --async-scheduling --no-enable-prefix-caching -O3 -cc.mode 3": {"name": "a/b", "enable_prefix_caching": False},
    """a/b --tokenizer_mode mistral --load_format mistral --limit-mm-per-prompt '{"image": 4}'""": {"name": "a/b"},
    "a/b --task embed --max_num_seqs 64": {"name": "a/b", "max_num_seqs": 64},
    """a/b --speculative-config '{"method": "ngram", "num_speculative_tokens": 5}'""": {
        "name": "a/b", "speculation": "suffix", "speculation_max_tokens": 5
    },
    "a/b --served-model-name qwen gpt-4 --uvicorn-log-level critical": {
        "name": "a/b", "served_model_name": ("qwen", "gpt-4"), "log_level": "error"
    },
    "--served-model-name qwen a/b": {"name": "a/b", "served_model_name": ("qwen",)},
    """a/b --allowed-origins '["*"]' --api-server-count 4 --scheduling-policy priority -tp 2 -pp 1""": {
        "name": "a/b", "cors_origin": ("*",), "api_processes": 4, "policy": "priority", "tensor_parallel_size": 2
    },
    "a/b --kv-cache-memory-bytes 4G --kv-cache-dtype fp8_e4m3": {
        "name": "a/b", "kv_memory": 4, "kv_cache_dtype": "fp8"
    },
    "-m a.gguf -c 4096 -ngl 99 -np -1 -t 8 -fa on --jinja": {"model": "a.gguf", "max_model_len": 4096, "threads": 8},
    "-m a.gguf -ngl 0 -c 0 -np 4 -b 512 -ub 512 -ctk q8_0 -fa --mlock": {
        "model": "a.gguf", "device": "cpu", "max_num_seqs": 4, "max_num_batched_tokens": 512, "kv_cache_dtype": "int8"
    },
    "-hf a/b:Q4_K_M --temp 0.7 --top-k 20 --presence-penalty 1.5": {
        "model": "a/b:Q4_K_M",
        "override_generation_config": {"temperature": 0.7, "top_k": 20, "presence_penalty": 1.5},
    },
    "-m a.gguf -a x,y -md d.gguf --draft-max 16 --reasoning-budget 0": {
        "model": "a.gguf", "served_model_name": ("x", "y"), "speculation": "draft:d.gguf",
        "speculation_max_tokens": 16, "chat_template_kwargs": {"enable_thinking": False},
    },
    "--model-path a/b --tp 2 --mem-fraction-static 0.8 --context-length 8192 --schedule-policy lpm": {
        "model": "a/b", "tensor_parallel_size": 2, "gpu_memory_utilization": 0.8, "max_model_len": 8192,
        "policy": "prefix",
    },
}  # fmt: skip


@pytest.mark.parametrize("line", WORK)
def test_lines_of_others_are_read(line: str) -> None:
    assert given(line) == WORK[line]


@pytest.mark.parametrize(
    ("line", "sentence"),
    [
        ("a/b --dtype half", "--dtype half is not supported: float16 is not computed; --dtype bfloat16"),
        ("a/b --enable-expert-parallel", "there is no pipeline and no expert parallelism; leave it out."),
        ("a/b -dp 4", "-dp 4 is not supported: write --replicas N"),
        ("a/b --rope-scaling '{}'", "change rope_scaling in its config.json"),
        ("a/b --kv-transfer-config '{}'", "write --role prefill, decode or both"),
        ("a/b --cpu-offload-gb 10", "take a smaller quantization"),
        ("a/b --hf-token x", "set the environment variable HF_TOKEN"),
        ("a/b --quantization bitsandbytes", "write --quantization int4, or int8"),
        ("-m a.gguf -n 128", "No such option '-n' of this command; where there is one, it is --max-tokens."),
        ("-m a.gguf --mmproj b.gguf", "models read text alone"),
        ("-m a.gguf -ctk q4_0", "-ctk q4_0 is not supported: --kv-cache-dtype int8"),
        ("-m a.gguf -np", "-np needs a value."),
        ("-m a.gguf --temp hot", "--temp is 'hot'; give a number."),
        ("a/b --speculative-config x", "write --speculation suffix, heads or draft:MODEL"),
        ("a/b --pooler-config {", "--pooler-config is '{', which cannot be read"),
        ("a/b --nonsense", "No such option '--nonsense'"),
    ],
)
def test_what_has_no_equal_here_is_refused_with_what_to_use(line: str, sentence: str) -> None:
    with pytest.raises(click.UsageError) as raised:
        given(line)
    assert sentence in raised.value.format_message()


def test_each_option_is_said_once(capsys: pytest.CaptureFixture[str]) -> None:
    given("-m a.gguf -c 4096 --trust-remote-code --max_num_seqs 3 --threads 2")
    assert capsys.readouterr().err.splitlines() == [
        "-m is read as --model.",
        "-c is read as --max-model-len.",
        "--trust-remote-code has no effect here: no code of a model is ever run.",
        "--max_num_seqs is read as --max-num-seqs.",
    ]


def test_values_of_our_own_options_are_not_looked_at() -> None:
    assert given("--system -c --max-tokens 3", "chat") == {"system": "-c", "max_tokens": 3}
    assert given("--model m -n 8 -p hello --temp 0.5", "run") == {
        "model": "m", "max_tokens": 8, "words": ("hello",), "temperature": 0.5
    }  # fmt: skip
    assert given("-- -c", "run") == {"words": ("-c",)}


def test_rows_name_options_that_there_are_and_no_name_twice() -> None:
    known = {name for verb in ENGINE_VERBS for one in command_of(verb).params for name in one.opts}
    for row in READ_AS:
        assert not row.ours or row.ours.split(" ")[0] in known, row
    assert {*SEVERAL, *CONVERTED} <= known and set(CONVERTED) == set(VALUES)
    rows = [(row.servers, row.names) for row in READ_AS] + [(one[0], one[1]) for one in (*NO_EFFECT, *REFUSED)]
    names = [name for servers, text in rows for name in names_of(text)[0]]
    assert len(names) == len(set(names)), [name for name in names if names.count(name) > 1]
    assert all(set(servers) <= set("vlso") for servers, _ in rows)
    serve = {name for one in command_of("serve").params for name in one.opts}
    assert not serve & set(names) and not serve & set(SAMPLING)
