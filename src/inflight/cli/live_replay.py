"""How runs are shown again: served to a browser of this machine, or written into one file.

Knows files and addresses; what is drawn, `inflight.live` knows.
"""

from __future__ import annotations

import asyncio
import contextlib
import socket
import sys
import tempfile
from collections.abc import Sequence
from pathlib import Path

from inflight.live.frames import Frame
from inflight.live.page_files import whole_page
from inflight.live.replays import Replay, read_replay
from inflight.records.schema import RecordError
from inflight.simulate.simulation import Simulation, SimulationSetup, record_paths, simulate
from inflight.workload.workload import Workload

MOST_BESIDE = 8  # runs on one page


def replays_of(files: Sequence[Path], titles: Sequence[str] = ()) -> list[Replay]:
    """Raises RecordError."""
    names = titles or [
        path.stem if path.stem not in _twice(files) else f"{path.parent.name}/{path.stem}" for path in files
    ]
    return [read_replay(path, name) for path, name in zip(files, names, strict=True)]


def _twice(files: Sequence[Path]) -> set[str]:
    stems = [path.stem for path in files]
    return {one for one in stems if stems.count(one) > 1}


def write_page(path: Path, replays: Sequence[Replay], title: str = "") -> None:
    """One file that needs no server; what is not whole is told."""
    notes: list[str] = []

    def frames(replay: Replay) -> list[Frame]:
        found = []
        for one in replay.frames():
            if isinstance(one, Frame):
                found.append(one)
            else:
                notes.append(one.sentence)
        return found

    title = title or " beside ".join(one.hello.title for one in replays)
    path.write_text(whole_page(title, [(one.hello, frames(one)) for one in replays]), encoding="utf-8")
    for note in notes:
        print(note, file=sys.stderr)
    print(f"{path} is written: {path.stat().st_size / 1e3:,.0f} kB; open it in a browser.", file=sys.stderr)


def serve_replays(replays: Sequence[Replay], port: int) -> int:
    """Until Ctrl-C."""
    import uvicorn

    from inflight.server.live.replaying import replay_app

    with socket.socket() as bound:
        bound.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        bound.bind(("127.0.0.1", port))
        bound.listen()  # who comes as soon as the address is told waits, and is not refused
        print(
            f"Shown at http://127.0.0.1:{bound.getsockname()[1]} to browsers of this machine; Ctrl-C ends it.",
            file=sys.stderr,
            flush=True,
        )
        config = uvicorn.Config(replay_app(replays), log_config=None, access_log=False, lifespan="off", ws="none")
        with contextlib.suppress(KeyboardInterrupt):
            asyncio.run(uvicorn.Server(config).serve([bound]))
    return 0


def simulate_played(workload: Workload, setup: SimulationSetup, record: Path | None, html: Path) -> Simulation:
    """The run, of which a page is written, replicas side by side."""
    with tempfile.TemporaryDirectory() as folder:
        path = record or Path(folder) / "simulation.jsonl"
        run = simulate(workload, setup, path)
        paths = record_paths(path, len(run.replicas))
        titles = [f"replica {number}" for number in range(len(paths))] if len(paths) > 1 else [html.stem]
        if len(paths) > MOST_BESIDE:
            print(f"The page plays the first {MOST_BESIDE} of {len(paths)} replicas.", file=sys.stderr)
        try:
            replays = replays_of(paths[:MOST_BESIDE], titles[:MOST_BESIDE])
        except RecordError as error:
            print(f"No page is written: {error}", file=sys.stderr)
            return run
        write_page(html, replays, workload.name)
    return run
