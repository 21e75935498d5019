"""A folder of blocks: kept and found, bounded, shared, and no harm where it fails."""

from __future__ import annotations

import errno
import itertools
import logging
import os
import random
import shutil
import threading
import time
from collections.abc import Iterator
from pathlib import Path

import pytest

from inflight.core.types.kv_blocks import SharedRoot, block_hash
from inflight.core.types.plan import Transfer
from inflight.core.types.request import Request
from inflight.core.types.sampling import Adapter
from inflight.execution.kv.block_memory import BlockMemory, KVMemory
from inflight.execution.kv.offload import folder_tier
from inflight.execution.kv.offload.block_files import file_bytes
from inflight.execution.kv.offload.folder_index import FOLDER
from inflight.execution.kv.offload.folder_tier import TIER, FolderTier
from inflight.execution.step_progress import StepActivity
from inflight.private_files import NotPrivate

SIZE, BLOCK_BYTES, STATE_BYTES = 4, 256, 5000
STATE_GROUP = 2
ROOT = SharedRoot("", None)
TOKENS = tuple(range(16))
REQUEST = Request(request_id="r", prompt_token_ids=TOKENS)
OPEN: list[FolderTier] = []
SEEDS = itertools.count()
"""No two engines hold the same bytes."""


@pytest.fixture(autouse=True)
def closed() -> Iterator[None]:
    yield
    while OPEN:
        OPEN.pop().close()


class Engine:
    """Blocks of memory, and a folder for them."""

    def __init__(self, folder: Path, identity: bytes = b"i" * 16, blocks: int = 1000, **more: object):
        content = random.Random(next(SEEDS))
        self.memory = bytearray(content.randbytes(16 * BLOCK_BYTES))
        self.states = bytearray(content.randbytes(3 * STATE_BYTES))
        blocks_memory = BlockMemory(memoryview(self.memory), BLOCK_BYTES)
        memory = KVMemory(blocks_memory, STATE_GROUP, BlockMemory(memoryview(self.states), STATE_BYTES))
        most = blocks * file_bytes(BLOCK_BYTES)
        self.tier = FolderTier(folder, most, identity, memory, **more)  # type: ignore[arg-type]
        OPEN.append(self.tier)
        self._transfer_id = 0

    def block(self, at: int) -> bytes:
        return bytes(self.memory[at * BLOCK_BYTES : (at + 1) * BLOCK_BYTES])

    def names(self, root: SharedRoot = ROOT, tokens: tuple[int, ...] = TOKENS) -> list[int]:
        """Return the names of a chain's blocks, as they are stored."""
        before = self.tier.root(root)
        assert before is not None
        found = []
        for start in range(0, len(tokens), SIZE):
            before = block_hash(before, tokens[start : start + SIZE])
            found.append(int.from_bytes(before))
        return found

    def transfer(
        self, kind: str, blocks: tuple[int, ...], numbers: tuple[int, ...], groups: tuple[int, ...] = ()
    ) -> str | None:
        """Its error."""
        self._transfer_id += 1
        self.tier.begin(Transfer(self._transfer_id, kind, TIER, blocks, numbers, groups))  # type: ignore[arg-type]
        while not (ended := self.tier.poll()):
            assert ended is not None
            time.sleep(0.001)
        (one,) = ended
        assert one.transfer_id == self._transfer_id
        return one.error

    def keep(self, blocks: tuple[int, ...] = (0, 1, 2, 3), **chain: object) -> tuple[int, ...]:
        """Store a chain; returns its names."""
        numbers = tuple(self.names(**chain))  # type: ignore[arg-type]
        assert self.transfer("store", blocks, numbers[: len(blocks)]) is None
        return numbers

    def found(self, held: int = 0, root: SharedRoot = ROOT, tokens: tuple[int, ...] = TOKENS) -> tuple[int, ...]:
        chain = self.tier.chain(REQUEST, root)
        behind = self.names(root, tokens)[held:] if chain is not None else []
        return tuple(itertools.takewhile(lambda number: chain.has(0, 0, number), behind))


def alter(path: Path) -> None:
    """One bit of its last byte."""
    content = path.read_bytes()
    path.write_bytes(content[:-1] + bytes((content[-1] ^ 1,)))


def test_what_one_engine_keeps_another_finds_after_a_restart(tmp_path: Path) -> None:
    first = Engine(tmp_path)
    numbers = first.keep()
    second = Engine(tmp_path)
    assert second.found() == numbers and second.found(held=2) == numbers[2:]
    assert second.transfer("load", (7, 8, 9, 10), numbers) is None
    assert [second.block(at) for at in (7, 8, 9, 10)] == [first.block(at) for at in range(4)]


def test_blocks_of_several_groups_and_checkpoints_come_back(tmp_path: Path) -> None:
    first, second = Engine(tmp_path), Engine(tmp_path)
    numbers, groups = (1, 2, 3), (0, 1, STATE_GROUP)
    assert first.transfer("store", (4, 5, 2), numbers, groups) is None
    assert first.tier.index.nbytes == 2 * file_bytes(BLOCK_BYTES) + file_bytes(STATE_BYTES)
    other = Engine(tmp_path, b"j" * 16)
    other.keep()
    for engine in (first, other):
        engine.tier.index.scan()
    sizes = [one.tier.index.own_bytes for one in (first, other)]
    assert sizes == [2 * file_bytes(BLOCK_BYTES) + file_bytes(STATE_BYTES), 4 * file_bytes(BLOCK_BYTES)]
    first.tier.index.remove(numbers[2])
    assert first.tier.stats().own_bytes == 2 * file_bytes(BLOCK_BYTES)
    assert second.transfer("load", (8, 9, 0), numbers, groups) is None
    assert (second.block(8), second.block(9)) == (first.block(4), first.block(5))
    assert second.states[:STATE_BYTES] == first.states[2 * STATE_BYTES :]
    with pytest.raises(IndexError):
        first.transfer("store", (3,), (4,), (STATE_GROUP,))


def test_a_chain_is_found_up_to_its_first_gap(tmp_path: Path) -> None:
    engine = Engine(tmp_path)
    numbers = engine.keep()
    assert engine.found(tokens=(*TOKENS[:8], 99, 98, 97, 96)) == numbers[:2]
    engine.tier.index.remove(numbers[1])
    assert engine.found() == numbers[:1] and engine.found(held=2) == numbers[2:]


def test_nothing_is_found_under_another_salt_adapter_or_model(tmp_path: Path) -> None:
    engine = Engine(tmp_path, adapter_digest=lambda adapter: adapter.path)
    engine.keep()
    for root in (SharedRoot("other", None), SharedRoot("", Adapter("a", "x")), SharedRoot("", Adapter("", ""))):
        assert engine.found(root=root) == ()
    adapted = SharedRoot("", Adapter("a", "x"))
    engine.keep(root=adapted)
    assert engine.found(root=SharedRoot("", Adapter("a", "x", 5))), "numbers are a process's own"
    assert not engine.found(root=SharedRoot("", Adapter("a", "other files")))
    assert Engine(tmp_path, identity=b"other" + b"." * 11).found() == ()


def test_of_an_adapter_whose_files_are_not_known_nothing_is_kept(tmp_path: Path) -> None:
    engine = Engine(tmp_path)
    assert engine.tier.root(SharedRoot("", Adapter("a", "x"))) is None
    assert engine.found(root=SharedRoot("", Adapter("a", "x"))) == ()


def test_the_folder_stays_within_its_bound_and_what_was_used_last_stays(tmp_path: Path) -> None:
    engine = Engine(tmp_path, blocks=6)
    first = engine.keep()
    other = engine.keep(tokens=tuple(range(100, 116)))
    files = sum(-(-one.stat().st_size // 4096) * 4096 for one in tmp_path.rglob("*.kv"))
    assert files == engine.tier.index.nbytes <= 6 * file_bytes(BLOCK_BYTES)
    assert engine.found(tokens=tuple(range(100, 116))) == other
    assert len(engine.found()) < len(first) and engine.tier.index.num_evicted == 2


def test_what_is_of_other_models_counts_and_gives_way_too(tmp_path: Path) -> None:
    Engine(tmp_path, identity=b"other" + b"." * 11).keep()
    engine = Engine(tmp_path, blocks=5)
    assert engine.tier.index.num_blocks == 0 and engine.tier.index.nbytes == 4 * file_bytes(BLOCK_BYTES)
    numbers = engine.keep()
    assert engine.found() == numbers and engine.tier.index.nbytes <= 5 * file_bytes(BLOCK_BYTES)


def test_two_engines_share_a_folder_and_bear_each_others_evictions(tmp_path: Path) -> None:
    writer, reader = Engine(tmp_path), Engine(tmp_path)
    numbers = writer.keep()
    assert reader.found() == ()
    reader.tier.index.scan()
    assert reader.found() == numbers
    for path in tmp_path.rglob("*.kv"):
        path.unlink()
    assert "cannot be read" in (reader.transfer("load", (4, 5), numbers[:2]) or "")
    assert reader.found() == (), "it is not asked for again"


def test_a_damaged_file_is_taken_away_and_its_block_not_touched(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    engine = Engine(tmp_path)
    numbers = engine.keep()
    path = engine.tier.index.path(numbers[0])
    alter(path)
    before = engine.block(9)
    with caplog.at_level(logging.WARNING):
        assert "altered" in (engine.transfer("load", (9,), numbers[:1]) or "")
    assert engine.block(9) == before and not path.exists() and "is deleted" in caplog.text
    assert engine.tier.counts.damaged == 1 and engine.found() == ()


def test_files_that_have_changed_places_are_not_read(tmp_path: Path) -> None:
    engine = Engine(tmp_path)
    numbers = engine.keep()
    one, two = (engine.tier.index.path(number) for number in numbers[:2])
    first = one.read_bytes()
    one.write_bytes(two.read_bytes())
    two.write_bytes(first)
    assert "another block" in (engine.transfer("load", (9, 10), numbers[:2]) or "")


def test_a_full_disk_is_logged_once_and_the_engine_goes_on(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    engine = Engine(tmp_path)

    def full(*args: object) -> None:
        raise OSError(28, "No space left on device")

    monkeypatch.setattr(folder_tier, "write_block", full)
    names = engine.names()
    with caplog.at_level(logging.WARNING):
        for number in names[:2]:
            assert "No space left" in (engine.transfer("store", (0,), (number,)) or "")
    assert caplog.text.count("cannot be written to") == 1 and engine.tier.counts.write_errors == 2
    assert not engine.tier.wants(names[0]), "it rests for a while"
    monkeypatch.undo()
    monkeypatch.setattr(engine.tier, "_no_writes_before", 0.0)
    assert engine.tier.wants(names[0])
    engine.keep()


def test_a_disk_that_hangs_fails_its_transfer_and_never_touches_its_blocks_again(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    engine = Engine(tmp_path)
    numbers = engine.keep()
    waits, goes_on = [], []

    def hang(path: Path, identity: bytes, name: bytes, into: memoryview) -> None:
        waits.append(path)
        while not goes_on:
            time.sleep(0.001)
        into[:] = b"?" * len(into)

    monkeypatch.setattr(folder_tier, "read_block", hang)
    monkeypatch.setattr(folder_tier, "TIME_LIMIT", 0.05)
    before = engine.block(9)
    assert "has not answered" in (engine.transfer("load", (9,), numbers[:1]) or "")
    assert engine.found() == () and not engine.tier.wants(7), "it is left alone for a while"
    goes_on.append(True)
    time.sleep(0.05)
    assert waits and engine.block(9) == before


def test_a_transfer_of_which_something_comes_again_and_again_is_waited_for(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """However long it takes in all, and those behind it, too."""
    engine = Engine(tmp_path)
    numbers = engine.keep()
    read_block = folder_tier.read_block

    def slow(path: Path, identity: bytes, name: bytes, into: memoryview) -> None:
        time.sleep(0.15)
        read_block(path, identity, name, into)

    monkeypatch.setattr(folder_tier, "read_block", slow)
    monkeypatch.setattr(folder_tier, "TIME_LIMIT", 0.4)
    for transfer_id, blocks in ((1, (4, 5, 6, 7)), (2, (8, 9, 10, 11)), (3, (12, 13, 14, 15))):
        engine.tier.begin(Transfer(transfer_id, "load", TIER, blocks, numbers))
    ended: list[str | None] = []
    while (polled := engine.tier.poll()) is not None:
        ended += [one.error for one in polled]
        time.sleep(0.001)
    assert ended == [None] * 3
    assert [engine.block(at) for at in range(12, 16)] == [engine.block(at) for at in range(4)]


def test_files_are_read_one_by_one_and_slowly_while_steps_are_computed(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """They use the cores that the steps do."""
    rests, reading, together = [], [], []

    class Watched(StepActivity):
        def await_gap(self, worked: float, times: float, longest: float) -> None:
            rests.append(worked)
            assert worked > 0 and times >= 20

    assert folder_tier._MAX_REST <= 0.1
    monkeypatch.setattr(folder_tier, "_MAX_REST", 60.0)  # on a busy machine a file may take longer
    read_block, both = folder_tier.read_block, threading.Barrier(2)

    def watched(path: Path, identity: bytes, name: bytes, into: memoryview) -> None:
        reading.append(name)
        together.append(len(reading))
        if not steps.is_going_on:
            both.wait(30.0)
        read_block(path, identity, name, into)
        reading.remove(name)

    steps = Watched()
    engine = Engine(tmp_path, steps=steps)
    numbers = engine.keep()
    monkeypatch.setattr(folder_tier, "read_block", watched)
    assert engine.transfer("load", (7, 8, 9, 10), numbers) is None
    assert max(together) == 2, "both threads read at once, since nothing else has the cores"
    together.clear()
    steps.began(computes=True)
    assert engine.transfer("load", (7, 8, 9, 10), numbers) is None
    assert together == [1] * 4 and len(rests) == 4, "two threads read two blocks each, and rest between them"


def test_a_file_that_hangs_while_steps_are_computed_does_not_keep_others_from_being_read(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    steps, goes_on = StepActivity(), threading.Event()
    engine = Engine(tmp_path, steps=steps)
    numbers = engine.keep()
    read_block = folder_tier.read_block

    def first_hangs(path: Path, identity: bytes, name: bytes, into: memoryview) -> None:
        if int.from_bytes(name) == numbers[0]:
            goes_on.wait(10)
        read_block(path, identity, name, into)

    monkeypatch.setattr(folder_tier, "read_block", first_hangs)
    steps.began(computes=True)
    engine.tier.begin(Transfer(100, "load", TIER, (4,), numbers[:1]))
    assert engine.transfer("load", (8, 9, 10), numbers[1:]) is None
    goes_on.set()


def test_what_is_written_is_no_sign_that_anything_is_read(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    engine = Engine(tmp_path)
    numbers = engine.keep()
    goes_on = threading.Event()
    monkeypatch.setattr(folder_tier, "read_block", lambda *of: goes_on.wait(10))
    monkeypatch.setattr(folder_tier, "TIME_LIMIT", 0.2)
    monkeypatch.setattr(folder_tier, "_PAUSE", 0.0)
    for transfer_id in (100, 101):
        engine.tier.begin(Transfer(transfer_id, "load", TIER, (4, 5), numbers[:2]))
    ended: dict[int, str | None] = {}
    others = iter(range(1000, 100_000, 4))
    last = time.monotonic() + 5
    while len(ended) < 2 and time.monotonic() < last:
        tokens = tuple(range(at := next(others), at + 4))
        engine.tier.begin(Transfer(at, "store", TIER, (12,), tuple(engine.names(tokens=tokens))))
        time.sleep(0.02)
        ended.update({one.transfer_id: one.error for one in engine.tier.poll() or () if one.transfer_id < 1000})
    goes_on.set()
    assert [ended.get(transfer_id, "") for transfer_id in (100, 101)] == [
        "The folder of blocks has not answered for 0.2 s."
    ] * 2


def test_a_folder_that_may_not_be_written_is_read_all_the_same(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    engine = Engine(tmp_path)
    numbers = engine.keep()

    def refused(path: object) -> None:
        raise OSError(errno.EROFS, os.strerror(errno.EROFS))

    monkeypatch.setattr(os, "utime", refused)
    assert engine.transfer("load", (7, 8, 9, 10), numbers) is None
    assert engine.found() == numbers, "they are as good as before"


def test_what_cannot_be_taken_away_stays_and_others_are_evicted(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    engine = Engine(tmp_path, blocks=4)
    kept = {engine.tier.index.path(number) for number in engine.keep()[:2]}
    unlink = Path.unlink

    def refused(path: Path, missing_ok: bool = False) -> None:
        if path in kept:
            raise PermissionError(errno.EPERM, os.strerror(errno.EPERM))
        unlink(path, missing_ok=missing_ok)

    monkeypatch.setattr(Path, "unlink", refused)
    engine.keep(tokens=tuple(range(100, 116)), blocks=(0, 1))
    assert engine.found(tokens=tuple(range(100, 116))) and all(path.exists() for path in kept)
    kept.update(tmp_path.rglob("*.kv"))
    with caplog.at_level(logging.WARNING):
        other = tuple(range(200, 216))
        assert "none of its files can be deleted" in (
            engine.transfer("store", (0,), tuple(engine.names(tokens=other)[:1])) or ""
        )
    assert "cannot be written to" in caplog.text


def test_a_damaged_file_that_cannot_be_taken_away_is_reported(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    engine = Engine(tmp_path)
    numbers = engine.keep()
    path = engine.tier.index.path(numbers[0])
    alter(path)

    def refused(path: Path, missing_ok: bool = False) -> None:
        raise OSError(errno.EROFS, os.strerror(errno.EROFS))

    monkeypatch.setattr(Path, "unlink", refused)
    with caplog.at_level(logging.WARNING):
        assert "altered" in (engine.transfer("load", (9,), numbers[:1]) or "")
    assert "cannot be deleted (Read-only file system)" in caplog.text and engine.found() == ()


def test_a_folder_that_was_taken_away_is_empty_and_made_again(tmp_path: Path) -> None:
    engine = Engine(tmp_path)
    numbers = engine.keep()
    shutil.rmtree(tmp_path / FOLDER)
    engine.tier.index.scan()
    assert engine.found() == () and engine.tier.index.nbytes == 0
    engine.keep()
    assert engine.found() == numbers


def test_a_folder_in_the_place_of_a_file_is_no_block(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    engine = Engine(tmp_path, blocks=4)
    numbers = engine.keep()
    path = engine.tier.index.path(numbers[0])
    path.unlink()
    (path / "foreign").mkdir(parents=True)
    engine.tier.index.scan()
    assert engine.found() == () and engine.tier.index.num_blocks == 3
    assert engine.tier.wants(numbers[0])
    engine.keep()
    assert not engine.tier.wants(numbers[0]), "it is not tried again with each step"
    assert f"{path} cannot be written (Is a directory); remove that folder" in caplog.text
    engine.keep(tokens=tuple(range(100, 116)))
    assert engine.found(tokens=tuple(range(100, 116))), "it keeps nothing else from being written"


@pytest.mark.parametrize("depth", [1, 2], ids=["all models", "one model"])
def test_a_folder_of_others_is_refused(tmp_path: Path, depth: int) -> None:
    """A link may lead anywhere, and who may write blocks makes answers."""
    Engine(tmp_path)
    own = tmp_path / FOLDER if depth == 1 else tmp_path / FOLDER / (b"i" * 16).hex()
    own.chmod(0o777)
    with pytest.raises(NotPrivate, match=f"others may write to {own} .mode 0777.; run `chmod go-w"):
        Engine(tmp_path)
    own.rename(tmp_path / "elsewhere")
    own.symlink_to(tmp_path / "elsewhere")
    with pytest.raises(NotPrivate, match="a link or a file"):
        Engine(tmp_path)


def test_a_place_that_others_may_write_to_is_warned_of(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    """Volumes of containers are such places."""
    Engine(tmp_path)
    assert caplog.messages == []
    tmp_path.chmod(0o777)
    Engine(tmp_path)
    assert [f"chmod go-w {tmp_path}" in one for one in caplog.messages] == [True]
