"""A single engine that is started again: without its processes, in an event loop of its own."""

from __future__ import annotations

import asyncio
from pathlib import Path
from typing import Any

import msgspec
import pytest

from inflight.core.types.sampling import Adapter
from inflight.server.processes.engine_keeper import EngineKeeper
from inflight.server.processes.messages import (
    AdapterChanged,
    EngineBroken,
    LoadAdapter,
    Lost,
    Model,
    Ready,
    ToChild,
    UnloadAdapter,
)
from inflight.server.processes.worker_messages import EngineReady
from inflight.text import TextFiles


class Engine:
    """A `Worker` that is ready at once. gone: files of adapters that are removed."""

    def __init__(self, gone: set[Path]) -> None:
        self._gone = gone
        self._adapters = {"start": Adapter("start", "old", 0)}
        self.failed = "It broke."  # which its process has logged

    def start(self, *arguments: Any, dropped: Any) -> None:
        self.ended: asyncio.Future[str] = asyncio.get_running_loop().create_future()

    async def found(self) -> Model:
        return Model(TextFiles("/m"))

    async def ready(self) -> EngineReady:
        return EngineReady("ipc://x", msgspec.Raw(b"\x80"), tuple(self._adapters.values()), 1)

    async def change_adapter(self, change: LoadAdapter | UnloadAdapter) -> AdapterChanged:
        error = None
        if isinstance(change, UnloadAdapter):
            error = None if self._adapters.pop(change.name, None) else "There is none."
        elif change.name in self._adapters:
            error = "It is loaded already."
        elif change.path in self._gone:
            error = f"{change.path} is not there."
        else:
            self._adapters[change.name] = Adapter(change.name, str(change.path), 1)
        return AdapterChanged(change.question, tuple(self._adapters.values()), error, None)

    def break_off(self, why: str) -> None:
        self.ended.set_result(why)


class Rig:
    """A keeper that runs. sent: to API processes. gone: files of adapters that are removed."""

    def __init__(self) -> None:
        self.sent: list[ToChild] = []
        self.gone: set[Path] = set()
        self.engines: list[Engine] = []
        self.keeper = EngineKeeper(self._spawn, lambda serial: b"", self.sent.append, lambda client: None)
        self._running = asyncio.ensure_future(self.keeper.run())

    def _spawn(self) -> Any:
        self.engines.append(Engine(self.gone))
        return self.engines[-1]

    async def ready(self, engines: int = 1) -> Ready:
        """Wait until so many engines were ready; return the last one's message."""
        while len(found := [one for one in self.sent if isinstance(one, Ready)]) < engines:
            await asyncio.sleep(0.001)
        return found[-1]

    async def change(self, change: LoadAdapter | UnloadAdapter) -> None:
        changed = await self.keeper.answer("1", change)
        assert isinstance(changed, AdapterChanged) and changed.error is None

    def end(self) -> None:
        self._running.cancel()


def test_adapters_are_in_the_next_engine_and_those_that_cannot_be_are_logged(caplog: pytest.LogCaptureFixture) -> None:
    async def main() -> None:
        rig = Rig()
        await rig.ready()
        for name in ("kept", "removed", "unloaded"):
            await rig.change(LoadAdapter(1, name, Path(name)))
        await rig.change(UnloadAdapter(2, "unloaded"))
        await rig.change(UnloadAdapter(2, "start"))
        await rig.change(LoadAdapter(1, "start", Path("new")))
        rig.gone.add(Path("removed"))
        rig.engines[0].ended.set_result("It broke.")
        second = await rig.ready(2)
        assert {one.name: one.path for one in second.adapters} == {"kept": "kept", "start": "new"}
        logged = [line for line in caplog.messages if "adapter" in line]
        assert logged == ["The adapter 'removed' could not be loaded again after the restart: removed is not there."]
        rig.end()

    asyncio.run(asyncio.wait_for(main(), 20))


def test_an_engine_that_a_client_cannot_reach_is_ended_unless_it_has_ended_already() -> None:
    async def main() -> None:
        rig = Rig()
        await rig.ready()
        [model] = [one for one in rig.sent if isinstance(one, Model)]
        rig.keeper.heard("1", EngineBroken("", model.serial, "It cannot be reached."))
        await rig.ready(2)
        lost = [one.sentence for one in rig.sent if isinstance(one, Lost)]
        assert rig.engines[0].ended.done() and lost == ["It cannot be reached."]
        rig.keeper.heard("2", EngineBroken("", model.serial, "It cannot be reached, either."))
        assert not rig.engines[1].ended.done()
        rig.end()

    asyncio.run(asyncio.wait_for(main(), 20))
