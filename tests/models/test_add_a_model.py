"""docs/add-a-model.md: its family, read from the page, generates what `transformers` does, and its tables are whole."""

from __future__ import annotations

import json
import re
import sys
from collections.abc import Iterator
from importlib import import_module
from pathlib import Path
from pkgutil import iter_modules

import pytest
from execution.driver import Driver
from execution.oracle import Oracle, build
from safetensors.torch import load_file, save_file
from text.builders import byte_level

from inflight import LLM, SamplingParams
from inflight.models import families, mixers, mlps, spec
from inflight.models.arithmetic import parameters
from inflight.models.errors import ModelError
from inflight.models.family import Family, attention, dense
from inflight.models.fields import Fields
from inflight.models.mixers.attention import Attention
from inflight.models.registry import read_folder, read_spec

PAGE = (Path(__file__).parents[2] / "docs" / "add-a-model.md").read_text(encoding="utf-8")
SOURCE, DESCRIBED = re.findall(r"```python\n(.*?)```", PAGE, re.DOTALL)
PROMPT_TOKENS, TOKENS = 40, 48


@pytest.fixture(scope="module")
def heron(tmp_path_factory: pytest.TempPathFactory) -> Iterator[tuple[Path, Oracle]]:
    """A checkpoint of the page's family while its file is among the families, and the model that it is to equal:
    Qwen3's with biases, those after attention zero."""
    code, folder = tmp_path_factory.mktemp("families"), tmp_path_factory.mktemp("heron")
    assert SOURCE.count("\n") < 60
    (code / "heron.py").write_text(SOURCE, encoding="utf-8")
    (code / "otter.py").write_text(DESCRIBED, encoding="utf-8")
    oracle = build("qwen3_biases", folder)
    for name, parameter in oracle.model.named_parameters():
        if name.endswith("o_proj.bias"):
            parameter.data.zero_()
    tensors = load_file(folder / "model.safetensors")
    save_file({name: one for name, one in tensors.items() if "o_proj.bias" not in name}, folder / "model.safetensors")
    config = json.loads((folder / "config.json").read_text())
    config |= {"architectures": ["HeronForCausalLM"], "model_type": "heron", "attention_bias": False}
    (folder / "config.json").write_text(json.dumps(config))
    byte_level().save(str(folder / "tokenizer.json"))
    families.__path__.append(str(code))
    yield folder, oracle
    families.__path__.remove(str(code))
    for name in ("heron", "otter"):
        sys.modules.pop(f"{families.__name__}.{name}", None)


def test_the_family_of_the_page_generates_the_oracles_tokens(heron: tuple[Path, Oracle]) -> None:
    folder, oracle = heron
    prompt = oracle.prompt[:PROMPT_TOKENS]
    assert Driver.of(folder, "float32", "reference").greedy(prompt, TOKENS) == oracle.greedy(prompt, TOKENS)


def test_the_engine_runs_it_on_its_kernels(heron: tuple[Path, Oracle]) -> None:
    folder, oracle = heron
    prompt = oracle.prompt[:PROMPT_TOKENS]
    llm = LLM(str(folder), dtype="float32", threads=1)
    params = SamplingParams(temperature=0, max_tokens=TOKENS, ignore_eos=True)
    output = llm.generate({"prompt_token_ids": prompt.tolist()}, params)[0].outputs[0]
    assert output.token_ids == oracle.greedy(prompt, TOKENS)


def test_a_family_of_ones_own_is_named_by_its_place(
    heron: tuple[Path, Oracle], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    folder, oracle = heron
    (tmp_path / "my_models.py").write_text(SOURCE.replace("HeronForCausalLM", "SomethingElse"), encoding="utf-8")
    monkeypatch.syspath_prepend(tmp_path)
    config = json.loads((folder / "config.json").read_text()) | {"architectures": ["PrivateForCausalLM"]}
    (tmp_path / "config.json").write_text(json.dumps(config))
    for name in ("model.safetensors", "tokenizer.json"):
        (tmp_path / name).symlink_to(folder / name)
    prompt = oracle.prompt[:PROMPT_TOKENS]
    llm = LLM(str(tmp_path), family="my_models:FAMILY", dtype="float32", threads=1)
    params = SamplingParams(temperature=0, max_tokens=8, ignore_eos=True)
    output = llm.generate({"prompt_token_ids": prompt.tolist()}, params)[0].outputs[0]
    assert output.token_ids == oracle.greedy(prompt, 8)
    with pytest.raises(ModelError, match="PrivateForCausalLM is an architecture that is not supported"):
        LLM(str(tmp_path))
    for place, cause in (
        ("my_models", "cannot be loaded (AttributeError: module 'my_models' has no attribute ''); write"),
        (
            "my_models:NOTHING",
            "cannot be loaded (AttributeError: module 'my_models' has no attribute 'NOTHING'); write",
        ),
        (
            "no_models:FAMILY",
            "cannot be loaded (ModuleNotFoundError: No module named 'no_models'); write package.module",
        ),
        ("my_models:layers", "is a function; name a Family that the module makes"),
    ):
        with pytest.raises(ModelError, match=re.escape(f"--family {place} {cause}")):
            LLM(str(tmp_path), family=place)


@pytest.mark.usefixtures("heron")
def test_the_family_that_is_only_described_is_counted_and_not_run() -> None:
    sizes = {"vocab_size": 320, "hidden_size": 64, "intermediate_size": 96, "num_attention_heads": 4}
    data = {"architectures": ["OtterForCausalLM"], "num_hidden_layers": 4, "num_local_experts": 8, **sizes}
    otter = read_spec({**data, "moe_intermediate_size": 24})
    attention, plain, sparse = 4 * 64 * 64, 3 * 64 * 96, 8 * 64 + 8 * 3 * 64 * 24
    assert parameters(otter) == 4 * (attention + 2 * 64) + 2 * (plain + sparse) + 2 * 320 * 64 + 64
    assert [layer.mixer.window for layer in otter.layers if isinstance(layer.mixer, Attention)] == [4096] * 3 + [0]
    with pytest.raises(ModelError, match="OtterForCausalLM is a mixture of experts, which is not supported"):
        read_spec(data, to_run=True)


def test_its_flags_are_read_and_what_it_does_not_know_is_refused(heron: tuple[Path, Oracle]) -> None:
    data = json.loads((heron[0] / "config.json").read_text())
    mixer = read_spec({**data, "use_qk_norm": False, "use_qkv_bias": False}, to_run=True).layers[0].mixer
    assert isinstance(mixer, Attention) and (mixer.qk_norm, mixer.qkv_bias) == ("none", False)
    with pytest.raises(ModelError) as refused:
        read_spec({**data, "kv_lora_rank": 512})
    assert str(refused.value) in " ".join(PAGE.replace("\n> ", " ").split())


def test_the_page_names_every_part_of_a_spec_and_of_a_family() -> None:
    kinds = (one.name for folder in (mixers, mlps) for one in iter_modules(folder.__path__, f"{folder.__name__}."))
    files = [spec, *map(import_module, kinds)]
    found = [(one, file) for file in files for one in vars(file).values() if isinstance(one, type)]
    parts = [one for one, file in found if one.__module__ == file.__name__]
    words = {word for one in (*parts, Family) for word in (*one.__struct_fields__, one.__name__)}  # type: ignore[attr-defined]
    assert len(parts) > 10 and not {word for word in words if f"`{word}`" not in PAGE}


def test_the_page_names_every_tensor(heron: tuple[Path, Oracle]) -> None:
    """A row names one in full, and of its like the part that differs."""
    rows = [
        row.split("|")[1] for row in PAGE.splitlines() if row.startswith("| `model.") or row.startswith("| `lm_head")
    ]
    named = {
        re.sub(r"\w+_(proj|norm)(?=\.(weight|bias))", part, full) if part != full else full
        for row in rows
        for full, *others in [re.findall(r"`([^`]+)`", row)]
        for part in (full, *others)
    }
    saved = {re.sub(r"\.\d+\.", ".N.", name) for name in load_file(heron[0] / "model.safetensors")}
    assert saved <= named and read_folder(heron[0]).family == "heron"


def test_defaults_hold_for_whatever_is_left_out(heron: tuple[Path, Oracle]) -> None:
    """Not for sizes and flags alone."""
    data = json.loads((heron[0] / "config.json").read_text())
    left_out = {"rope_theta", "rope_scaling", "rope_parameters", "rms_norm_eps", "eos_token_id", "dtype", "torch_dtype"}
    defaults = {"rope_theta": 5e5, "rms_norm_eps": 1e-3, "eos_token_id": 7, "torch_dtype": "float16"}
    family = Family(
        name="pelican",
        architectures=("PelicanForCausalLM",),
        model_types=("pelican",),
        layers=_layers,
        defaults={**defaults, "pelican_heads": 2},
        runs=True,
    )
    read = read_spec({key: value for key, value in data.items() if key not in left_out}, to_run=True, family=family)
    assert (read.rope.theta, read.norm.eps, read.end_token_ids, read.checkpoint_dtype) == (5e5, 1e-3, (7,), "float16")
    mixer = read.layers[0].mixer
    assert isinstance(mixer, Attention) and mixer.kv_heads == 2


def _layers(fields: Fields) -> spec.LayerSpec:
    return spec.LayerSpec(attention(fields, kv_heads="pelican_heads"), dense(fields))
