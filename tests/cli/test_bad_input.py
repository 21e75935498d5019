"""Everything a user can get wrong before a prompt is answered: one sentence, no traceback, an exit code above 0."""

from __future__ import annotations

import json
import os
import re
import shutil
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from models import write_model
from safetensors.numpy import load_file, save_file

import inflight
from inflight.cli import _OF_VALUES, call

from .terminal import Caller, write_lines


@pytest.mark.parametrize(
    ("options", "sentence"),
    [
        ("--prompt-logprobs 21", "prompt_logprobs is 21; give a whole number from 0 to 20"),
        ("--max-tokens -4", "max_tokens is -4"),
        ("--max-tokens 1.5", "'1.5' is not a valid integer"),
        ("--temperature nan", "temperature is nan; give a number from 0 to 1000000."),
        ("--temperature -1", "temperature is -1.0"),
        ("--top-p 0", "top_p is 0.0"),
        ("--n 0", "n is 0"),
        ("--logprobs 21", "logprobs is 21"),
        ("--min-tokens 9 --max-tokens 8", "min_tokens is 9"),
        ("--stop=", "stop holds ''"),
        ("--logit-bias nonsense", "--logit-bias is not JSON"),
        ("--logit-bias [1]", "give an object"),
        ('--logit-bias {"1":NaN}', "logit_bias of token 1 is nan"),
        ('--logit-bias {"384":1}', "logit_bias names the token id 384, but the vocabulary has 384 tokens (0 to 383)."),
        ("--logit-bias " + "9" * 5000, "--logit-bias is not JSON"),
        ("--stop-token-ids 384", "stop_token_ids names the token id 384, but the vocabulary has 384 tokens"),
        ("--threads 0", "--threads is 0"),
        ("--threads 99999", "--threads is 99999, but this process may use"),
        (
            "--dtype float16",
            "--dtype float16 is not supported: float16 is not computed; --dtype bfloat16 takes as little memory",
        ),
        (
            "--pipeline-parallel-size 2",
            "-size 2 is not supported: there is no pipeline and no expert parallelism",
        ),
        ("--enable-expert-parallel", "leave it out. --tensor-parallel-size N shares"),
        ("--lora a=(scratch)", "adapter '(scratch)' does not exist, and is no hub id either"),
        ("--max-model-length 5", "No such option '--max-model-length'. Did you mean '--max-model-len'?"),
        ("--quantization fp4", "--quantization is 'fp4'; known are none, int8, int8-all, int4, int4-all, fp8."),
        ("--quantization-group-size 64", "--quantization-group-size is 64, but only int4 has groups"),
        (
            "--quantization int4 --quantization-group-size 48",
            "--quantization-group-size is 48; known are 32, 64 and 128.",
        ),
        ("--kv-cache-dtype fp4", "--kv-cache-dtype is 'fp4'; known are auto, int8, fp8."),
        ("--load-format npcache", "--load-format is 'npcache'; known are"),
        ("--max-num-seqs 0", "--max-num-seqs is 0"),
        ("--max-num-seqs 1000000000", "memory is not enough"),
        ("--max-num-seqs 99999999999999999999", "from 1 to 2,147,483,647"),
        ("--max-num-batched-tokens 31", "is 31, but 32 sequences may run at once"),
        ("--max-num-batched-tokens 1000000000", "memory is not enough"),
        ("--max-model-len 1", "leaves no room for an answer"),
        ("--max-model-len 999999", "--max-model-len is 999,999, but the model has 256 positions; give 1 to 256."),
        ("--block-size 20", "--block-size is 20; give a multiple of 16"),
        ("--block-size 1600000000", "too little for one KV block"),
        ("--kv-memory 0", "--kv-memory is 0 GiB"),
        ("--kv-memory nan", "--kv-memory is nan GiB"),
        ("--kv-memory 1e308", "--kv-memory is 1e+308 GiB"),
        ("--kv-memory 1e-9", "is less than one block of 16 tokens"),
        ("--kv-memory 1000000", "are free; lower --kv-memory"),
        ("--num-blocks 0", "--num-blocks is 0"),
        ("--num-blocks 2000000000", "are free; lower --kv-memory or --num-blocks"),
        ("--kv-memory 1 --num-blocks 9", "give one of them"),
        ("--watermark 1", "--watermark is 1;"),
        ("--seed -1", "--seed is -1"),
        ("--raw --input -", "PROMPT and --input both say what to answer"),
        ("surplus", "run takes one PROMPT; 2 words are given, the first of which names no model: put"),
        ("--nonsense", "No such option"),
        ("--tool-call-parser sphinx", "--tool-call-parser is 'sphinx'; known are openai, gemma4,"),
        ("--tool-parser hermse", "auto, none, and package.module:Class. Did you mean hermes?"),
        ("--reasoning-parser sphinx", "--reasoning-parser is 'sphinx'; known are gemma4,"),
        ("--policy sphinx", "--policy is 'sphinx'; known are fcfs,"),
        ("--preset sphinx", "--preset is 'sphinx'; known are latency,"),
    ],
)
def test_options(inflight: Caller, options: str, sentence: str) -> None:
    result = inflight("run", "hello", *options.split(" "))
    assert sentence in result.sentence()
    is_of_this_machine = any(one in result.err for one in ("are free", "adapter '(scratch)' does not exist"))
    assert result.code == (1 if is_of_this_machine else 2), "as where click refuses a value"


@pytest.mark.parametrize(
    "words",
    [
        ("simulate", "--model", "llama-3-8b", "--hardware", "h1000"),
        ("bench", "--url", "foo://bar"),
        ("top", "foo://bar"),
        ("bench", "--slo", "x"),
        ("plan", "--hardware", "h100", "--model", "llama-3-8b", "--rate", "1", "--input-tokens", "q"),
        ("doctor", "--device", "sphinx"),
    ],
)
def test_values_have_one_exit_code_whatever_finds_them_wrong(words: tuple[str, ...]) -> None:
    assert call([*words]) == 2


def test_errors_of_values_are_those_of_modules() -> None:
    files = Path(inflight.__file__).parent.rglob("*.py")
    classes = {name for path in files for name in re.findall(r"^class (\w+)\(", path.read_text("utf-8"), re.MULTILINE)}
    assert {*_OF_VALUES} <= classes


def test_prompts(inflight: Caller) -> None:
    assert "maximum context length is 256 tokens" in inflight("run", "long " * 300).sentence()
    assert "The prompt is empty" in inflight("run", "--raw", "").sentence()
    assert inflight("run", "~5 km, hello", "--max-tokens", 1).code == 0  # no path
    assert "KV blocks" in inflight("run", "long " * 40, "--num-blocks", 2).sentence()


def test_files(inflight: Caller, tmp_path: Path) -> None:
    source = write_lines(tmp_path / "in.jsonl", {"prompt": "x"})
    for arguments, sentence in (
        (["--input", tmp_path / "nowhere"], "nowhere does not exist; give a JSONL file"),
        (["--input", tmp_path], "is a folder; give a file"),
        (["--input", source, "--output", source], "is given twice, and would be overwritten"),
        (["--input", source, "--output", tmp_path / "no" / "out"], "no does not exist; create it first"),
        (["x", "--output", tmp_path], "is a directory"),
        (["x", "--record", tmp_path / "no" / "record"], "cannot be written: the folder"),
        (["x", "--record", tmp_path / "a", "--output", tmp_path / "a"], "is given twice"),
        (["x", "--config", tmp_path / "nowhere"], "does not exist"),
    ):
        assert sentence in inflight("run", *arguments).sentence(), arguments
    assert source.read_text("utf-8") == '{"prompt": "x"}\n'


@pytest.mark.skipif(not Path("/dev/full").exists(), reason="needs a device that is always full")
def test_a_full_disk(inflight: Caller, tmp_path: Path) -> None:
    source = write_lines(tmp_path / "in.jsonl", {"prompt": "x", "max_tokens": 2})
    for arguments in (
        ["x", "--output", "/dev/full"],
        ["x", "--record", "/dev/full"],
        ["--input", source, "--output", "/dev/full"],
    ):
        result = inflight("run", *arguments, "--max-tokens", 2)
        assert result.sentence().startswith("No space left on device; check the path")


@pytest.mark.skipif(os.geteuid() == 0, reason="nothing is forbidden to root")
def test_places_that_are_forbidden(inflight: Caller, tmp_path: Path) -> None:
    source = write_lines(tmp_path / "in.jsonl", {"prompt": "x"})
    source.chmod(0)
    assert "is not readable" in inflight("run", "--input", source).sentence()
    assert "permission denied" in inflight("run", "x", "--output", source).sentence()


# -- models -------------------------------------------------------------------------------------------------------
@pytest.fixture
def broken(tmp_path: Path, tiny: Path) -> Path:
    """A copy of the tiny model, to be broken."""
    return Path(shutil.copytree(tiny, tmp_path / "broken"))


def shards(folder: Path) -> None:
    tensors = load_file(folder / "model.safetensors")
    (folder / "model.safetensors").unlink()
    names = sorted(tensors)
    files = {name: f"model-{1 + (n > 5)}-of-2.safetensors" for n, name in enumerate(names)}
    for file in set(files.values()):
        save_file({name: tensors[name] for name in names if files[name] == file}, folder / file)
    (folder / "model.safetensors.index.json").write_text(json.dumps({"weight_map": files}))


def missing_shard(folder: Path) -> None:
    shards(folder)
    (folder / "model-2-of-2.safetensors").unlink()


def truncated_shard(folder: Path) -> None:
    shards(folder)
    os.truncate(folder / "model-2-of-2.safetensors", 5000)


def truncated(folder: Path) -> None:
    os.truncate(folder / "model.safetensors", 3000)


def nearly_empty(folder: Path) -> None:
    os.truncate(folder / "model.safetensors", 3)


def wrong_shape(folder: Path) -> None:
    tensors = load_file(folder / "model.safetensors")
    tensors["model.layers.1.mlp.up_proj.weight"] = np.zeros((95, 64), np.float32)
    save_file(tensors, folder / "model.safetensors")


def missing_tensor(folder: Path) -> None:
    tensors = load_file(folder / "model.safetensors")
    del tensors["model.norm.weight"]
    save_file(tensors, folder / "model.safetensors")


def unsupported(folder: Path) -> None:
    configure(folder, architectures=["MambaForCausalLM"], model_type="mamba")


def odd_sizes(folder: Path) -> None:
    configure(folder, num_key_value_heads=3)


def configure(folder: Path, **settings: Any) -> None:
    config = json.loads((folder / "config.json").read_text())
    (folder / "config.json").write_text(json.dumps({**config, **settings}))


def broken_config(folder: Path) -> None:
    (folder / "config.json").write_text("{")


def pickled(folder: Path) -> None:
    (folder / "model.safetensors").rename(folder / "pytorch_model.bin")


def no_weights(folder: Path) -> None:
    (folder / "model.safetensors").unlink()


def broken_tokenizer(folder: Path) -> None:
    (folder / "tokenizer.json").write_text("{}")


def no_tokenizer(folder: Path) -> None:
    (folder / "tokenizer.json").unlink()


def slow_tokenizer(folder: Path) -> None:
    (folder / "tokenizer.json").rename(folder / "tokenizer.model")


def broken_template(folder: Path) -> None:
    (folder / "tokenizer_config.json").write_text(json.dumps({"chat_template": "{% for %}"}))


@pytest.mark.parametrize(
    ("breaks", "sentence"),
    [
        (missing_shard, "lacks 1 of its 2 weight files: model-2-of-2.safetensors; download"),
        (truncated_shard, "model-2-of-2.safetensors"),
        (truncated, "model.safetensors"),
        (nearly_empty, "model.safetensors"),
        (wrong_shape, "has shape [95, 64], but config.json asks for [96, 64]"),
        (missing_tensor, "lacks tensor 'model.norm.weight'"),
        (unsupported, "MambaForCausalLM"),
        (odd_sizes, "heads"),
        (broken_config, "config.json"),
        (pickled, "pytorch_model.bin, a pickle"),
        (no_weights, "--load-format dummy"),
        (broken_tokenizer, "is not a tokenizer that can be read"),
        (no_tokenizer, "has no tokenizer.json"),
        (slow_tokenizer, "only tokenizer.model; export a fast tokenizer"),
        (broken_template, "template"),
    ],
)
def test_models(inflight: Caller, broken: Path, breaks: Any, sentence: str) -> None:
    breaks(broken)
    result = inflight("run", "hello", "--model", broken, model=False)
    assert sentence in result.sentence() and result.out == ""


def test_folders_that_are_no_models(inflight: Caller, tmp_path: Path) -> None:
    (tmp_path / "file").write_text("")
    for name, sentence in (
        (str(tmp_path), "is no model folder"),
        (str(tmp_path / "file"), "is a file, not a model folder"),
        (str(tmp_path / "nowhere" / "at" / "all"), "does not exist"),
        ("", "--model is empty"),
    ):
        assert sentence in inflight("run", "hello", "--model", name, model=False).sentence()


def test_sharded_models_are_none_of_these(inflight: Caller, broken: Path) -> None:
    whole = inflight("run", "hello", "--max-tokens", 4)
    shards(broken)
    assert inflight("run", "hello", "--max-tokens", 4, "--model", broken, model=False) == whole


def test_other_families_run_too(inflight: Caller, tmp_path: Path) -> None:
    folder = write_model(tmp_path / "qwen3", "qwen3")
    assert inflight("run", "hello", "--max-tokens", 4, "--model", folder, model=False).code == 0
