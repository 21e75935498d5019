"""Files of blocks: each has one block, or one checkpoint, and a head that identifies it.

The head holds a mark, a digest of all that follows, the identity of the engines that may use the block, its name and
its number of bytes. A file is written under another name and renamed, so that no partial file is read. Writing does not
wait for the disk, since the digest detects what a power failure left. A file that is not exactly the requested block is
damaged, and not used. The digest (XXH3, 128 bits) detects damage, not forgery: the folder's owner, who alone may write
to it, is trusted. It is as fast as memory, since steps wait for the core that reads.
"""

from __future__ import annotations

import os
import secrets
import struct
from pathlib import Path

from xxhash import xxh3_128

from inflight.private_files import make_folders, open_private

MARK = b"INFLKV02"  # of this file format
_HEAD = struct.Struct("<16s16s16sQ")  # digest of what follows, identity, name, bytes of the block
HEAD_BYTES = len(MARK) + _HEAD.size


class DamagedFile(ValueError):
    """A file is not the block that its name says; the message says why."""


def file_bytes(block_bytes: int) -> int:
    """Return the disk space of a block's file."""
    return -(-(HEAD_BYTES + block_bytes) // 4096) * 4096


def write_block(path: Path, identity: bytes, name: bytes, content: memoryview) -> None:
    """Write a block's file, or none of it where this raises OSError."""
    head = _HEAD.pack(_digest(identity, name, content), identity, name, len(content))
    aside = path.with_name(f".{path.name}.{secrets.token_hex(8)}")
    try:
        make_folders(path.parent)
        with open(aside, "xb", buffering=0, opener=open_private) as file:
            _write_all(file.fileno(), [memoryview(MARK + head), content])
        os.replace(aside, path)
    except BaseException:
        aside.unlink(missing_ok=True)
        raise


def read_block(path: Path, identity: bytes, name: bytes, into: memoryview) -> None:
    """Read a block's bytes.

    Raises:
        OSError: The file is absent or cannot be read. The bytes must not be used, as with the next.
        DamagedFile: The file is not this block.
    """
    head = bytearray(HEAD_BYTES)
    with open(path, "rb", buffering=0, opener=open_private) as file:
        size = os.fstat(file.fileno()).st_size
        if size != HEAD_BYTES + len(into):
            raise DamagedFile(f"{path} has {size:,} bytes, and a block's file has {HEAD_BYTES + len(into):,}.")
        _read_all(file.fileno(), [memoryview(head), into], path)
    if head[: len(MARK)] != MARK:
        raise DamagedFile(f"{path} does not begin as a block's file does.")
    digest, of_identity, of_name, length = _HEAD.unpack_from(head, len(MARK))
    if of_identity != identity:
        raise DamagedFile(f"{path} is of another model, or of another way to compute it.")
    if of_name != name or length != len(into):
        raise DamagedFile(f"{path} holds another block than its name says.")
    if digest != _digest(identity, name, into):
        raise DamagedFile(f"{path} has been altered since it was written.")


def _digest(identity: bytes, name: bytes, content: memoryview) -> bytes:
    digest = xxh3_128(identity + name + len(content).to_bytes(8, "little"))
    digest.update(content)
    return digest.digest()


def _write_all(file: int, parts: list[memoryview]) -> None:
    while parts:
        written = os.writev(file, parts)
        parts = _rest(parts, written)


def _read_all(file: int, parts: list[memoryview], path: Path) -> None:
    while parts:
        read = os.readv(file, parts)
        if not read:
            raise DamagedFile(f"{path} was truncated while it was read.")
        parts = _rest(parts, read)


def _rest(parts: list[memoryview], done: int) -> list[memoryview]:
    """Return the parts behind the first `done` bytes."""
    while parts and done >= len(parts[0]):
        done -= len(parts[0])
        parts = parts[1:]
    return [parts[0][done:], *parts[1:]] if parts else []
