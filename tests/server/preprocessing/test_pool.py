"""The processes that read bodies: their limits end a body, and nothing else."""

from __future__ import annotations

import asyncio
import errno
import json
import os
import shutil
import signal
from collections.abc import Awaitable, Callable
from pathlib import Path
from typing import Any

import pytest

import inflight
from inflight.frontend.prompts import PromptEncoder
from inflight.server.common.prepared import Limits, PreparedAnswer, PreparedChat, PreparedCompletion
from inflight.server.errors import ApiError
from inflight.server.preprocessing import pool as pool_module
from inflight.server.preprocessing.pool import SHORT_BYTES, PreprocessingError, PreprocessingPool, ReadingProcess
from inflight.server.preprocessing.worker import Preprocessor
from inflight.text import ChatTemplate, TextFiles, Tokenizer

BUILT_IN = Path(inflight.__file__).parent / "builtin_model"
MEMORY = 64 << 20
LONG_BODY = json.dumps({"prompt": "Hello, " * SHORT_BYTES}).encode()
PADDED_BODY = b'{"prompt": "Hello"}' + b" " * SHORT_BYTES  # long, but a process keeps no memory of it


def chat(content: str = "Hello", **more: Any) -> bytes:
    return json.dumps({"messages": [{"role": "user", "content": content}], **more}).encode()


def run(
    work: Callable[[PreprocessingPool], Awaitable[None]],
    folder: Path = BUILT_IN,
    memory: int = MEMORY,
    long_processes: int | None = None,
) -> None:
    async def main() -> None:
        tokenizer = Tokenizer.load(folder)
        in_place = Preprocessor(PromptEncoder(tokenizer, ChatTemplate.load(folder), 0), tokenizer, Limits())
        pool = PreprocessingPool(long_processes)
        pool.load(TextFiles(str(folder)))
        try:
            await asyncio.to_thread(pool.configure, Limits(memory_bytes=memory), in_place)
            await work(pool)
        finally:
            await pool.close()

    asyncio.run(main())


def with_template(tmp_path: Path, template: str) -> Path:
    folder = tmp_path / "model"
    shutil.copytree(BUILT_IN, folder)
    (folder / "chat_template.jinja").write_text(template, encoding="utf-8")
    return folder


async def refusal(pool: PreprocessingPool, body: bytes) -> ApiError:
    with pytest.raises(ApiError) as refused:
        await pool.prepare("chat", body)
    return refused.value


def test_short_and_long_bodies_of_every_kind() -> None:
    async def work(pool: PreprocessingPool) -> None:
        tokenizer = Tokenizer.load(BUILT_IN)
        for text in ("Hello", "Hello, " * 1000, "Hello, " * SHORT_BYTES):
            completion = await pool.prepare("completion", json.dumps({"prompt": text}).encode())
            assert isinstance(completion, PreparedCompletion)
            assert completion.prompts[0].ids() == tuple(tokenizer.encode(text))
            chatted = await pool.prepare("chat", chat(text, temperature=0.5))
            assert isinstance(chatted, PreparedChat) and chatted.settings.temperature == 0.5
            assert len(chatted.prompts[0].ids()) > len(completion.prompts[0].ids())
        tokenized = await pool.prepare("tokenize", b'{"prompt": "one two"}')
        assert isinstance(tokenized, PreparedAnswer) and json.loads(tokenized.json)["count"] > 0
        assert (await refusal(pool, chat(temperature=-9))).param == "temperature"
        assert (await refusal(pool, b'{"messages": [' + b"{}," * 300_000 + b"{}]}")).param == "messages[0].role"

    run(work, memory=1 << 30)


def test_no_owner_waits_behind_all_that_another_has_sent() -> None:
    async def work(pool: PreprocessingPool) -> None:
        done: list[str] = []

        async def one(owner: str) -> None:
            await pool.prepare("completion", LONG_BODY, owner)
            done.append(owner)

        await asyncio.gather(*(one(owner) for owner in ["flood"] * 5 + ["other"]))
        assert done.index("other") == 1

    run(work, memory=1 << 30, long_processes=1)


def test_many_at_once_come_back_to_whom_they_belong() -> None:
    async def work(pool: PreprocessingPool) -> None:
        async def one(number: int) -> None:
            text = f"number {number} " * (1 if number % 3 else 3000)
            prepared = await pool.prepare("chat", chat(text, seed=number))
            assert isinstance(prepared, PreparedChat) and prepared.settings.seed == number

        tasks = [asyncio.create_task(one(number)) for number in range(60)]
        await asyncio.sleep(0.01)
        for task in tasks[::7]:
            task.cancel()  # who goes away leaves no answer behind for the next
        results = await asyncio.gather(*tasks, return_exceptions=True)
        assert all(one is None or isinstance(one, asyncio.CancelledError) for one in results)

    run(work)


@pytest.mark.parametrize(
    "template",
    [
        "{{ 'a' * 10**10 }}",
        "{% set ns = namespace(x='aaaa') %}{% for _ in range(99) %}{% set ns.x = ns.x ~ ns.x %}{% endfor %}{{ ns.x }}",
        "{% for a in range(99999) %}{% for b in range(99999) %}{% endfor %}{% endfor %}",
    ],
    ids=["size", "doubling", "time"],
)
def test_a_template_that_runs_away_ends_its_body_alone(
    tmp_path: Path, template: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(pool_module, "CPU_SECONDS", 0.5)

    async def work(pool: PreprocessingPool) -> None:
        for _ in range(2):
            error = await refusal(pool, chat("boom"))
            assert error.status == 400 and error.message.endswith(".")
        prepared = await pool.prepare("chat", chat("fine"))
        assert isinstance(prepared, PreparedChat)

    run(work, with_template(tmp_path, "{% if messages[0].content == 'boom' %}" + template + "{% endif %}x"))


def test_a_body_that_is_too_complex_is_refused_for_what_it_lacked(monkeypatch: pytest.MonkeyPatch) -> None:
    """The tokenizer's library ends the process where it gets no memory, long before its time is over."""

    async def memory(pool: PreprocessingPool) -> None:
        error = await refusal(pool, chat("1234567890" * 40_000))
        assert error.code == "body_too_complex"
        assert "memory" in error.message and " s of computing" not in error.message

        error = await refusal(pool, b" " * (3 * MEMORY))
        assert error.code == "body_too_complex" and "memory" in error.message, "it has no room as it comes"

    async def computing(pool: PreprocessingPool) -> None:
        error = await refusal(pool, chat("Hello, " * 200_000))
        assert error.code == "body_too_complex"
        assert "more than 0.01 s of computing" in error.message and "memory" not in error.message

    run(memory)
    monkeypatch.setattr(pool_module, "CPU_SECONDS", 0.01)
    run(computing, memory=1 << 30)


@pytest.mark.parametrize("text", ["1234567890" * 30_000, "Hello, world foo. " * 50_000], ids=["digits", "words"])
def test_a_long_text_is_tokenized_whole(text: str) -> None:
    """With the memory that one body may take, which the library's tokens of all of it would exceed."""

    async def work(pool: PreprocessingPool) -> None:
        body = json.dumps({"prompt": text, "return_token_strs": True}).encode()
        prepared = await pool.prepare("tokenize", body)
        assert isinstance(prepared, PreparedAnswer)
        answer, tokenizer = json.loads(prepared.json), Tokenizer.load(BUILT_IN)
        assert answer["tokens"] == tokenizer.encode(text) and answer["count"] == len(answer["token_strs"])
        assert answer["token_strs"][-9:] == [tokenizer.id_to_token(one) for one in answer["tokens"][-9:]]

    run(work)


def test_a_process_that_is_killed_between_two_bodies_is_made_anew() -> None:
    async def work(pool: PreprocessingPool) -> None:
        await pool.prepare("chat", chat())
        first = pool._process.pid
        for also_the_first in (False, True):
            for process in [first] * also_the_first + children_of(pool):
                os.kill(process, signal.SIGKILL)
            assert isinstance(await pool.prepare("chat", chat()), PreparedChat)
        assert pool._process.pid != first

    run(work)


@pytest.mark.parametrize("kills", [1, 2])
def test_a_body_whose_process_is_killed_is_read_by_another_once(kills: int, monkeypatch: pytest.MonkeyPatch) -> None:
    killed: set[int] = set()
    read = ReadingProcess.read

    async def killed_at_work(process: ReadingProcess, endpoint: str, body: bytes, history: bytes) -> bytes:
        if len(killed) < kills:
            killed.add(process.pid)
            os.kill(process.pid, signal.SIGKILL)
        return await read(process, endpoint, body, history)

    monkeypatch.setattr(ReadingProcess, "read", killed_at_work)

    async def work(pool: PreprocessingPool) -> None:
        if kills == 2:
            error = await refusal(pool, chat())
            assert (error.status, error.code) == (503, "body_not_read")
        assert isinstance(await pool.prepare("chat", chat()), PreparedChat)
        assert len(killed) == kills

    run(work)


def test_a_process_that_cannot_be_started_is_no_fault_of_the_body() -> None:
    async def full(role: bytes) -> ReadingProcess:
        raise OSError(errno.EMFILE, "Too many open files")

    async def work(pool: PreprocessingPool) -> None:
        with pytest.MonkeyPatch.context() as patch:
            patch.setattr(pool, "_forked", full)
            error = await refusal(pool, chat())
        assert (error.status, error.code) == (503, "body_not_read") and "Too many open files" in error.message
        assert isinstance(await pool.prepare("chat", chat()), PreparedChat)

    run(work)


def test_the_next_engine_waits_for_processes_that_were_not_loaded_for_the_last_one() -> None:
    async def work(pool: PreprocessingPool) -> None:
        assert pool._in_place is not None
        another = PreprocessingPool()
        for _ in range(2):
            with pytest.MonkeyPatch.context() as patch:
                patch.setattr(another, "_wait_until_loaded", raise_not_loaded)
                with pytest.raises(PreprocessingError):
                    another.configure(Limits(), pool._in_place)
        await another.close()

    run(work)


def raise_not_loaded() -> None:
    raise PreprocessingError("It is not loaded.")


def test_signals_of_a_service_do_not_end_the_processes() -> None:
    async def work(pool: PreprocessingPool) -> None:
        await pool.prepare("chat", chat())
        before = children_of(pool)
        for process in (pool._process.pid, *before):
            os.kill(process, signal.SIGTERM)
        assert isinstance(await pool.prepare("chat", chat()), PreparedChat)
        assert children_of(pool) == before

    run(work)


def children_of(pool: PreprocessingPool) -> list[int]:
    """Return the processes that read bodies now."""
    first = pool._process.pid
    found = Path(f"/proc/{first}/task/{first}/children").read_text(encoding="ascii").split()
    assert found
    return [int(one) for one in found]


def test_a_process_that_stands_still_is_killed_and_its_body_read_by_another(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(pool_module, "LOOK_SECONDS", 0.2)

    async def work(pool: PreprocessingPool) -> None:
        await pool.prepare("completion", PADDED_BODY)
        (stopped,) = children_of(pool)
        os.kill(stopped, signal.SIGSTOP)
        done: list[str] = []

        async def one(name: str) -> None:
            prepared = await pool.prepare("completion", PADDED_BODY)
            assert isinstance(prepared, PreparedCompletion)
            done.append(name)

        await asyncio.gather(one("before the stopped process"), one("before another"))
        assert done == ["before another", "before the stopped process"], "one process holds up its own body alone"
        async with asyncio.timeout(30):
            while stopped in children_of(pool):  # until the process that forked it has taken note
                await asyncio.sleep(0.01)

    run(work, memory=1 << 30, long_processes=2)


def test_a_first_process_that_stands_still_is_started_anew(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(pool_module, "LOOK_SECONDS", 0.2)

    async def work(pool: PreprocessingPool) -> None:
        await pool.prepare("chat", chat())
        stopped = pool._process.pid
        for process in (*children_of(pool), stopped):
            os.kill(process, signal.SIGSTOP)
        prepared = await pool.prepare("chat", chat())
        assert isinstance(prepared, PreparedChat)
        assert pool._process.pid != stopped

    run(work)


def test_a_folder_that_is_no_model_is_reported(tmp_path: Path) -> None:
    (tmp_path / "tokenizer.json").write_text("{", encoding="utf-8")
    (tmp_path / "tokenizer_config.json").write_text("[]", encoding="utf-8")

    async def work(pool: PreprocessingPool) -> None:
        raise AssertionError

    with pytest.raises((PreprocessingError, ValueError)):
        run(work, tmp_path)


def test_a_file_that_is_no_model_leaves_no_traceback(tmp_path: Path, capfd: pytest.CaptureFixture[str]) -> None:
    (tmp_path / "model.gguf").write_bytes(b"no model at all")

    async def work(pool: PreprocessingPool) -> None:
        raise AssertionError

    with pytest.raises((PreprocessingError, ValueError)):
        run(work, tmp_path / "model.gguf")
    assert "Traceback" not in capfd.readouterr().err
