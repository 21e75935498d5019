"""Files of blocks: what was written is read, and nothing else ever is."""

from __future__ import annotations

import random
from pathlib import Path

import pytest

from inflight.execution.kv.offload.block_files import HEAD_BYTES, DamagedFile, read_block, write_block

ONE, OTHER = b"1" * 16, b"2" * 16
NAME, ANOTHER = b"a" * 16, b"b" * 16
SIZE = 600


def content(seed: int) -> bytes:
    return random.Random(seed).randbytes(SIZE)


def read(path: Path, identity: bytes = ONE, name: bytes = NAME) -> bytes:
    into = bytearray(SIZE)
    read_block(path, identity, name, memoryview(into))
    return bytes(into)


def write(path: Path, seed: int = 0, identity: bytes = ONE, name: bytes = NAME) -> Path:
    write_block(path, identity, name, memoryview(content(seed)))
    return path


def test_what_was_written_is_read_by_its_owner(tmp_path: Path) -> None:
    path = write(tmp_path / "aa" / "file.kv")
    assert read(path) == content(0)
    assert path.stat().st_mode & 0o777 == 0o600
    assert [one.name for one in path.parent.iterdir()] == ["file.kv"], "nothing is left beside it"


def test_nothing_is_left_of_what_cannot_be_written(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def full(file: int, parts: object) -> int:
        raise OSError(28, "No space left on device")

    monkeypatch.setattr("os.writev", full)
    with pytest.raises(OSError, match="No space left"):
        write(tmp_path / "file.kv")
    assert list(tmp_path.iterdir()) == []


def test_no_link_is_followed(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("secrets.token_hex", lambda nbytes: "guessed")
    target = write(tmp_path / "target.kv")
    (tmp_path / ".file.kv.guessed").symlink_to(target)
    with pytest.raises(FileExistsError):
        write(tmp_path / "file.kv", seed=1)
    (tmp_path / "file.kv").symlink_to(target)
    with pytest.raises(OSError):
        read(tmp_path / "file.kv")
    assert read(target) == content(0)


def flipped(bytes_: bytes, dice: random.Random) -> bytes:
    """Up to eight bits, anywhere."""
    damaged = bytearray(bytes_)
    for place in dice.sample(range(8 * len(damaged)), dice.randint(1, 8)):
        damaged[place // 8] ^= 1 << place % 8
    return bytes(damaged)


def cut(bytes_: bytes, dice: random.Random) -> bytes:
    return bytes_[: dice.randrange(len(bytes_))]


def emptied(bytes_: bytes, dice: random.Random) -> bytes:
    """As a power failure leaves them: pages of zeros."""
    first = dice.randrange(len(bytes_) - 1)
    zeros = dice.randint(1, len(bytes_) - first)
    damaged = bytes_[:first] + bytes(zeros) + bytes_[first + zeros :]
    return damaged if damaged != bytes_ else b""


def lengthened(bytes_: bytes, dice: random.Random) -> bytes:
    return bytes_ + dice.randbytes(dice.randint(1, 64))


def shuffled(bytes_: bytes, dice: random.Random) -> bytes:
    """Two pieces have changed places."""
    first, second = sorted(dice.sample(range(HEAD_BYTES, len(bytes_) - 8, 8), 2))
    one, two = bytes_[first : first + 8], bytes_[second : second + 8]
    return bytes_[:first] + two + bytes_[first + 8 : second] + one + bytes_[second + 8 :]


def test_of_a_thousand_damaged_files_none_is_read(tmp_path: Path) -> None:
    dice = random.Random(0)
    whole = write(tmp_path / "file.kv").read_bytes()
    kinds = (flipped, cut, emptied, lengthened, shuffled)
    for turn in range(1000):
        damaged = kinds[turn % len(kinds)](whole, dice)
        assert damaged != whole
        (tmp_path / "file.kv").write_bytes(damaged)
        with pytest.raises(DamagedFile):
            read(tmp_path / "file.kv")


def test_a_whole_file_of_another_block_or_another_model_is_not_read(tmp_path: Path) -> None:
    with pytest.raises(DamagedFile, match="another block"):
        read(write(tmp_path / "swapped.kv", 1, name=ANOTHER))
    with pytest.raises(DamagedFile, match="another model"):
        read(write(tmp_path / "strange.kv", 1, identity=OTHER))


def test_a_head_taken_from_another_file_does_not_make_it_whole(tmp_path: Path) -> None:
    mine, theirs = write(tmp_path / "a.kv", 0).read_bytes(), write(tmp_path / "b.kv", 1).read_bytes()
    (tmp_path / "a.kv").write_bytes(mine[:HEAD_BYTES] + theirs[HEAD_BYTES:])
    with pytest.raises(DamagedFile, match="altered"):
        read(tmp_path / "a.kv")


def test_no_file_is_no_damage(tmp_path: Path) -> None:
    with pytest.raises(FileNotFoundError):
        read(tmp_path / "gone.kv")
