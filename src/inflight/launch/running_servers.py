"""List the servers that this user runs on this machine: each writes a small file from its start on, for `inflight ps`,
`stop` and `rm`."""

from __future__ import annotations

import contextlib
import glob
import http.client
import json
import os
import platform
import shutil
import socket
import time
from collections.abc import Sequence
from pathlib import Path
from typing import Any, BinaryIO
from urllib.parse import urlsplit

import msgspec
from msgspec import Struct
from msgspec.structs import replace

from inflight.counted import cause_of
from inflight.execution.checkpoints.hub import hub_id_of
from inflight.execution.checkpoints.local_models import LocalModel
from inflight.models.errors import ModelError
from inflight.private_files import check_private, make_folders, open_private

_ASKING_SECONDS = 3.0
_LARGEST_FILE, _LARGEST_ANSWER = 1 << 16, 1 << 22
_WILDCARDS = ("//0.0.0.0:", "//[::]:")


class RunningServer(Struct, frozen=True):
    """A server of this user.

    Attributes:
        pid: Of its first process, which a signal ends.
        began: When that process began, in the kernel's ticks: another process may have the same number later.
        url: Its address, for clients on this machine.
        since: When it became ready, or began to load, in seconds since 1970.
        models: What it was given as models, names, hub ids or absolute paths; of models that it found those in memory.
        is_pool: It loads and unloads them as they are called.
        is_ready: It answers; else it loads.
    """

    pid: int
    began: int
    url: str
    since: float
    models: tuple[str, ...]
    is_pool: bool = False
    is_ready: bool = True


def servers_folder() -> Path:
    """Return the folder of these files, which may not exist: `$XDG_CACHE_HOME/inflight/servers`."""
    return Path(os.environ.get("XDG_CACHE_HOME") or "~/.cache").expanduser() / "inflight" / "servers"


class Registration:
    """The file of this server: written when it begins to load and once it is ready, deleted at the end of a `with`.

    A server whose user has no folder to write to is not listed.
    """

    def __init__(self, models: Sequence[str | None], is_pool: bool) -> None:
        """Take what the server was given as its models, None: the built-in one."""
        given = [one if not (path := Path(one)).exists() else str(path.absolute()) for one in models if one]
        self._models, self._is_pool = dict.fromkeys(given), is_pool
        self._server: RunningServer | None = None

    def __enter__(self) -> Registration:
        return self

    def __exit__(self, *_: object) -> None:
        if self._server is not None:
            self._server = None
            with contextlib.suppress(OSError, RuntimeError):
                _own_file().unlink(missing_ok=True)

    def write(self, url: str, *, is_ready: bool = True) -> None:
        """Write the server's file. url: its address."""
        for one in _WILDCARDS:
            url = url.replace(one, "//127.0.0.1:")
        pid = os.getpid()
        self._server = RunningServer(pid, _began(pid) or 0, url, time.time(), (), self._is_pool, is_ready)
        with contextlib.suppress(OSError, RuntimeError):
            make_folders(servers_folder())
            for stale in [one for one, server in _registered().items() if not _is_running(server)]:
                stale.unlink(missing_ok=True)
        self._store()

    def add(self, model: str) -> None:
        """Add a model that comes into memory."""
        self._models[model] = None
        self._store()

    def discard(self, model: str) -> None:
        """Remove a model that has left memory."""
        self._models.pop(model, None)
        self._store()

    def _store(self) -> None:
        if self._server is None:
            return
        with contextlib.suppress(OSError, RuntimeError):  # no home, or one that is read-only
            check_private(servers_folder())
            path = _own_file()
            aside = path.with_suffix(".new")
            aside.unlink(missing_ok=True)
            with open(aside, "wb", opener=lambda name, flags: open_private(name, flags | os.O_EXCL)) as file:
                file.write(msgspec.json.encode(replace(self._server, models=tuple(self._models))))
            aside.replace(path)


def _own_file() -> Path:
    return servers_folder() / f"{_machine()}.{os.getpid()}.json"


def _machine() -> str:
    """Return a name of this machine and its processes, since machines and containers may share a home."""
    with contextlib.suppress(OSError):
        return f"{platform.node()}.{Path('/proc/self/ns/pid').stat().st_ino}".replace("/", "_")
    return platform.node().replace("/", "_")


def running_servers() -> list[RunningServer]:
    """Return this user's servers, the oldest first."""
    return sorted((one for one in _registered().values() if _is_running(one)), key=lambda one: one.since)


def _registered() -> dict[Path, RunningServer]:
    """Return this machine's servers of all files that can be read, also those that were killed."""
    found: dict[Path, RunningServer] = {}
    with contextlib.suppress(OSError, RuntimeError):
        check_private(servers_folder())
        for path in servers_folder().glob(f"{glob.escape(_machine())}.*.json"):
            with contextlib.suppress(OSError, msgspec.DecodeError):
                found[path] = msgspec.json.decode(path.read_bytes()[:_LARGEST_FILE], type=RunningServer)
    return found


def _is_running(server: RunningServer) -> bool:
    return _began(server.pid) == server.began


def servers_of(model: LocalModel) -> list[RunningServer]:
    """Return this user's servers that were given a cached model, or have found it and loaded it."""
    return [one for one in running_servers() if any(_is_meant(given, model) for given in one.models)]


def _is_meant(given: str, model: LocalModel) -> bool:
    """Return whether the model is the one that a server was given by this name, or may be."""
    if given == model.name or Path(given).resolve() in (model.path.resolve(), *(one.resolve() for one in model.files)):
        return True
    try:
        repository, tag = hub_id_of(given)
    except ModelError:
        return False
    own, _, quantization = model.name.lower().partition(":")
    return own == repository.lower() and (not tag or tag.lower() in (quantization, model.path.name.lower()))


def process_memory(pid: int) -> int:
    """Return the bytes that a process and all its descendants have in memory, shared pages divided among their users; 0
    where the system does not say."""
    parents: dict[int, list[int]] = {}
    for entry in Path("/proc").glob("[0-9]*"):
        if (fields := _stat(int(entry.name))) is not None:
            parents.setdefault(int(fields[1]), []).append(int(entry.name))
    family, total = [pid], 0
    while family:
        one = family.pop()
        family += parents.get(one, ())
        with contextlib.suppress(OSError, ValueError, StopIteration):
            lines = Path(f"/proc/{one}/smaps_rollup").read_text().splitlines()
            total += 1024 * int(next(line for line in lines if line.startswith("Pss:")).split()[1])
    return total


class AskingError(ValueError):
    """A server does not answer as it should; the sentence says how."""


class NotListening(AskingError):
    """There is no server at the address, or it takes no more calls."""


def ask(url: str, path: str, key: str | None, body: dict[str, Any] | None = None) -> Any:
    """Return a server's answer as JSON. key: an API key. body: of a POST; None: a GET. Raises AskingError, of which
    NotListening is one."""
    headers = {"Content-Type": "application/json"} | ({"Authorization": f"Bearer {key}"} if key else {})
    data = None if body is None else json.dumps(body)
    try:
        with contextlib.closing(_connection(url)) as connection:
            below = "" if url.startswith("unix:") else urlsplit(url).path.rstrip("/")  # --root-path
            connection.request("GET" if data is None else "POST", below + path, data, headers)
            answer = connection.getresponse()
            content = answer.read(_LARGEST_ANSWER)
            found = json.loads(content)
    except (ConnectionRefusedError, FileNotFoundError) as error:
        raise NotListening(f"No server answers at {url}: {cause_of(error)}.") from None
    except (OSError, ValueError, http.client.HTTPException) as error:
        raise AskingError(f"The server at {url} does not answer as one of ours ({cause_of(error)}).") from None
    if answer.status != 200:
        cause = _cause(answer.status, answer.reason, content, key)
        raise AskingError(f"The server at {url} answers {answer.status}: {cause}")
    return found


def download(url: str, path: str, key: str | None, file: BinaryIO) -> None:
    """Write a server's answer to a GET into a file. key: an API key. Raises AskingError."""
    headers = {"Authorization": f"Bearer {key}"} if key else {}
    try:
        with contextlib.closing(_connection(url)) as connection:
            below = "" if url.startswith("unix:") else urlsplit(url).path.rstrip("/")  # --root-path
            connection.request("GET", below + path, headers=headers)
            answer = connection.getresponse()
            if answer.status == 200:
                shutil.copyfileobj(answer, file)
                return
            cause = _cause(answer.status, answer.reason, answer.read(_LARGEST_ANSWER), key)
    except (OSError, ValueError, http.client.HTTPException) as error:
        raise AskingError(f"The server at {url} does not answer as one of ours ({cause_of(error)}).") from None
    raise AskingError(f"The server at {url} answers {answer.status}: {cause}")


def _cause(status: int, reason: str, content: bytes, key: str | None) -> str:
    """Return why a server refused, in its own words where it has any."""
    if status == 401 and not key:
        return "It wants a key; give --api-key."
    try:
        return str(json.loads(content)["error"]["message"])
    except (KeyError, TypeError, ValueError):
        return reason


def _connection(url: str) -> http.client.HTTPConnection:
    """Return a connection, not opened yet. Raises ValueError for what is no address."""
    parts = urlsplit(url)
    if parts.scheme == "unix":
        return _UnixConnection(parts.path)
    if parts.scheme not in ("http", "https") or not parts.hostname:
        raise ValueError("an address is such as http://127.0.0.1:8000")
    kind = http.client.HTTPSConnection if parts.scheme == "https" else http.client.HTTPConnection
    return kind(parts.hostname, parts.port, timeout=_ASKING_SECONDS)


class _UnixConnection(http.client.HTTPConnection):
    def __init__(self, path: str) -> None:
        super().__init__("localhost", timeout=_ASKING_SECONDS)
        self._path = path

    def connect(self) -> None:
        self.sock = socket.socket(socket.AF_UNIX, socket.SOCK_STREAM)
        self.sock.settimeout(_ASKING_SECONDS)
        self.sock.connect(self._path)


def _began(pid: int) -> int | None:
    """Return when a process began, in ticks; None where there is none, or the system does not say."""
    fields = _stat(pid)
    return None if fields is None else int(fields[19])


def _stat(pid: int) -> list[str] | None:
    """Return the fields of /proc/PID/stat from the state on."""
    try:
        return Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()
    except OSError:
        return None
