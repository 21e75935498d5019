"""Environments of foreign clients: one folder a client, made on first use from what its folder here asks for.

Knows pip and npm; nothing of what the clients do. An environment is stamped by what it was made from, and made anew
when that has changed. `.foreign` at the checkout's root holds them all and is not part of the project.
"""

from __future__ import annotations

import fcntl
import hashlib
import os
import shutil
import subprocess
import sys
from dataclasses import dataclass
from pathlib import Path

HERE = Path(__file__).parent
HOME = HERE.parents[1] / ".foreign"
MADE_FROM = ("requirements.txt", "constraints.txt", "without_dependencies.txt", "package.json")
# Nothing is downloaded, and nothing is sent elsewhere, while a test runs.
QUIET = {
    "HF_HUB_OFFLINE": "1",
    "HF_DATASETS_OFFLINE": "1",
    "LITELLM_LOCAL_MODEL_COST_MAP": "True",
    "LITELLM_TELEMETRY": "False",
    "NO_COLOR": "1",
    "COLUMNS": "200",
    "PYTHONUNBUFFERED": "1",
}
# What another checkout, a proxy or a real account has set must not reach a client under test.
FOREIGN_TO_ALL = ("PYTHONPATH", "VIRTUAL_ENV", "OPENAI_API_KEY", "OPENAI_BASE_URL", "OPENAI_ORG_ID")


@dataclass(frozen=True, slots=True)
class Environment:
    """A client's packages. name: the folder beside this file; root: where they are installed. elsewhere: the folder,
    of what is no client. python: the version of Python that the packages need, where this one will not do."""

    name: str
    elsewhere: Path | None = None
    python: str = ""

    @property
    def sources(self) -> Path:
        return self.elsewhere or HERE / self.name

    @property
    def root(self) -> Path:
        return HOME / self.name

    @property
    def in_node(self) -> bool:
        return (self.sources / "package.json").exists()

    def program(self, name: str) -> str:
        """The path of a program that the client's packages bring, or of its interpreter."""
        return name if self.in_node else str(self.root / "bin" / name)

    def variables(self, **more: str) -> dict[str, str]:
        kept = {name: value for name, value in os.environ.items() if name not in FOREIGN_TO_ALL}
        found = {"NODE_PATH": str(self.root / "node_modules")} if self.in_node else {}
        return {**kept, **QUIET, **found, "HF_HOME": str(self.root / "hub"), **more}

    def run(self, program: str, *arguments: str, seconds: float = 240, **variables: str) -> str:
        """Return a program's output, both streams together. Raises AssertionError with it when it fails or hangs."""
        try:
            ended = subprocess.run(
                [self.program(program), *arguments],
                stdin=subprocess.DEVNULL,
                stdout=subprocess.PIPE,
                stderr=subprocess.STDOUT,
                text=True,
                env=self.variables(**variables),
                timeout=seconds,
            )
        except subprocess.TimeoutExpired as error:
            raise AssertionError(f"{program} did not end in {seconds} s:\n{error.output or ''}") from None
        assert ended.returncode == 0, f"{program} ended with {ended.returncode}:\n{ended.stdout}"
        return ended.stdout

    def make(self) -> Environment:
        """Install what is pinned, unless it is there. Of several test processes one installs, and the others wait."""
        self.root.parent.mkdir(parents=True, exist_ok=True)
        with open(self.root.parent / f"{self.root.name}.lock", "w", encoding="utf-8") as lock:
            fcntl.flock(lock, fcntl.LOCK_EX)
            self._make()
        return self

    def _make(self) -> None:
        stamp = self._stamp()
        installed = self.root / "stamp"
        if not installed.exists() or installed.read_text(encoding="utf-8") != stamp:
            shutil.rmtree(self.root, ignore_errors=True)
            self.root.mkdir(parents=True)
            if self.in_node:
                self._make_node()
            else:
                self._make_python()
            installed.write_text(stamp, encoding="utf-8")

    def _stamp(self) -> str:
        digest = hashlib.sha256(sys.version.encode() + self.python.encode())
        for name in MADE_FROM:
            if (path := self.sources / name).exists():
                digest.update(name.encode() + path.read_bytes())
        return digest.hexdigest()

    def _make_python(self) -> None:
        interpreter = find_python(self.python) if self.python else sys.executable
        assert interpreter is not None, f"{self.name} needs Python {self.python}; install it"
        _install([interpreter, "-m", "venv", str(self.root)], self.root)
        pip = [str(self.root / "bin" / "python"), "-m", "pip", "--disable-pip-version-check", "-q", "install"]
        wanted = ["-r", str(self.sources / "requirements.txt"), "-c", str(self.sources / "constraints.txt")]
        _install([*pip, *wanted], self.root)
        if (
            bare := self.sources / "without_dependencies.txt"
        ).exists():  # a package whose engine needs more than its client
            _install([*pip, "--no-deps", "-r", str(bare)], self.root)

    def _make_node(self) -> None:
        shutil.copy(self.sources / "package.json", self.root)
        npm = shutil.which("npm")
        assert npm is not None, "the Node client needs Node 20 or newer with npm; install them"
        _install([npm, "install", "--no-audit", "--no-fund", "--ignore-scripts", "--no-package-lock"], self.root)


def find_python(version: str) -> str | None:
    """Return an interpreter of this version ("3.12"): this one, one on the path, or one of pyenv's."""
    pyenv = Path(os.environ.get("PYENV_ROOT") or Path.home() / ".pyenv") / "versions"
    others = [str(path) for path in sorted(pyenv.glob(f"{version}*/bin/python{version}"))]
    for found in (sys.executable, shutil.which(f"python{version}"), *others):
        if found and _version(found) == version:
            return found
    return None


def _version(interpreter: str) -> str:
    ask = "import sys; print('%d.%d' % sys.version_info[:2])"
    return subprocess.run([interpreter, "-c", ask], capture_output=True, text=True).stdout.strip()


def _install(command: list[str], folder: Path) -> None:
    ended = subprocess.run(command, cwd=folder, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True)
    assert ended.returncode == 0, f"{' '.join(command)} failed:\n{ended.stdout[-4000:]}"
