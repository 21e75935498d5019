"""A model's JSON files, mutated: whatever they hold, the answer is the model or one sentence, and soon."""

from __future__ import annotations

import copy
import json
from pathlib import Path
from typing import Any

import pytest
from drawn import examples
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from inflight.core.types.sampling import SamplingParams
from inflight.execution.backends.reference import ReferenceBackend
from inflight.execution.checkpoints.checkpoint import Checkpoint
from inflight.execution.checkpoints.dummy import DummyWeights
from inflight.execution.checkpoints.safetensors_file import SafetensorsFile
from inflight.execution.memory import MachineMemory
from inflight.execution.rope import rope_settings, rope_table
from inflight.execution.weights import load_weights
from inflight.frontend.defaults import sampling_defaults
from inflight.json_file import JsonFileError, parse_json_object, read_json_object
from inflight.models import known
from inflight.models.arithmetic import active_parameters, parameters
from inflight.models.errors import ModelError
from inflight.models.registry import read_folder, read_spec
from inflight.models.sequence_memory import kv_bytes_per_token, paged_kv_bytes_per_token
from inflight.text import ChatTemplate, ChatTemplateError, Tokenizer, TokenizerError

from ..test_config import BASE, QWEN2

LONGEST = 1500  # of a sentence: with the names of all architectures that are supported
FAMILIES = ("LlamaForCausalLM", "MistralForCausalLM", "Qwen2ForCausalLM", "Qwen3ForCausalLM")
ROPES: list[dict[str, Any]] = [
    {"rope_type": kind, "factor": 2.0, "low_freq_factor": 1.0, "high_freq_factor": 4.0, "mscale": 1, "beta_fast": 8}
    for kind in ("default", "linear", "dynamic", "llama3", "yarn")
]
CONFIG = {
    **QWEN2,
    "use_sliding_window": True,
    "max_window_layers": 2,
    "layer_types": ["full_attention"] * 4,
    "rope_theta": 1e4,
    "original_max_position_embeddings": 64,
    "max_position_embeddings": 128,
    "head_dim": 16,
    "eos_token_id": [1, 2],
    "torch_dtype": "bfloat16",
    "hidden_act": "silu",
}
FILES = [
    *Path(__file__).parents[2].glob("models/published/*.json"),
    *Path(known.__file__).parent.glob("well_known/*.json"),
]
PUBLISHED = [json.loads(path.read_text()) for path in sorted(FILES)]
GENERATION = {"temperature": 0.5, "top_p": 0.9, "top_k": 20, "do_sample": True, "eos_token_id": 3}
TEXT = {
    "bos_token": "<|begin|>",
    "eos_token": {"content": "<|end|>"},
    "additional_special_tokens": ["<a>"],
    "chat_template": [{"name": "default", "template": "{{ messages }}"}],
    "add_bos_token": True,
}
HEADER = {
    "__metadata__": {"format": "pt"},
    "a": {"dtype": "F32", "shape": [2], "data_offsets": [0, 8]},
    "b": {"dtype": "BF16", "shape": [2, 1], "data_offsets": [8, 12]},
}

numbers = st.one_of(
    st.integers(),
    st.sampled_from([0, -1, 1, 2**31, 2**63, 10**400, -(10**400)]),
    st.floats(),
    st.sampled_from([1e300, 1e-300, 5e-324, -0.0]),
)
values = st.recursive(
    st.one_of(
        *(st.none(), st.booleans(), numbers, st.text(max_size=8)),
        *map(st.just, ("x" * 5000, "\ud800", [1] * 300_000)),
    ),
    lambda inner: st.one_of(st.lists(inner, max_size=4), st.dictionaries(st.text(max_size=4), inner, max_size=3)),
    max_leaves=6,
)


@st.composite
def mutated(draw: st.DrawFn, original: dict[str, Any]) -> dict[str, Any]:
    """A copy with one to three values, somewhere inside, replaced or taken out."""
    made = copy.deepcopy(original)
    for _ in range(draw(st.integers(1, 3))):
        holder: Any = made
        while True:
            if not holder:
                break
            key = draw(st.sampled_from(sorted(holder) if isinstance(holder, dict) else range(len(holder))))
            if isinstance(holder[key], dict | list) and holder[key] and len(holder[key]) < 100 and draw(st.booleans()):
                holder = holder[key]
                continue
            if draw(st.integers(0, 4)) == 0:
                del holder[key]
            else:
                holder[key] = draw(values)
            break
    return made


bounded = settings(
    examples(75), deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture, HealthCheck.too_slow]
)


def spelled(data: Any) -> bytes:
    return json.dumps(data).encode()


@bounded
@given(st.data())
def test_configurations(data: st.DataObject) -> None:
    rope = data.draw(st.sampled_from(ROPES))
    original = {**CONFIG, "architectures": [data.draw(st.sampled_from(FAMILIES))], "rope_scaling": rope}
    given_, generation = data.draw(mutated(original)), data.draw(mutated(GENERATION))
    try:
        config = read_spec(given_, generation, to_run=True)
        table = rope_table(rope_settings(config)[0], 8).whole()
    except ModelError as error:
        assert len(str(error)) < LONGEST
        return
    assert len(config.layers) == given_["num_hidden_layers"] <= 4096
    assert table.cos.shape == (8, config.layers[0].mixer.head_dim // 2)


@bounded
@given(st.data())
def test_configurations_of_families_that_are_only_described(data: st.DataObject) -> None:
    published = data.draw(st.sampled_from(PUBLISHED))
    given_ = data.draw(mutated(published))
    try:
        config = read_spec(given_)
    except ModelError as error:
        assert len(str(error)) < 2000  # most of it the names of all architectures
        return
    assert 0 < active_parameters(config) <= parameters(config)
    assert 0 <= kv_bytes_per_token(config) <= paged_kv_bytes_per_token(config)


@bounded
@given(st.data())
def test_configuration_files(tmp_path: Path, data: st.DataObject) -> None:
    for name, original in (("config.json", CONFIG), ("generation_config.json", GENERATION)):
        (tmp_path / name).write_bytes(spelled(data.draw(mutated(original))))
    try:
        read_folder(tmp_path, to_run=True)
    except ModelError as error:
        assert len(str(error)) < LONGEST + len(str(tmp_path))


@bounded
@given(mutated(GENERATION))
def test_sampling_defaults(generation: dict[str, Any]) -> None:
    assert isinstance(sampling_defaults(generation), SamplingParams)


@bounded
@given(mutated(TEXT))
def test_settings_of_tokenizers(tmp_path: Path, config: dict[str, Any]) -> None:
    folder = tmp_path / "text"
    if not folder.exists():
        from tests.text.builders import byte_level, write_folder

        write_folder(folder, byte_level())
    (folder / "tokenizer_config.json").write_bytes(spelled(config))
    try:
        Tokenizer.load(folder)
        ChatTemplate.load(folder)
    except (TokenizerError, ChatTemplateError) as error:
        assert len(str(error)) < LONGEST


@bounded
@given(mutated(HEADER))
def test_headers(tmp_path: Path, header: dict[str, Any]) -> None:
    content = spelled(header)
    path = tmp_path / "model.safetensors"
    path.write_bytes(len(content).to_bytes(8, "little") + content + bytes(12))
    try:
        file = SafetensorsFile(path)
        for name in file.entries:
            file.tensor(name)
    except ModelError as error:
        assert len(str(error)) < 1500 + len(str(path))


@pytest.mark.parametrize(
    "shard",
    ["x" * 5000, "é" * 200, "../other.safetensors", "/etc/passwd", "", ".", "..", "a\u0000b", "\ud800", "a\nb"],
)
def test_shards_that_are_no_files_of_the_folder(tmp_path: Path, shard: str) -> None:
    index = {"weight_map": {"a": shard, "b": "model-1.safetensors"}}
    (tmp_path / "model.safetensors.index.json").write_text(json.dumps(index))
    with pytest.raises(ModelError, match=r"names .* which is not a file of this folder; it is refused") as raised:
        Checkpoint(tmp_path)
    assert len(str(raised.value)) < 500


def test_a_model_that_memory_cannot_hold_is_refused_before_anything_is_allocated() -> None:
    config = read_spec({**BASE, "vocab_size": 2**24, "hidden_size": 2**15, "intermediate_size": 2**22})
    memory = MachineMemory(2**34, 2**34, "the machine")
    with pytest.raises(ModelError, match=r"the model needs \d+\.\d GiB for .* but there are 16.0 GiB of memory in all"):
        load_weights(config, DummyWeights("float32"), ReferenceBackend("float32"), 16, memory=memory)


class TestReader:
    @pytest.mark.parametrize(
        ("content", "sentence"),
        [
            (b"[" * 200_000, "f is not usable: its JSON is nested too deeply"),
            (b'{"a":' * 200_000, "nested too deeply"),
            (b'{"a": -' + b"1" * 5000 + b"}", "a number of thousands of digits"),
            (b'{"a": [NaN]}', "f holds NaN, which is no JSON number; write a finite one or null"),
            (b'{"a": -Infinity}', "f holds -Infinity"),
            (b'{"a": 1' + b"0" * 400 + b".5}", "which is no JSON number"),
            (b'{"a": \n 1,}', "f is not valid JSON: .* at line 2, column 4"),
            (b"\xff", "f cannot be read: it is not UTF-8 at byte 0"),
            (b"7", "f holds a JSON int where an object is expected"),
        ],
    )
    def test_says_what_is_wrong_and_where(self, content: bytes, sentence: str) -> None:
        with pytest.raises(JsonFileError, match=sentence) as raised:
            parse_json_object(content, "f")
        assert len(str(raised.value)) < 400

    def test_reads_no_more_than_it_must(self, tmp_path: Path) -> None:
        path = tmp_path / "large.json"
        path.write_text('{"a": "' + "x" * 100 + '"}')
        assert read_json_object(path, 109) == {"a": "x" * 100}
        with pytest.raises(JsonFileError, match="has more than 108 bytes"):
            read_json_object(path, 108)
        with pytest.raises(JsonFileError, match="cannot be read: Is a directory"):
            read_json_object(tmp_path)
