"""The tiers of an engine's blocks: which are asked for, whether the engine can have them, and the folder's identity.

Knows settings and what of them the bits of a block depend on; what is kept and brought back, core and
`execution.tiers` know.
"""

from __future__ import annotations

from collections.abc import Callable
from concurrent.futures import Future, ThreadPoolExecutor
from dataclasses import dataclass
from hashlib import blake2b
from pathlib import Path

import msgspec

from inflight.config.engine import EngineSettings
from inflight.config.setting import SettingsError
from inflight.core.types.adapter import Adapter
from inflight.execution.kv_exchange.block_memory import BlockMemory
from inflight.execution.kv_exchange.description import KVDescription
from inflight.execution.tiers.folder_tier import FolderTier
from inflight.execution.tiers.model_digest import model_digest
from inflight.models.gguf.gguf_model import GGUFModel

GIB = 2**30
DEFAULT_GIB = 10.0
_SUFFIXES = (".safetensors", ".gguf")


@dataclass(frozen=True, slots=True)
class WantedFolder:
    """A folder that blocks are to be kept in. digest: of the model's files, computed while weights are read."""

    path: Path
    most_bytes: int
    digest: Future[bytes]

    def open(
        self,
        memory: BlockMemory | None,
        block_size: int,
        description: KVDescription,
        adapter_digest: Callable[[Adapter], str],
    ) -> FolderTier:
        """memory: of the engine's blocks. Raises SettingsError."""
        if memory is None:
            raise SettingsError(
                "--kv-cache-dir keeps blocks that lie in this machine's memory, and this device has them elsewhere; "
                "leave it out."
            )
        try:
            identity = _identity(description, self.digest.result())
            return FolderTier(self.path, self.most_bytes, identity, block_size, memory, _known(adapter_digest))
        except OSError as error:
            raise SettingsError(
                f"--kv-cache-dir {self.path} cannot be used ({error.strerror or error}); give a folder that can be "
                "written to."
            ) from error


def wanted_folder(settings: EngineSettings, files: Path | GGUFModel) -> WantedFolder | None:
    """None: none is asked for. Raises SettingsError where it cannot be made."""
    if settings.kv_cache_dir is None:
        return None
    path = Path(settings.kv_cache_dir).expanduser()
    try:
        path.mkdir(parents=True, exist_ok=True, mode=0o700)
    except OSError as error:
        raise SettingsError(f"--kv-cache-dir {path} cannot be made ({error.strerror or error}).") from error
    paths = [] if settings.load_format == "dummy" else _files(files)
    with ThreadPoolExecutor(1, "digest") as aside:
        digest = aside.submit(model_digest, paths, path)
        aside.shutdown(wait=False)
    gib = DEFAULT_GIB if settings.kv_cache_disk is None else settings.kv_cache_disk
    return WantedFolder(path, int(gib * GIB), digest)


def check_folder(settings: EngineSettings, windows: tuple[int, ...], whole_texts: bool, has_state: bool) -> None:
    """Whether blocks of one kind are all that a sequence goes on behind. windows: of the KV groups. Raises
    SettingsError."""
    if settings.kv_cache_dir is None:
        return
    if whole_texts:
        raise SettingsError("--kv-cache-dir keeps prefixes, and this model computes whole texts; leave it out.")
    if windows != (0,):
        raise SettingsError(
            f"--kv-cache-dir keeps blocks of one KV group, and this model has {len(windows)} (windows of "
            f"{', '.join(map(str, windows))} tokens, where 0 is all); leave it out."
        )
    if has_state:
        raise SettingsError(
            "--kv-cache-dir keeps keys and values, and layers of this model keep a recurrent state as well, which it "
            "does not; leave it out."
        )


def _files(files: Path | GGUFModel) -> list[Path]:
    """With the model's numbers; all else that blocks depend on is in their description."""
    if isinstance(files, GGUFModel):
        return [one.path for one in files.files]
    return [one for one in files.iterdir() if one.suffix in _SUFFIXES] if files.is_dir() else [files]


def _identity(description: KVDescription, digest: bytes) -> bytes:
    """Of what blocks are: the same for two engines whose blocks have the same bits for the same tokens. Names of models
    and the adapters that happen to be loaded make no difference."""
    told = msgspec.structs.replace(description, model="", adapters={})
    return blake2b(msgspec.json.encode(told) + digest, digest_size=16, person=b"inflight-kv-tier").digest()


def _known(digest: Callable[[Adapter], str]) -> Callable[[Adapter], str | None]:
    """Of an adapter's files, which are read once; None where they cannot be."""
    known: dict[Adapter, str | None] = {}

    def of(adapter: Adapter) -> str | None:
        if adapter not in known:
            try:
                known[adapter] = digest(adapter)
            except OSError:
                known[adapter] = None
        return known[adapter]

    return of
