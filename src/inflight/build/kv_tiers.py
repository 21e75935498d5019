"""The folder that an engine's blocks are kept in: where it is, how large it may be, and its identity.

Knows settings, and what of an engine the bits of a block depend on; what is kept and brought back, core and
`execution.tiers` know.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from hashlib import blake2b
from pathlib import Path

import msgspec

from inflight.config.engine import EngineSettings
from inflight.config.setting import SettingsError
from inflight.core.types.sampling import Adapter
from inflight.execution.kv_exchange.block_memory import BlockMemory
from inflight.execution.kv_exchange.description import KVDescription
from inflight.execution.step_activity import StepActivity
from inflight.execution.tiers.block_files import MARK
from inflight.execution.tiers.folder_tier import FolderTier
from inflight.private_files import NotPrivate

GIB = 2**30
DEFAULT_GIB = 10.0


@dataclass(frozen=True, slots=True)
class WantedFolder:
    """A folder that blocks are to be kept in."""

    path: Path
    most_bytes: int

    def open(
        self,
        memory: BlockMemory | None,
        block_size: int,
        description: KVDescription,
        adapter_digest: Callable[[Adapter], str],
        steps: StepActivity,
    ) -> FolderTier:
        """memory: of the engine's blocks. steps: its own. Raises SettingsError."""
        if memory is None:
            raise SettingsError(
                "--kv-cache-dir keeps blocks that lie in this machine's memory, and this device has them elsewhere; "
                "leave it out."
            )
        try:
            identity = _identity(description)
            known = _known(adapter_digest)
            return FolderTier(self.path, self.most_bytes, identity, block_size, memory, known, steps)
        except NotPrivate as error:
            raise SettingsError(f"--kv-cache-dir cannot be used: {error}.") from None
        except OSError as error:
            raise SettingsError(
                f"--kv-cache-dir {self.path} cannot be used ({error.strerror or error}); give a folder that can be "
                "written to."
            ) from error


def wanted_folder(settings: EngineSettings) -> WantedFolder | None:
    """None: none is asked for. Raises SettingsError where it cannot be made."""
    if settings.kv_cache_dir is None:
        return None
    path = Path(settings.kv_cache_dir).expanduser()
    try:
        path.mkdir(parents=True, exist_ok=True, mode=0o700)
    except OSError as error:
        raise SettingsError(f"--kv-cache-dir {path} cannot be made ({error.strerror or error}).") from error
    gib = DEFAULT_GIB if settings.kv_cache_disk is None else settings.kv_cache_disk
    return WantedFolder(path, int(gib * GIB))


def _identity(description: KVDescription) -> bytes:
    """Of what blocks are: the same for two engines whose blocks have the same bits for the same tokens. Names of models
    and the adapters that happen to be loaded make no difference; another form of files does."""
    told = msgspec.structs.replace(description, model="", adapters={})
    return blake2b(MARK + msgspec.json.encode(told), digest_size=16, person=b"inflight-kv-tier").digest()


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
