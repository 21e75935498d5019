"""GGUF files: what the format's own library writes is read as it was meant, and inconsistent files are refused with a
message."""

from __future__ import annotations

import random
import struct
import tracemalloc
from pathlib import Path

import gguf
import numpy as np
import pytest
from gguf_files import add, convert, finish
from models import write_model

from inflight.execution.checkpoints.gguf.gguf_checkpoint import GGUFCheckpoint
from inflight.models.errors import ModelError
from inflight.models.gguf import gguf_file
from inflight.models.gguf.config import config_of
from inflight.models.gguf.gguf_file import GGUFFile
from inflight.models.gguf.gguf_model import GGUFModel, model_name
from inflight.models.gguf.tensor_types import tensor_type
from inflight.models.registry import read_spec
from inflight.text import Tokenizer, TokenizerError

MUTATIONS, MEASURED = 1000, 200  # to watch memory takes several times as long as all else


def text(value: str) -> bytes:
    return struct.pack("<Q", len(value.encode())) + value.encode()


def header(tensors: int = 0, keys: int = 0, version: int = 3, magic: bytes = b"GGUF") -> bytes:
    return magic + struct.pack("<IQQ", version, tensors, keys)


def key(name: str, kind: int, value: bytes) -> bytes:
    return text(name) + struct.pack("<I", kind) + value


def info(name: str, shape: tuple[int, ...], kind: int = 0, offset: int = 0) -> bytes:
    return text(name) + struct.pack(f"<I{len(shape)}QIQ", len(shape), *shape, kind, offset)


def padded(content: bytes, data: int) -> bytes:
    return content + bytes(-len(content) % 32) + bytes(data)


ALIGNMENT = "general.alignment"
FAULTS = [
    (b"GGUF", "truncated: 4 bytes cannot hold"),
    (header(magic=b"PK\x03\x04"), r"no GGUF file: it begins with b'PK"),
    (header(version=1), "version 1 of the GGUF format; versions 2 and 3 are read"),
    (header(version=0x03000000), "big-endian"),
    (header(tensors=2**40), "claims 1,099,511,627,776 tensors in 24 bytes"),
    (header(keys=2**63), "claims 9,223,372,036,854,775,808 keys"),
    (header(keys=1) + struct.pack("<Q", 2**60), "a key claims 1,152,921,504,606,846,976 bytes"),
    (header(keys=1) + text("a" * 20) + b"\x08", "is truncated: 'aaaaaaaaaaaaaaaaaaaa' would pass its end"),
    (header(keys=1) + struct.pack("<Q", 8) + b"\xff" * 8, "a key is no UTF-8"),
    (header(keys=1) + key("a", 99, bytes(8)), "'a' has the unknown value type 99"),
    (header(keys=1) + key("a", 8, struct.pack("<Q", 2**64 - 1)), "'a' would pass its end"),
    (header(keys=1) + key("a", 9, struct.pack("<IQ", 9, 1) + bytes(64)), "'a' is a list of lists"),
    (header(keys=1) + key("a", 9, struct.pack("<IQ", 8, 2**50)), "'a' claims 1,125,899,906,842,624 texts in a file of"),
    (
        header(keys=1) + key("a", 9, struct.pack("<IQ", 8, 2) + text("") + struct.pack("<Q", 9)),
        "'a' would pass its end",
    ),
    (
        header(keys=1) + key("a", 9, struct.pack("<IQ", 8, 2) + struct.pack("<Q", 2**64 - 1) + bytes(8)),
        "'a' would pass its end",
    ),
    (header(keys=1) + key("a", 9, struct.pack("<IQ", 10, 2**62)), "'a' would pass its end"),
    (header(keys=2) + key("a", 0, b"1") * 2, "it has the key 'a' twice"),
    (header(keys=1) + key(ALIGNMENT, 4, struct.pack("<I", 24)), "general.alignment is 24, which must be a power of 2"),
    (header(keys=1) + key(ALIGNMENT, 4, bytes(4)), "general.alignment is 0"),
    (header(keys=1) + key(ALIGNMENT, 8, text("x")), "general.alignment must be a whole number, not 'x'"),
    (header(tensors=1) + info("t", ()), "tensor 't' has 0 dimensions"),
    (header(tensors=1) + info("t", (1,) * 9), "tensor 't' has 9 dimensions"),
    (header(tensors=1) + info("t", (0, 4)), r"tensor 't' has shape \[4, 0\]"),
    (header(tensors=1) + info("t", (64, 0), 0), r"tensor 't' has shape \[0, 64\], so it holds nothing; "),
    (header(tensors=1) + info("t", (33, 4), 2), r"shape \[4, 33\], whose rows are no multiple of 32 values \(Q4_0\)"),
    (header(tensors=1) + info("t", (4,), 77), "tensor 't' in .* has the unknown type 77"),
    (header(tensors=1) + info("t", (4,), 0, 8), "tensor 't' begins at 8, which is no multiple of 32"),
    (padded(header(tensors=1) + info("t", (2**40, 2**23)), 0), "is truncated: tensor 't' ends at byte"),
    (padded(header(tensors=1) + info("t", (16,), 0, 2**63), 64), "is truncated: tensor 't' ends at byte"),
    (padded(header(tensors=2) + info("t", (4,)) * 2, 64), "it has two tensors named 't'"),
    (padded(header(tensors=2) + info("t", (16,)) + info("u", (4,), 0, 32), 96), "tensors 't' and 'u' share bytes"),
]


@pytest.mark.parametrize(("content", "sentence"), FAULTS, ids=[sentence[:40] for _, sentence in FAULTS])
def test_each_fault_is_a_sentence(tmp_path: Path, content: bytes, sentence: str) -> None:
    path = tmp_path / "model.gguf"
    path.write_bytes(content)
    with pytest.raises(ModelError, match=sentence):
        GGUFFile(path)


@pytest.mark.parametrize("compiled", [True, False])
def test_a_long_list_of_texts_is_read_by_both_ways_alike(
    compiled: bool, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A file that ends within it is truncated, wherever; also within a length, and one that claims too much."""
    if not compiled:
        monkeypatch.setattr(gguf_file, "_compiled_search", lambda: None)
    texts = [str(number) * (number % 5) for number in range(3000)]
    content = header(keys=1) + key("texts", 9, struct.pack("<IQ", 8, len(texts))) + b"".join(map(text, texts))
    path = tmp_path / "model.gguf"
    path.write_bytes(content)
    assert GGUFFile(path).metadata.texts("texts") == texts
    for broken in (content[:-1], content[:-9], content[:-20], content[:-24] + b"\xff" * 8 + content[-16:]):
        path.write_bytes(broken)
        with pytest.raises(ModelError, match="is truncated: 'texts' would pass its end"):
            GGUFFile(path)


def test_what_cannot_be_opened_is_a_sentence(tmp_path: Path) -> None:
    with pytest.raises(ModelError, match="cannot be read"):
        GGUFFile(tmp_path)


def test_sizes_of_all_types_are_the_libraries() -> None:
    for kind, (values, nbytes) in gguf.GGML_QUANT_SIZES.items():
        found = tensor_type(int(kind))
        assert found is not None and (found.name, found.values, found.nbytes) == (kind.name, values, nbytes)
    assert tensor_type(4) is None  # no longer in use


def test_every_kind_of_value_is_read(tmp_path: Path) -> None:
    writer = gguf.GGUFWriter(tmp_path / "model.gguf", "llama")
    scalars = {"uint8": 255, "int8": -3, "uint16": 65535, "int16": -9, "uint32": 2**32 - 1, "int32": -7}
    scalars |= {"uint64": 2**64 - 1, "int64": -(2**63)}
    for kind, value in scalars.items():
        getattr(writer, f"add_{kind}")(kind, value)
    writer.add_float32("f32", 0.5)
    writer.add_float64("f64", 0.1)
    writer.add_bool("flag", True)
    writer.add_string("text", "naïve ▁")
    writer.add_array("texts", ["", "ü", "three"])
    writer.add_array("numbers", [1, -2, 3])
    writer.add_array("flags", [True, False])
    add(writer, "t", np.arange(12, dtype=np.float32).reshape(3, 4))
    metadata = (found := GGUFFile(finish(writer, tmp_path / "model.gguf"))).metadata
    assert {kind: metadata.integer(kind) for kind in scalars} == scalars
    assert (metadata.number("f32"), metadata.number("f64"), metadata.flag("flag")) == (0.5, 0.1, True)
    assert (metadata.text("text"), metadata.texts("texts")) == ("naïve ▁", ["", "ü", "three"])
    assert [metadata.text_of("texts", at) for at in range(3)] == ["", "ü", "three"]
    assert (metadata.numbers("numbers"), metadata.numbers("flags")) == ([1, -2, 3], [True, False])
    assert (metadata.integer("absent"), metadata.texts("absent"), metadata.length("texts")) == (None, [], 3)
    assert found.tensors["t"].shape == (3, 4)
    for ask, wanted in [
        (lambda: metadata.integer("text"), "text must be a whole number, not 'naïve ▁'"),
        (lambda: metadata.integer("texts"), "texts must be one value, not a list of 3"),
        (lambda: metadata.number("flag"), "flag must be a number, not True"),
        (lambda: metadata.flag("int8"), "int8 must be true or false, not -3"),
        (lambda: metadata.text("int8"), "int8 must be a text, not -3"),
        (lambda: metadata.texts("int8"), "int8 must be a list, not one value"),
        (lambda: metadata.texts("numbers"), "numbers must be a list of texts"),
        (lambda: metadata.text_of("numbers", 0), "numbers must be a list of texts"),
        (lambda: metadata.numbers("texts"), "texts must be a list of numbers"),
    ]:
        with pytest.raises(ModelError, match=wanted):
            ask()


# -- parts -------------------------------------------------------------------------------------------------------------
@pytest.fixture
def parts(tmp_path: Path) -> list[Path]:
    """A model of three parts, the tensors dealt out; the first has the metadata."""
    whole = GGUFModel(convert(write_model(tmp_path / "tiny"), tmp_path / "whole.gguf", "llama"))
    names = list(whole.tensors)
    paths = [tmp_path / f"model-{number:05d}-of-00003.gguf" for number in (1, 2, 3)]
    for number, path in enumerate(paths):
        writer = gguf.GGUFWriter(path, "llama")
        writer.add_uint16("split.no", number)
        writer.add_uint16("split.count", 3)
        writer.add_int32("split.tensors.count", len(names))
        for name in names[number::3]:
            file, entry = whole.tensors[name]
            add(writer, name, np.frombuffer(file.map, np.float32, -(entry.begin - entry.end) // 4, entry.begin))
        finish(writer, path)
    return paths


def test_any_part_opens_the_whole(parts: list[Path]) -> None:
    names = [set(GGUFModel(path).tensors) for path in parts]
    assert names[0] == names[1] == names[2] and "blk.1.ffn_up.weight" in names[0]
    assert {model_name(path) for path in parts} == {"model"}


def test_parts_that_do_not_belong_together(parts: list[Path]) -> None:
    parts[1].rename(aside := parts[1].with_name("aside"))
    with pytest.raises(ModelError, match=r"lacks 1 of the 3 parts of the model: model-00002-of-00003\.gguf"):
        GGUFModel(parts[2])
    parts[1].write_bytes(parts[2].read_bytes())
    with pytest.raises(ModelError, match="says it is part 3 of 3, but its name says 2 of 3"):
        GGUFModel(parts[0])
    aside.rename(parts[1])
    alone = parts[0].rename(parts[0].with_name("renamed.gguf"))
    with pytest.raises(ModelError, match="says it is part 1 of 3, but its name says 1 of 1"):
        GGUFModel(alone)
    with pytest.raises(ModelError, match="names itself part 9 of 3"):
        GGUFModel(parts[0].with_name("model-00009-of-00003.gguf"))


def test_parts_that_hold_fewer_tensors_than_announced(parts: list[Path]) -> None:
    content = parts[0].read_bytes()
    at = content.index(b"split.tensors.count") + len(b"split.tensors.count") + 4
    parts[0].write_bytes(content[:at] + struct.pack("<i", 999) + content[at + 4 :])
    with pytest.raises(ModelError, match="announces 999 tensors in its 3 parts"):
        GGUFModel(parts[1])


# -- mutations ---------------------------------------------------------------------------------------------------------
def mutated(content: bytes, chance: random.Random) -> bytes:
    """Some damage, mostly in the header: bytes, lengths, types, a missing end, spans that moved."""
    data = bytearray(content)
    for _ in range(chance.choice((1, 1, 1, 2, 5))):
        at = chance.randrange(24 if chance.random() < 0.2 else len(data) // chance.choice((1, 8, 8)))
        match chance.randrange(6):
            case 0:
                data[at] = chance.randrange(256)
            case 1:
                data[at : at + 8] = struct.pack(
                    "<Q", chance.choice((0, 1, 2**16, 2**31, 2**32, 2**63, 2**64 - 1, len(data)))
                )
            case 2:
                data[at : at + 4] = struct.pack("<I", chance.randrange(45))
            case 3:
                del data[max(at, 24) :]
            case 4:
                del data[at : at + chance.randrange(1, 40)]
            case 5:
                data[at:at] = data[: chance.randrange(1, 200)]
        data.extend(bytes(max(0, 25 - len(data))))
    return bytes(data)


def everything(path: Path) -> None:
    """All that is made of a file when a model is loaded from it."""
    model = GGUFModel(path)
    spec = read_spec(config_of(model), to_run=True)
    source = GGUFCheckpoint(path)
    for layer in range(min(2, len(spec.layers))):
        for name, shape in (("self_attn.q_proj", (64, 64)), ("mlp.down_proj", (64, 96)), ("input_layernorm", (64,))):
            source.tensor(f"model.layers.{layer}.{name}.weight", shape)
    source.matrix("model.layers.0.mlp.up_proj.weight", (96, 64))
    Tokenizer.load(path).encode("hello world")


def test_mutated_files_raise_nothing_else_and_take_no_memory(tmp_path: Path) -> None:
    """A thousand of them; of some, that no more memory is taken than the file's size justifies."""

    def kinds(name: str, values: np.ndarray) -> gguf.GGMLQuantizationType:
        return gguf.GGMLQuantizationType.Q4_0 if "attn_q" in name else gguf.GGMLQuantizationType.F16

    original = convert(write_model(tmp_path / "tiny"), tmp_path / "whole.gguf", "llama", kinds).read_bytes()
    path, chance, passed = tmp_path / "mutated.gguf", random.Random(18), 0
    path.write_bytes(original)
    everything(path)  # and imports what it needs
    tracemalloc.start()
    try:
        for number in range(MUTATIONS):
            if number == MEASURED:
                tracemalloc.stop()
            path.write_bytes(content := mutated(original, chance))
            tracemalloc.clear_traces()
            try:
                everything(path)
                passed += 1
            except (ModelError, TokenizerError) as error:
                assert 20 < len(str(error)) < 1000 and "\n" not in str(error)
            assert tracemalloc.get_traced_memory()[1] < 16 * len(content) + 2**21
    finally:
        tracemalloc.stop()
    assert 0 < passed < MUTATIONS / 2  # damage to the weights alone is not seen
