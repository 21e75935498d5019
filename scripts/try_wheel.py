"""Try an installed inflight as the first page describes it: `inflight serve`, a chat request is answered, a report of
that is a page, and a GPU is simulated by its data sheet.

Run by an interpreter that has the wheel, from anywhere but a checkout. Needs the standard library and what is tried.
Fails when inflight comes from a checkout, has no kernels of its own, or has not answered 20 seconds after its start.
"""

from __future__ import annotations

import importlib.metadata
import json
import re
import subprocess
import sys
import tempfile
import threading
import time
from pathlib import Path
from urllib.request import Request, urlopen

from inflight.extras import DISTRIBUTION

SECONDS = 20.0
BODY = {"messages": [{"role": "user", "content": "What is continuous batching?"}], "temperature": 0}
PAGES = ("/", "/playground", "/docs")
PROGRAM = Path(sys.executable).with_name("inflight")


def main() -> None:
    with tempfile.TemporaryDirectory() as folder:
        tried(Path(folder))


def tried(folder: Path) -> None:
    """folder: empty, for what is written."""
    files = importlib.metadata.files(DISTRIBUTION) or []
    assert [one for one in files if re.search(r"backends/_native\..*(so|pyd)$", str(one))], "no kernels in the wheel"
    assert (found := importlib.metadata.distribution(DISTRIBUTION).read_text("direct_url.json")) is None or (
        "editable" not in found
    ), f"this is a checkout, no wheel: {found}"

    said = subprocess.run([PROGRAM], capture_output=True, text=True, timeout=SECONDS, check=True).stdout
    assert "inflight serve" in said, said
    started = time.monotonic()
    record, page = folder / "run.jsonl", folder / "run.html"
    command = [str(PROGRAM), "serve", "--port", "0", "--record", str(record)]
    server = subprocess.Popen(command, stderr=subprocess.PIPE, text=True)
    late = threading.Timer(SECONDS, server.kill)
    late.start()
    url = _ready(server)
    answer = _ask(url)
    seconds = time.monotonic() - started
    for path in PAGES:  # whose files are no Python
        with urlopen(Request(url + path, headers={"Accept": "text/html"}), timeout=SECONDS) as shown:
            assert b"<html" in shown.read().lower(), f"{path} is no page"
    late.cancel()
    server.terminate()
    assert server.wait(SECONDS) == 0, f"the server ended with {server.returncode} on SIGTERM"
    assert "batch" in answer, answer
    subprocess.run([PROGRAM, "report", record, "--html", page], stdout=subprocess.DEVNULL, timeout=SECONDS, check=True)
    assert "<html" in page.read_text(encoding="utf-8"), "a report is no page"
    simulation = ["simulate", "--model", "llama-3-8b", "--hardware", "l4", "--rate", "2", "--duration", "2"]
    notes = subprocess.run([PROGRAM, *simulation], capture_output=True, text=True, timeout=SECONDS, check=True).stderr
    assert "l4, data sheet" in notes, notes
    print(f"answered {seconds:.1f} s after `inflight serve`: {answer!r}")


def _ready(server: subprocess.Popen[str]) -> str:
    """The server's address. Its log ends when it does, by itself or because it is late."""
    assert server.stderr is not None
    lines = []
    for line in server.stderr:
        lines.append(line)
        if found := re.search(r"Ready at (http://\S+)", line):
            return found[1]
    raise AssertionError(f"not ready within {SECONDS:g} s:\n{''.join(lines)}")


def _ask(url: str) -> str:
    asked = Request(
        f"{url}/v1/chat/completions", json.dumps(BODY).encode(), headers={"Content-Type": "application/json"}
    )
    with urlopen(asked, timeout=SECONDS) as answered:
        content = json.load(answered)["choices"][0]["message"]["content"]
    assert isinstance(content, str)
    return content


if __name__ == "__main__":
    main()
