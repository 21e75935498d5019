"""The runner: the life of jobs, bad lines, turns, deadlines, cancelling, full disks and clocks that jump."""

from __future__ import annotations

import asyncio
import json
import sqlite3
import threading
from pathlib import Path
from typing import Any

import pytest

from inflight.server.errors import ApiError, invalid
from inflight.server.jobs import attempts, files, line_files, worker
from inflight.server.jobs.files import Content
from inflight.server.jobs.lines import line_id
from inflight.server.jobs.storage import StorageError
from inflight.server.jobs.store import ENDED
from inflight.server.tenants import ANYONE, Tenant

from .rig import URL, Echo, Rig, jsonl, live, request_line, until


def test_every_line_is_answered_in_the_order_of_the_file(tmp_path: Path) -> None:
    async def test(rig: Rig) -> None:
        names = [f"n {number}" for number in range(300)]
        rig.answerer.gate = asyncio.Event()
        job = await rig.create(jsonl(*(request_line(name, name) for name in names)))
        await until(lambda: rig.answerer.running == 4)
        rig.answerer.gate.set()
        assert (job.status, job.created_at, job.expires_at) == ("validating", 1_000_000, 1_000_000 + 86400)
        job = await rig.ended(job)
        assert (job.status, job.total, job.completed, job.failed) == ("completed", 300, 300, 0)
        stamps = (job.in_progress_at, job.finalizing_at, job.completed_at)
        assert stamps == (1_000_000,) * 3 and job.error_file_id is None and job.errors == []
        lines = await rig.lines(job.output_file_id)
        assert [line["custom_id"] for line in lines] == names
        first = line_id(job.id, 1)
        response = {"status_code": 200, "request_id": first, "body": {"echo": "n 0", "url": "/v1/completions"}}
        assert lines[0] == {"id": first, "custom_id": "n 0", "response": response, "error": None}
        assert rig.answerer.max_running == 4 and set(rig.answerer.calls.values()) == {1}

    live(tmp_path, test)


def test_bad_lines_stand_in_the_error_file_and_the_rest_runs(tmp_path: Path) -> None:
    bad = {
        2: b"not json\n",
        4: b'{"custom_id": "caf\xe9"}\n',
        5: b"[1]\n",
        6: request_line("one"),  # a second time
        7: request_line("seven", method="GET"),
        8: request_line("eight", url="/v1/edits"),
        9: request_line("nine", url="/v1/chat/completions"),
        10: request_line("ten", body=[1]),
        11: request_line("eleven", body={"prompt": "x", "stream": True}),
        12: {"custom_id": "twelve", "method": "POST", "url": "/v1/completions"},
        13: {"method": "POST", "url": "/v1/completions", "body": {}},
        14: request_line("x" * 513),
        15: b'{"custom_id": "\\ud800", "method": "POST", "url": "/v1/completions", "body": {}}\n',
        16: request_line("sixteen", extra=1),
        17: b'{"custom_id": 1' + b"0" * 5000 + b"}\n",
        18: b"[" * 100_000 + b"\n",
        19: b"\x00\n",
        20: request_line(""),
    }
    codes = [
        *["invalid_json_line"] * 3, "duplicate_custom_id", "invalid_method", "invalid_url", "mismatched_url",
        "invalid_body", "unsupported_stream", "missing_field", "missing_field", "invalid_custom_id",
        "invalid_json_line", "unknown_field", "invalid_custom_id", *["invalid_json_line"] * 2, "invalid_custom_id",
    ]  # fmt: skip
    good = {1: request_line("one", "1"), 3: b"  \r\n", 21: json.dumps(request_line("last", "21")).encode()}

    async def test(rig: Rig) -> None:
        job = await rig.ended(
            await rig.create(b"\xef\xbb\xbf" + jsonl(*(one for _, one in sorted((good | bad).items()))))
        )
        assert (job.status, job.total, job.completed, job.failed) == ("completed", 20, 2, 18)
        assert [line["custom_id"] for line in await rig.lines(job.output_file_id)] == ["one", "last"]
        errors = await rig.lines(job.error_file_id)
        assert all(line["response"] is None and line["error"]["message"].endswith(".") for line in errors)
        assert [line["error"]["line"] for line in errors] == list(bad)
        assert [line["error"]["code"] for line in errors] == codes
        names = {line["error"]["line"]: line["custom_id"] for line in errors}
        assert names[6] == "one" and names[7] == "seven" and names[2] is None and names[14] is None
        assert set(rig.answerer.calls) == {line_id(job.id, 1), line_id(job.id, 21)}

    live(tmp_path, test)


def test_many_bad_lines_are_kept_a_page_at_a_time(tmp_path: Path) -> None:
    async def test(rig: Rig) -> None:
        active, keeping = rig.service._worker._active, [0]
        keep = rig.service._jobs.keep

        async def counted(answer: Any) -> None:
            keeping.append(max(len(one.keeping) for one in active.values()))
            await keep(answer)

        rig.service._jobs.keep = counted  # type: ignore[method-assign]
        job = await rig.ended(await rig.create(b"bad\n" * 1000))
        assert (job.status, job.failed) == ("completed", 1000) and max(keeping) <= line_files.PAGE_LINES

    live(tmp_path, test)


def test_a_line_that_is_too_long_is_never_read_whole(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    longest = len(jsonl(request_line("long", "y" * 4000)).rstrip())

    async def test(rig: Rig) -> None:
        rig.service._worker._max_line = longest
        lines = (request_line("long", "y" * 4000), request_line("more", "y" * 4001), request_line("short"))
        job = await rig.ended(await rig.create(jsonl(*lines)))
        assert [line["custom_id"] for line in await rig.lines(job.output_file_id)] == ["long", "short"]
        (error,) = await rig.lines(job.error_file_id)
        assert error["error"] == {
            "code": "line_too_long", "message": f"The line has more than {longest} bytes; shorten it.", "line": 2,
        }  # fmt: skip

    live(tmp_path, test)


def test_refusals_are_answers_of_their_line(tmp_path: Path) -> None:
    async def test(rig: Rig) -> None:
        rig.answerer.refuse = {"bad": [invalid("Too long.", "prompt")], "fault": [ZeroDivisionError("secret")]}
        lines = [request_line(name, name) for name in ("bad", "good", "fault")]
        job = await rig.ended(await rig.create(jsonl(*lines)))
        assert (job.status, job.completed, job.failed) == ("completed", 1, 2)
        bad, fault = await rig.lines(job.error_file_id)
        assert bad["response"]["status_code"] == 400 and bad["error"] is None
        assert bad["response"]["body"] == invalid("Too long.", "prompt").body
        assert fault["response"]["status_code"] == 500 and "secret" not in json.dumps(fault)

    live(tmp_path, test)


@pytest.mark.parametrize(("content", "code"), [(b"\n \n", "empty_file"), (jsonl(*[{}] * 9), "too_many_lines")])
def test_what_fails_validation(tmp_path: Path, content: bytes, code: str) -> None:
    async def test(rig: Rig) -> None:
        rig.service._worker._max_lines = 8
        job = await rig.ended(await rig.create(content))
        assert (job.status, job.failed_at, job.output_file_id, job.error_file_id) == ("failed", 1_000_000, None, None)
        (error,) = job.errors
        assert error["code"] == code and error["message"].endswith(".")

    live(tmp_path, test)


def test_an_input_file_that_vanishes(tmp_path: Path) -> None:
    async def test(rig: Rig) -> None:
        rig.answerer.gate = asyncio.Event()
        job = await rig.create(jsonl(*(request_line(str(number)) for number in range(500))))
        await until(lambda: rig.answerer.running == 4)
        (rig.service._data.files / job.input_file_id).unlink()
        rig.answerer.gate.set()
        job = await rig.ended(job)
        missing, lost = job.errors
        assert job.status == "failed" and missing["code"] == "input_file_missing"
        assert "bytes) is gone from the data directory; upload it again." in missing["message"]
        assert 4 <= job.completed == len(await rig.lines(job.output_file_id)) < 500
        # Those that had been read are answered, and how many had not, the job says.
        assert job.error_file_id is None and job.failed == 0
        assert lost["code"] == "lines_lost" and lost["message"].startswith(f"{500 - job.completed} of 500 ")

    live(tmp_path, test)


def test_an_input_file_that_is_cut_off(tmp_path: Path) -> None:
    content = jsonl(*(request_line(str(number)) for number in range(500)))

    async def test(rig: Rig) -> None:
        rig.answerer.gate = asyncio.Event()
        job = await rig.create(content)
        await until(lambda: rig.answerer.running == 4)
        with (rig.service._data.files / job.input_file_id).open("r+b") as file:
            file.truncate(len(content) // 2)
        rig.answerer.gate.set()
        job = await rig.ended(job)
        damaged, lost = job.errors
        assert job.status == "failed" and f"{len(content) // 2} bytes, but {len(content)} were" in damaged["message"]
        lines = await rig.lines(job.output_file_id) + await rig.lines(job.error_file_id)
        # All that is left of the input stands in one of the files; its last line is half of one.
        names = [int(line["custom_id"]) for line in lines if line["custom_id"] is not None]
        assert sorted(names) == list(range(len(names))) and len(names) > 200 and len(lines) == len(names) + 1
        assert lost["message"].startswith(f"{500 - len(lines)} of 500 ")
        # Of a job that comes later, nothing is run.
        calls = rig.answerer.calls.total()
        file = await rig.files.retrieve(ANYONE, job.input_file_id)
        late = await rig.jobs.create(ANYONE, input_file_id=file.id, endpoint=URL, window="1h", metadata=None)
        late = await rig.ended(late)
        assert (late.status, late.total, rig.answerer.calls.total()) == ("failed", 0, calls)
        assert late.errors[0]["message"] == damaged["message"]

    live(tmp_path, test)


def test_tenants_take_turns_and_so_do_their_jobs(tmp_path: Path) -> None:
    async def test(rig: Rig) -> None:
        greedy, modest = Tenant(name="greedy"), Tenant(name="modest")
        jobs = []
        for tenant, name in ((greedy, "a"), (greedy, "b"), (modest, "c")):
            content = jsonl(*(request_line(str(number), name) for number in range(40)))
            jobs.append((await rig.create(content, tenant), tenant))
        rig.service.start()
        for job, tenant in jobs:
            await rig.ended(job, tenant)
        order = rig.answerer.order
        last_modest = max(place for place, (name, _) in enumerate(order) if name == "modest")
        shares = [prompt for _, prompt in order[10:last_modest]]
        assert abs(shares.count("c") - shares.count("a") - shares.count("b")) <= 4
        assert abs(shares.count("a") - shares.count("b")) <= 4

    live(tmp_path, test, start=False, concurrency=1)


def test_cancelling_keeps_what_is_answered(tmp_path: Path) -> None:
    async def test(rig: Rig) -> None:
        rig.answerer.gate = asyncio.Event()
        rig.answerer.gate.set()
        job = await rig.create(jsonl(*(request_line(str(number)) for number in range(200)), b"bad\n"))
        await rig.until(job, lambda one: one.completed >= 10)
        rig.answerer.gate.clear()
        await until(lambda: rig.answerer.running == 4)
        assert (await rig.jobs.cancel(ANYONE, job.id)).status in ("cancelling", "cancelled")
        job = await rig.ended(job)
        assert (job.status, job.cancelling_at, job.cancelled_at) == ("cancelled", 1_000_000, 1_000_000)
        assert rig.answerer.cancelled == 4 and rig.answerer.running == 0
        output, errors = await rig.lines(job.output_file_id), await rig.lines(job.error_file_id)
        assert 10 <= len(output) == job.completed < 200 and len(errors) == job.failed
        assert sorted(int(line["custom_id"]) for line in output + errors[:-1]) == list(range(200))
        assert {line["error"]["code"] for line in errors[:-1]} == {"batch_cancelled"}
        assert errors[-1]["error"]["code"] == "invalid_json_line"
        assert (await rig.jobs.cancel(ANYONE, job.id)).status == "cancelled"

    live(tmp_path, test)


def test_the_window_ends(tmp_path: Path) -> None:
    async def test(rig: Rig) -> None:
        gate = rig.answerer.gate = asyncio.Event()
        job = await rig.create(jsonl(*(request_line(str(number)) for number in range(9))), window="90m")
        await until(lambda: rig.answerer.running == 4)
        rig.wait(90 * 60 - 1)
        rig.service._worker.notice()
        await asyncio.sleep(0.02)
        assert (await rig.jobs.retrieve(ANYONE, job.id)).status == "in_progress"
        rig.wait(0.95)
        rig.service._worker.notice()
        await asyncio.sleep(0.01)
        rig.wait(0.05)  # the runner has set its own alarm
        job = await rig.ended(job)
        assert (job.status, job.expired_at, job.output_file_id) == ("expired", int(rig.now), None)
        errors = await rig.lines(job.error_file_id)
        assert [line["error"]["code"] for line in errors] == ["batch_expired"] * 9
        assert (job.total, job.completed, job.failed) == (9, 0, 9) and not gate.is_set()

    live(tmp_path, test)


def test_a_clock_that_jumps_back_breaks_no_order(tmp_path: Path) -> None:
    async def test(rig: Rig) -> None:
        first = await rig.create(jsonl(request_line("a")))
        rig.now -= 500_000
        second = await rig.create(jsonl(request_line("a")))
        rig.service.start()
        first, second = await rig.ended(first), await rig.ended(second)
        assert first.status == second.status == "completed"
        assert (
            first.created_at <= (first.in_progress_at or 0) <= (first.finalizing_at or 0) <= (first.completed_at or 0)
        )
        assert second.created_at == 500_000
        listed, more = await rig.jobs.page(ANYONE, after=None, limit=10)
        assert [job.id for job in listed] == [second.id, first.id] and not more
        names = [
            file.filename
            for file in (await rig.files.page(ANYONE, after=None, limit=10, purpose="batch", descending=False))[0]
        ]
        assert names == ["in.jsonl"] * 2

    live(tmp_path, test, start=False)


# -- disks ----------------------------------------------------------------------------------------------------------
def test_a_full_database_pauses_and_goes_on(tmp_path: Path) -> None:
    async def test(rig: Rig) -> None:
        limit = "PRAGMA max_page_count"
        database = rig.service._database
        before = await database.write(lambda connection: connection.execute(limit).fetchone()[0])
        gate = rig.answerer.gate = asyncio.Event()
        job = await rig.create(jsonl(*(request_line(str(number), "y" * 3000) for number in range(60))))
        await until(lambda: rig.answerer.running == 4)
        pages = await database.write(lambda connection: connection.execute("PRAGMA page_count").fetchone()[0])
        await database.write(lambda connection: connection.execute(f"{limit}={pages + 4}").fetchone())
        gate.set()
        await until(lambda: rig.service.paused is not None)
        pause = rig.service.paused
        assert pause is not None and pause.reason == "The disk of the data directory is full; make room."
        await asyncio.sleep(0.05)
        held = await rig.jobs.retrieve(ANYONE, job.id)
        assert held.status == "in_progress" and held.completed < 60 and rig.answerer.running == 0
        assert (await refused_upload(rig)).status == 507
        # In a transaction of its own: one shared with an answer that finds no room would fail with it.
        await asyncio.to_thread(
            database.write_now, lambda connection: connection.execute(f"{limit}={before}").fetchone()
        )
        job = await rig.ended(job)
        assert (job.status, job.completed, rig.service.paused) == ("completed", 60, None)
        assert set(rig.answerer.calls.values()) == {1}, "an answer in hand is not asked for again"

    live(tmp_path, test)


async def refused_upload(rig: Rig) -> ApiError:
    before = sorted(path.name for path in rig.service._data.files.iterdir())
    with pytest.raises(ApiError) as refusal:
        for _ in range(100):  # one row fits, a hundred do not
            await rig.upload(jsonl(request_line("a")))
            before = sorted(path.name for path in rig.service._data.files.iterdir())
    assert sorted(path.name for path in rig.service._data.files.iterdir()) == before
    return refusal.value


def test_no_room_for_the_output_file(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    full = True
    write = Content.write

    def fails(content: Content, data: bytes) -> None:
        write(content, data)
        if full and b"batch_req" in data:
            raise StorageError("The disk of the data directory is full; make room.")

    monkeypatch.setattr(Content, "write", fails)

    async def test(rig: Rig) -> None:
        nonlocal full
        job = await rig.create(jsonl(request_line("a"), request_line("b")))
        await until(lambda: rig.service.paused is not None)
        held = await rig.jobs.retrieve(ANYONE, job.id)
        assert held.status == "finalizing" and held.output_file_id is None
        full = False
        job = await rig.ended(job)
        assert job.status == "completed" and len(await rig.lines(job.output_file_id)) == 2
        assert len(list(rig.service._data.files.iterdir())) == 2

    live(tmp_path, test)


# -- restarts -------------------------------------------------------------------------------------------------------
def test_a_restart_runs_exactly_what_has_no_answer(tmp_path: Path) -> None:
    echo = Echo()

    async def part(first: bool) -> tuple[Any, list[dict[str, Any]]]:
        rig = Rig(tmp_path, echo)
        echo.gate = asyncio.Event()
        rig.service.start()
        try:
            if first:
                echo.gate.set()
                job = await rig.create(jsonl(*(request_line(str(number)) for number in range(100)), request_line("3")))
                await rig.until(job, lambda one: one.completed >= 20)
                echo.gate.clear()
                await until(lambda: echo.running == 4)
                return job, []
            ((job,), _) = await rig.jobs.page(ANYONE, after=None, limit=10)
            assert job.status == "in_progress"
            answered = job.completed
            echo.calls.clear()
            echo.gate.set()
            job = await rig.ended(job)
            assert len(echo.calls) == 100 - answered, "the duplicate is no request"
            return job, await rig.lines(job.output_file_id) + await rig.lines(job.error_file_id)
        finally:
            await rig.service.stop()

    asyncio.run(part(True))
    assert echo.cancelled == 4
    job, lines = asyncio.run(part(False))
    assert (job.status, job.completed, job.failed) == ("completed", 100, 1)
    assert [line["custom_id"] for line in lines] == [*map(str, range(100)), "3"]
    assert lines[-1]["error"]["code"] == "duplicate_custom_id"


def test_a_server_that_stops_while_the_end_of_a_job_is_committed_loses_no_output(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    commits, goes_on, store = threading.Event(), threading.Event(), files.store

    def slow(*given: Any) -> None:
        commits.set()
        assert goes_on.wait(30)
        store(*given)

    async def stopped() -> None:
        rig = Rig(tmp_path)
        rig.service.start()
        file = await rig.upload(jsonl(request_line("a")))
        monkeypatch.setattr(files, "store", slow)
        await rig.jobs.create(ANYONE, input_file_id=file.id, endpoint=URL, window="1h", metadata=None)
        await until(commits.is_set)
        stopping = asyncio.create_task(rig.service.stop())
        await asyncio.sleep(0.05)
        goes_on.set()
        await stopping

    async def look(rig: Rig) -> None:
        ((job,), _) = await rig.jobs.page(ANYONE, after=None, limit=10)
        assert (job.status, len(await rig.lines(job.output_file_id))) == ("completed", 1)
        assert len(list((tmp_path / "files").iterdir())) == 2 and not any((tmp_path / "partial").iterdir())

    asyncio.run(stopped())
    live(tmp_path, look, start=False)


def test_ends_that_a_crash_cut_off_are_done_again(tmp_path: Path) -> None:
    """Each job is left in a state that only a crash leaves; the rows are written by hand."""

    async def before() -> list[str]:
        rig = Rig(tmp_path)
        jobs = [await rig.create(jsonl(*(request_line(str(number)) for number in range(5)))) for _ in range(3)]
        await rig.service.stop()
        database = sqlite3.connect(tmp_path / "batch.sqlite")
        for job, status in zip(jobs, ("finalizing", "cancelling", "in_progress"), strict=True):
            values = (status, 5, 3, job.id)
            database.execute(
                "UPDATE jobs SET status=?, in_progress_at=1000001, total=?, completed=? WHERE id=?", values
            )
            most = 5 if status == "finalizing" else 3
            for line in range(1, most + 1):
                database.execute("INSERT INTO answers VALUES (?, ?, ?, 200, '{}')", (job.number, line, str(line - 1)))
        database.commit()
        database.close()
        return [job.id for job in jobs]

    async def after(ids: list[str]) -> None:
        rig = Rig(tmp_path)
        rig.wait(86400)
        rig.service.start()
        jobs = [await rig.ended(await rig.jobs.retrieve(ANYONE, one)) for one in ids]
        assert [job.status for job in jobs] == ["completed", "cancelled", "expired"]
        assert [len(await rig.lines(job.output_file_id)) for job in jobs] == [5, 3, 3]
        assert [len(await rig.lines(job.error_file_id)) for job in jobs] == [0, 2, 2]
        assert rig.answerer.calls == {}
        await rig.service.stop()

    asyncio.run(after(asyncio.run(before())))


def test_so_many_jobs_are_read_at_a_time_and_one_of_each_tenant(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(attempts, "MAX_READING", 2)
    content = jsonl(*(request_line(str(number)) for number in range(200)))
    held: list[int] = []

    async def test(rig: Rig) -> None:
        reading, gate = rig.service._worker._reading, asyncio.Event()
        rig.answerer.gate = gate
        jobs = [(await rig.create(content), ANYONE) for _ in range(6)]
        modest = Tenant(name="modest")
        jobs.append((await rig.create(content, modest), modest))
        for job, tenant in jobs:
            await rig.until(job, lambda one: one.status == "in_progress", tenant)
        await until(lambda: len(reading.jobs) == 3)
        await asyncio.sleep(0.02)
        assert [job.id for job in reading.jobs] == [jobs[0][0].id, jobs[1][0].id, jobs[-1][0].id]
        await rig.jobs.cancel(ANYONE, jobs[1][0].id)
        gate.set()
        for job, tenant in jobs:
            job = await rig.until(job, lambda one: bool(held.append(len(reading.jobs))) or one.status in ENDED, tenant)
            assert job.status == ("cancelled" if job.id == jobs[1][0].id else "completed")
            assert job.completed + job.failed == 200
        assert max(held) <= 3 and not reading.jobs

    live(tmp_path, test)


def test_so_many_ends_read_their_input_at_a_time(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    end_as = worker.Worker._end_as
    reading, most = 0, 0

    async def counted(*given: Any) -> Any:
        nonlocal reading, most
        reading += 1
        most = max(most, reading)
        ended = await end_as(*given)
        reading -= 1
        return ended

    async def test(rig: Rig) -> None:
        rig.answerer.gate = asyncio.Event()
        jobs = [await rig.create(jsonl(*(request_line(str(number)) for number in range(200)))) for _ in range(8)]
        for job in jobs:
            await rig.until(job, lambda one: one.status == "in_progress")
        await asyncio.gather(*(rig.jobs.cancel(ANYONE, job.id) for job in jobs))
        assert [(await rig.ended(job)).failed for job in jobs] == [200] * 8
        assert most == worker.MAX_ENDING

    monkeypatch.setattr(worker.Worker, "_end_as", counted)
    live(tmp_path, test)


def test_an_answer_with_a_damaged_byte_keeps_no_job_from_ending(tmp_path: Path) -> None:

    async def test(rig: Rig) -> None:
        job = await rig.create(jsonl(*(request_line(str(number)) for number in range(5))))
        rig.answerer.gate = asyncio.Event()
        rig.answerer.refuse = {"x": [ApiError(400, "No.")] * 5}
        database = rig.service._database
        end_as = worker.Worker._end_as

        async def damaged(*given: Any) -> Any:
            query = "UPDATE answers SET payload = CAST(x'7bff' AS TEXT) WHERE line = 2"
            await database.write(lambda connection: connection.execute(query).rowcount)
            return await end_as(*given)

        with pytest.MonkeyPatch.context() as patch:
            patch.setattr(worker.Worker, "_end_as", damaged)
            rig.answerer.gate.set()
            job = await rig.ended(job)
        assert (job.status, job.errors) == ("completed", [])
        lines = await rig.lines(job.output_file_id) + await rig.lines(job.error_file_id)
        hurt = [line for line in lines if (line["error"] or {}).get("code") == "damaged_answer"]
        assert len(lines) == 5 and len(hurt) == 1
        assert hurt[0]["custom_id"] == "1"

    live(tmp_path, test)


def test_idle_costs_nothing(tmp_path: Path) -> None:
    async def test(rig: Rig) -> None:
        await rig.ended(await rig.create(jsonl(request_line("a"))))
        await asyncio.sleep(0.02)
        rounds = 0
        running = rig.service._jobs.running

        async def counted() -> Any:
            nonlocal rounds
            rounds += 1
            return await running()

        rig.service._jobs.running = counted  # type: ignore[method-assign]
        await asyncio.sleep(3 * worker.POLL_SECONDS)
        assert rounds == 0, "nothing has changed"

    live(tmp_path, test)


def test_lines_in_flight_are_bounded_in_bytes(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """For all jobs together."""
    monkeypatch.setattr(attempts, "MAX_LINE_BYTES", 300_000)
    length, held = 100_000, [0]

    async def test(rig: Rig) -> None:
        lines = rig.service._worker._slots
        content = jsonl(*(request_line(str(number), f"{number} " + "x" * length) for number in range(12)))
        jobs = [await rig.create(content) for _ in range(4)]
        for job in jobs:
            await rig.until(job, lambda one: bool(held.append(lines.nbytes)) or one.status in ENDED)
        assert [(await rig.ended(job)).completed for job in jobs] == [12] * 4
        assert 0 < max(held) <= 300_000 and lines.nbytes == 0

    live(tmp_path, test)
