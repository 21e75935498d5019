"""A job service with an answerer that only says what it was asked, and a clock that tests move."""

from __future__ import annotations

import asyncio
import json
from collections import Counter
from collections.abc import AsyncIterator, Awaitable, Callable, Coroutine
from pathlib import Path
from typing import Any

from inflight.server.errors import ApiError
from inflight.server.jobs.attempts import Answer, InFlight
from inflight.server.jobs.clock import Clocks
from inflight.server.jobs.files import StoredFile
from inflight.server.jobs.folder import DataDirectory
from inflight.server.jobs.service import JobService
from inflight.server.jobs.store import ENDED, Job
from inflight.server.tenants import ANYONE, Tenant

URL = "/v1/completions"


def request_line(custom_id: str, prompt: str = "x", **fields: Any) -> dict[str, Any]:
    return {"custom_id": custom_id, "method": "POST", "url": URL, "body": {"prompt": prompt}, **fields}


def jsonl(*lines: Any) -> bytes:
    """Bytes are written as they are."""
    return b"".join(one if isinstance(one, bytes) else json.dumps(one).encode() + b"\n" for one in lines)


class Echo:
    """Answers with the prompt. `gate`: lines wait until it is set. `refuse`: by prompt, what is raised, once each."""

    def __init__(self) -> None:
        self.gate: asyncio.Event | None = None
        self.refuse: dict[str, list[BaseException]] = {}
        self.calls: Counter[str] = Counter()  # by request id
        self.order: list[tuple[str, str]] = []  # tenant, prompt
        self.running = self.max_running = self.cancelled = 0

    async def answer(self, url: str, body: bytes, tenant: Tenant, request_id: str, in_flight: InFlight) -> Answer:
        async with in_flight():
            return await self._answer(url, body, tenant, request_id)

    async def _answer(self, url: str, body: bytes, tenant: Tenant, request_id: str) -> Answer:
        prompt = json.loads(body)["prompt"]
        self.calls[request_id] += 1
        self.order.append((tenant.name, prompt))
        self.running += 1
        self.max_running = max(self.max_running, self.running)
        try:
            await asyncio.sleep(0)
            if self.gate is not None:
                await self.gate.wait()
            if self.refuse.get(prompt):
                raise self.refuse[prompt].pop()
            return Answer(200, json.dumps({"echo": prompt, "url": url}).encode())
        except asyncio.CancelledError:
            self.cancelled += 1
            raise
        finally:
            self.running -= 1


class Bytes:
    """An upload that arrived whole."""

    def __init__(self, content: bytes, filename: str | None = "in.jsonl", purpose: str | None = "batch") -> None:
        self.filename, self.purpose = filename, purpose
        self._content = content

    async def content(self) -> AsyncIterator[bytes]:
        yield self._content


LIMITS: dict[str, Any] = {"concurrency": 4, "max_file_mb": 200, "max_stored_mb": 10_240, "max_stored_files": 10_000}


class Rig:
    """now: the wall clock. passed: seconds since the machine was booted."""

    def __init__(self, folder: Path, answerer: Any = None, **settings: Any) -> None:
        self.answerer: Any = answerer or Echo()
        self.now, self.passed = 1_000_000.0, 500.0
        clocks = Clocks(wall=lambda: self.now, since_boot=lambda: self.passed, boot=settings.pop("boot", "this boot"))
        self.passed = settings.pop("passed", self.passed)
        settings = {**LIMITS, "retry_seconds": 0.01, "clocks": clocks, **settings}
        data = DataDirectory(folder)
        if not settings.pop("beside", False):  # another process of the server has claimed it
            data.claim()
        self.service = JobService(data, self.answerer, lambda name: Tenant(name=name), **settings)
        self.service.open()
        self.files, self.jobs = self.service.files, self.service.jobs

    def wait(self, seconds: float) -> None:
        """Time passes, on every clock."""
        self.now += seconds
        self.passed += seconds

    async def upload(self, content: bytes, tenant: Tenant = ANYONE) -> StoredFile:
        return await self.files.receive(tenant, Bytes(content))

    async def create(self, content: bytes, tenant: Tenant = ANYONE, window: str = "24h", endpoint: str = URL) -> Job:
        file = await self.upload(content, tenant)
        return await self.jobs.create(tenant, input_file_id=file.id, endpoint=endpoint, window=window, metadata=None)

    async def ended(self, job: Job, tenant: Tenant = ANYONE) -> Job:
        return await self.until(job, lambda one: one.status in ENDED, tenant)

    async def until(self, job: Job, met: Callable[[Job], bool], tenant: Tenant = ANYONE) -> Job:
        async with asyncio.timeout(30):
            while not met(job := await self.jobs.retrieve(tenant, job.id)):
                await asyncio.sleep(0.002)
        return job

    async def lines(self, file_id: str | None, tenant: Tenant = ANYONE) -> list[dict[str, Any]]:
        if file_id is None:
            return []
        _, content = await self.files.open(tenant, file_id)
        with content:
            return [json.loads(line) for line in content]


async def until(met: Callable[[], bool]) -> None:
    async with asyncio.timeout(30):
        while not met():
            await asyncio.sleep(0.002)


async def refused(call: Awaitable[Any]) -> ApiError:
    """The refusal that a call must end with."""
    try:
        await call
    except ApiError as error:
        assert error.message.endswith(".") and error.message.count(". ") <= 1
        return error
    raise AssertionError("not refused")


def live(
    folder: Path, test: Callable[[Rig], Coroutine[Any, Any, None]], *, start: bool = True, **settings: Any
) -> None:
    """Runs a test on a service that is stopped at its end."""

    async def whole() -> None:
        rig = Rig(folder, **settings)
        if start:
            rig.service.start()
        try:
            await test(rig)
        finally:
            await rig.service.stop()

    asyncio.run(whole())


def snapshot(folder: Path) -> dict[str, bytes | str]:
    """Everything in a folder, by its path: the content of files, where links lead to, "" for folders."""
    held: dict[str, bytes | str] = {}
    for path in sorted(folder.rglob("*")):
        name = str(path.relative_to(folder))
        if path.is_symlink():
            held[name] = f"-> {path.readlink()}"
        else:
            held[name] = path.read_bytes() if path.is_file() else ""
    return held
