"""Play runs again on the live page: served to a browser of this machine, or written into one file."""

from __future__ import annotations

import asyncio
import contextlib
import socket
import tempfile
from collections.abc import Sequence
from pathlib import Path

from inflight.cli.summary import show
from inflight.live.frames import Frame
from inflight.live.page_files import whole_page
from inflight.live.replays import Replay, read_replay
from inflight.records.schema import RecordError
from inflight.simulate.simulation import Simulation, SimulationSetup, record_paths, simulate
from inflight.workload.workload import Workload

MAX_BESIDE = 8  # runs on one page


def replays_of(files: Sequence[Path], titles: Sequence[str] = ()) -> list[Replay]:
    """Read records. titles: of the runs; by default the files' names. Raises RecordError."""
    names = titles or [
        path.stem if path.stem not in _twice(files) else f"{path.parent.name}/{path.stem}" for path in files
    ]
    return [read_replay(path, name) for path, name in zip(files, names, strict=True)]


def _twice(files: Sequence[Path]) -> set[str]:
    stems = [path.stem for path in files]
    return {one for one in stems if stems.count(one) > 1}


def write_page(path: Path, replays: Sequence[Replay], title: str = "") -> None:
    """Write a page that needs no server; parts that a record lacks are reported."""
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
        show(note)
    show(f"{path} is written: {path.stat().st_size / 1e3:,.0f} kB; open it in a browser.")


def serve_replays(replays: Sequence[Replay], port: int) -> int:
    """Serve the runs until Ctrl-C."""
    import uvicorn

    from inflight.server.live.replaying import replay_app

    with socket.socket() as bound:
        bound.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        bound.bind(("127.0.0.1", port))
        bound.listen()  # a browser that is fast waits, and is not refused
        show(f"Shown at http://127.0.0.1:{bound.getsockname()[1]} to browsers of this machine; Ctrl-C ends it.")
        config = uvicorn.Config(replay_app(replays), log_config=None, access_log=False, lifespan="off", ws="none")
        with contextlib.suppress(KeyboardInterrupt):
            asyncio.run(uvicorn.Server(config).serve([bound]))
    return 0


def simulate_played(workload: Workload, setup: SimulationSetup, record: Path | None, html: Path) -> Simulation:
    """Run a simulation, and write a page of it, replicas side by side."""
    with tempfile.TemporaryDirectory() as folder:
        path = record or Path(folder) / "simulation.jsonl"
        run = simulate(workload, setup, path)
        paths = record_paths(path, len(run.replicas))
        titles = [f"replica {number}" for number in range(len(paths))] if len(paths) > 1 else [html.stem]
        if len(paths) > MAX_BESIDE:
            show(f"The page plays the first {MAX_BESIDE} of {len(paths)} replicas.")
        try:
            replays = replays_of(paths[:MAX_BESIDE], titles[:MAX_BESIDE])
        except RecordError as error:
            show(f"No page is written: {error}")
            return run
        write_page(html, replays, workload.name)
    return run
