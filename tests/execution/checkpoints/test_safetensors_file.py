"""The reader against the format's own library, and against files that lie."""

from __future__ import annotations

import json
import sys
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from inflight.execution.checkpoints.safetensors_file import SafetensorsFile
from inflight.models.errors import ModelError


def write(path: Path, header: Any, data: bytes = b"") -> Path:
    text = header if isinstance(header, bytes) else json.dumps(header).encode()
    path.write_bytes(len(text).to_bytes(8, "little") + text + data)
    return path


def tensor(begin: int, end: int, shape: list[int], dtype: str = "F32") -> dict[str, Any]:
    return {"dtype": dtype, "shape": shape, "data_offsets": [begin, end]}


def test_reads_what_the_library_wrote(tmp_path: Path) -> None:
    import torch
    from safetensors.torch import save_file

    values = torch.randn(7, 5)
    given = {
        "wide": values,
        "half": values.half(),
        "brain": values.bfloat16(),
        "scalar": torch.tensor(2.5),
        "ids": torch.arange(4),
        "empty": torch.zeros(0, 3),
    }
    save_file(given, tmp_path / "a.safetensors", metadata={"format": "pt"})
    file = SafetensorsFile(tmp_path / "a.safetensors")
    assert set(file.entries) == set(given)
    assert np.array_equal(file.tensor("wide"), values.numpy())
    assert np.array_equal(file.tensor("half"), values.half().numpy())
    assert np.array_equal(file.tensor("brain"), values.bfloat16().view(torch.uint16).numpy())
    assert file.tensor("scalar") == 2.5
    assert file.tensor("empty").shape == (0, 3)
    assert not file.tensor("wide").flags.writeable
    assert "wide" in file and "absent" not in file
    with pytest.raises(ModelError, match=r"'ids' .* is stored as I64; weights must be BF16, F16 or F32"):
        file.tensor("ids")


def test_unaligned_tensors_are_copied_into_line(tmp_path: Path) -> None:
    header = {"odd": tensor(0, 3, [3], "U8"), "weight": tensor(3, 11, [2])}
    path = write(tmp_path / "a", header, b"abc" + np.array([1.5, -2], np.float32).tobytes())
    got = SafetensorsFile(path).tensor("weight")
    assert got.flags.aligned and got.tolist() == [1.5, -2]


@pytest.mark.skipif(sys.platform != "linux", reason="reads the kernel's account of mapped pages")
def test_release_gives_pages_back(tmp_path: Path) -> None:
    count = 1 << 20
    header = {"a": tensor(0, 4 * count, [count]), "b": tensor(4 * count, 8 * count, [count])}
    path = write(tmp_path / "a.safetensors", header, np.arange(2 * count, dtype=np.float32).tobytes())
    file = SafetensorsFile(path)

    def resident_kib() -> int:
        lines = iter(Path("/proc/self/smaps").read_text().splitlines())
        sizes = [next(rest for rest in lines if rest.startswith("Rss:")) for line in lines if line.endswith(str(path))]
        return sum(int(size.split()[1]) for size in sizes)

    a, b = file.tensor("a"), file.tensor("b")
    total = float(a.sum(dtype=np.float64) + b.sum(dtype=np.float64))
    assert resident_kib() >= 8192
    file.release("a")
    assert resident_kib() <= 4096 + 64
    file.release("b")
    assert resident_kib() <= 64
    assert float(a.sum(dtype=np.float64) + b.sum(dtype=np.float64)) == total, "views read again what they need"


@pytest.mark.parametrize(
    ("header", "data", "sentence"),
    [
        ({"a": tensor(0, 8, [2])}, b"1234", "truncated: its header describes"),
        ({"a": tensor(0, 8, [3])}, b"12345678", r"shape \[3\] and dtype F32 needs 12 bytes, but its offsets 0 to 8"),
        ({"a": tensor(8, 0, [2])}, b"12345678", "needs 8 bytes, but its offsets 8 to 0 span -8"),
        ({"a": tensor(-8, 0, [2])}, b"12345678", r"has shape \[2\] at bytes -8 to 0"),
        ({"a": tensor(0, 8, [2]), "b": tensor(4, 12, [2])}, b"x" * 12, "'b' begins at byte"),
        ({"a": tensor(4, 12, [2])}, b"x" * 12, "'a' begins at byte"),
        ({"a": tensor(0, 8, [2])}, b"x" * 12, "4 bytes belong to no tensor"),
        ({"a": tensor(0, 8, [2], "F7")}, b"12345678", "'a' .* has the unknown dtype 'F7'"),
        ({"a": tensor(0, 8, [2], ["F32"])}, b"12345678", r"has the unknown dtype \['F32'\]"),
        ({"a": tensor(0, 8, [1] * 10**6)}, b"12345678", "has shape a list of 1,000,000 entries"),
        ({"a": tensor(0, 8, [10**60])}, b"12345678", r"has shape \[1000"),
        ({"a": tensor(0, 8, [-2])}, b"12345678", r"has shape \[-2\]"),
        ({"a": tensor(0, 8, "F32")}, b"12345678", "has shape 'F32'"),
        (b"[" * 10**5, b"", "nested too deeply"),
        (b'{"a": ' + b"9" * 5000 + b"}", b"", "a number of thousands of digits"),
        (b'{"a": NaN}', b"", "holds NaN, which is no JSON number"),
        (b'{"a": 1e999}', b"", "holds 1e999, which is no JSON number"),
        ({"a": {"dtype": "F32"}}, b"", "describes tensor 'a' as"),
        ({"a": 7}, b"", "describes tensor 'a' as 7"),
        ([1, 2], b"", "its header holds a JSON list where an object"),
        (b"{nonsense", b"", "its header is not valid JSON"),
        (b"\xff\xfe\x00", b"", "its header cannot be read: it is not UTF-8 at byte 0"),
    ],
)
def test_headers_that_lie(tmp_path: Path, header: Any, data: bytes, sentence: str) -> None:
    with pytest.raises(ModelError, match=sentence):
        SafetensorsFile(write(tmp_path / "bad.safetensors", header, data))


@pytest.mark.parametrize(
    ("content", "sentence"),
    [
        (b"", "truncated: 0 bytes cannot hold a safetensors header"),
        (b"1234", "truncated: 4 bytes"),
        ((500).to_bytes(8, "little") + b"{}", "truncated: its header takes 500 bytes, but the file has only 10"),
        ((2**40).to_bytes(8, "little") + b"{}", "claim a header of 1,099,511,627,776 bytes"),
        (b"version https://git-lfs.github.com/spec/v1", "no safetensors file: its first bytes claim"),
    ],
)
def test_files_that_are_something_else(tmp_path: Path, content: bytes, sentence: str) -> None:
    path = tmp_path / "bad.safetensors"
    path.write_bytes(content)
    with pytest.raises(ModelError, match=sentence):
        SafetensorsFile(path)


def test_a_file_that_is_not_there(tmp_path: Path) -> None:
    with pytest.raises(ModelError, match="cannot be read"):
        SafetensorsFile(tmp_path / "absent.safetensors")
