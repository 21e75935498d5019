"""An engine's blocks beyond its device: what their bits depend on, the folder they are stored in, and its peers."""

from __future__ import annotations

from concurrent.futures import Future, ThreadPoolExecutor
from dataclasses import dataclass
from hashlib import blake2b
from pathlib import Path

import msgspec

from inflight.build.limits import Limits
from inflight.config.engine import EngineSettings
from inflight.config.setting import SettingsError
from inflight.core.types.kv_transfer import KVTransferOptions
from inflight.core.types.sampling import Adapter
from inflight.execution.backends.protocol import Device, KVShape
from inflight.execution.checkpoints.files_digest import computed_files, files_digest
from inflight.execution.kv.block_memory import KVMemory
from inflight.execution.kv.offload.block_files import MARK
from inflight.execution.kv.offload.folder_tier import FolderTier
from inflight.execution.kv.transfer.description import KVDescription
from inflight.execution.kv.transfer.peer_transfers import KVTransferError, PeerTransfers
from inflight.execution.memory import GIB
from inflight.execution.step_progress import StepActivity
from inflight.frontend.adapter_names import AdapterNames
from inflight.models.gguf.gguf_model import GGUFModel
from inflight.models.spec import ModelSpec
from inflight.peer_secret import PeerSecret
from inflight.private_files import NotPrivate

_INT8 = "int8 with mixed channels of keys"  # by `channel_mixing`; earlier versions stored keys as they are
_MIXED = " with mixed spans"  # of weights by `grouped.hold_mixed`; earlier versions rounded them as they are
_LENGTH_CHANGES = ("dynamic", "longrope")  # rotations that depend on the longest sequence that an engine allows
DEFAULT_GIB = 10.0


def describe_kv(
    release: str,
    settings: EngineSettings,
    limits: Limits,
    spec: ModelSpec,
    backend: Device,
    shape: KVShape,
    windows: tuple[int, ...],
    digest: str,
) -> KVDescription:
    """Describe everything that the bits of a block depend on, without adapters, which come and go.

    Args:
        release: of this program.
        windows: of KV groups.
        digest: of the model's files.
    """
    rule = _MIXED if limits.quantization.startswith("int8") else ""
    quantized = limits.quantization + rule, settings.quantization_group_size
    follows = settings.backend == "transformers" or any(one.kind in _LENGTH_CHANGES for one in spec.ropes)
    length = limits.max_model_len if follows else 0
    return KVDescription(
        release=release,
        model=settings.model or "built-in",
        weights=_digest(repr((digest, spec, quantized, length))),
        dtype=backend.dtype,
        kv_format=("fp8" if shape.is_fp8 else _INT8) if shape.quantized else backend.dtype,
        kernels=_kernels(backend),
        layers=_digest(repr(shape.layers)),
        block_size=shape.block_size,
        block_bytes=backend.bytes_per_block(shape),
        tensor_parallel=settings.tensor_parallel_size,
        windows=windows,
    )


def submit_model_digest(settings: EngineSettings, files: Path | GGUFModel, remembered: Path | None) -> Future[str]:
    """Digest the model's files in a thread while weights are packed. remembered: as in `files_digest`."""

    def read() -> str:
        if settings.load_format == "dummy":
            return f"dummy {settings.seed}"
        found = [one.path for one in files.files] if isinstance(files, GGUFModel) else computed_files(files)
        return files_digest(found, remembered)

    with ThreadPoolExecutor(1, "digest") as aside:
        digest = aside.submit(read)
        aside.shutdown(wait=False)
    return digest


class KVIdentity:
    """The identity of an engine's blocks, for its folder and its peers; adapters come and go."""

    def __init__(self, description: KVDescription) -> None:
        self._description = description
        self._model = msgspec.json.encode(msgspec.structs.replace(description, model="", adapters={}))
        self._digests: dict[Adapter, str | None] = {}  # of files, which are read once
        self.adapters: AdapterNames | None = None  # None until the engine has them

    def describe(self) -> KVDescription:
        """Return the description with the adapters that are loaded now."""
        adapters = () if self.adapters is None else self.adapters.all
        digests = {one.name: self._adapter_digest(one) for one in adapters}
        return msgspec.structs.replace(self._description, adapters=digests)

    def fingerprint(self, adapter: Adapter | None) -> bytes:
        """Return the cache fingerprint that peers share: the model, how it is computed, and the adapter's files."""
        digest = b"" if adapter is None else self._adapter_digest(adapter).encode()
        return blake2b(self._model + digest, digest_size=16, person=b"inflight-kv-peer").digest()

    def folder_fingerprint(self) -> bytes:
        """Return the fingerprint of a folder's blocks, which changes with the form of its files, too."""
        return blake2b(MARK + self._model, digest_size=16, person=b"inflight-kv-tier").digest()

    def adapter_digest(self, adapter: Adapter) -> str | None:
        """Return the digest of an adapter's files, None where they cannot be read."""
        if adapter not in self._digests:
            try:
                self._digests[adapter] = files_digest(computed_files(Path(adapter.path)))
            except OSError:
                self._digests[adapter] = None
        return self._digests[adapter]

    def _adapter_digest(self, adapter: Adapter) -> str:
        """Return the digest; of files that are gone by now, one that no peer has."""
        return self.adapter_digest(adapter) or f"gone {id(self)} {adapter.number}"


@dataclass(frozen=True, slots=True)
class KVFolderSettings:
    """A folder that blocks are stored in, and how much it may take."""

    path: Path
    max_bytes: int

    def open(self, memory: KVMemory | None, identity: KVIdentity, steps: StepActivity) -> FolderTier:
        """Open the folder. memory: of the engine's blocks and checkpoints. Raises SettingsError."""
        if memory is None:
            raise SettingsError(
                "--kv-cache-dir stores blocks of this machine's memory, and this device has them elsewhere; leave it "
                "out."
            )
        fingerprint, digest = identity.folder_fingerprint(), identity.adapter_digest
        try:
            return FolderTier(self.path, self.max_bytes, fingerprint, memory, digest, steps)
        except NotPrivate as error:
            raise SettingsError(f"--kv-cache-dir cannot be used: {error}.") from None
        except OSError as error:
            raise SettingsError(
                f"--kv-cache-dir {self.path} cannot be used ({error.strerror or error}); give a folder that can be "
                "written to."
            ) from error


def make_folder(settings: EngineSettings) -> KVFolderSettings | None:
    """Make the folder of `--kv-cache-dir`; None: it is not set. Raises SettingsError where it cannot be made."""
    if settings.kv_cache_dir is None:
        return None
    path = Path(settings.kv_cache_dir).expanduser()
    try:
        path.mkdir(parents=True, exist_ok=True, mode=0o700)
    except OSError as error:
        raise SettingsError(f"--kv-cache-dir {path} cannot be made ({error.strerror or error}).") from error
    gib = DEFAULT_GIB if settings.kv_cache_disk is None else settings.kv_cache_disk
    return KVFolderSettings(path, int(gib * GIB))


@dataclass(frozen=True, slots=True)
class KVPeerSettings:
    """KV transfer of an engine with peers that share its secret.

    Attributes:
        options: Role, address and transport.
        secret: Of the peers.
        asked_by: Setting that asks for it; empty: `--role`.
        shares_device: Whether the peers are engines of this process, on its device, which is the CPU then.
    """

    options: KVTransferOptions
    secret: PeerSecret
    asked_by: str = ""
    shares_device: bool = False

    @property
    def option(self) -> str:
        """The name of what asks for it, for messages."""
        return self.asked_by or f"--role {self.options.role}"

    def open(self, memory: KVMemory | None, identity: KVIdentity) -> PeerTransfers:
        """Open KV transfer. memory: of the engine's blocks. Raises SettingsError."""
        if memory is None:
            raise SettingsError(
                f"{self.option} transfers blocks of this machine's memory, and this device has them elsewhere; leave "
                "it out."
            )
        try:
            return PeerTransfers(self.options, self.secret, identity.describe, memory)
        except KVTransferError as error:
            raise SettingsError(str(error)) from None


def _kernels(backend: Device) -> str:
    """Return the backend's name, and the size of a device's own memory, by which kinds of devices differ.

    Where the bits of a row depend on its batch, an engine with `--batch-invariant` must not find its blocks."""
    own = backend.own_memory()
    found = backend.name if own is None else f"{backend.name}, {own.total} bytes"
    return found if backend.batch_invariant else f"{found}, by batches"


def _digest(text: str) -> str:
    return blake2b(text.encode(), digest_size=16).hexdigest()
