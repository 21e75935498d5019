"""Attacks by uploads and batch jobs. Each attacker deletes what it uploaded, as far as it is let."""

from __future__ import annotations

import asyncio
import json
from collections.abc import Callable

from benchmarks.attack.kind import Act, Attack
from benchmarks.attack.visit import Visit
from benchmarks.attack.wire import filled, form, head, text, upload

_FORM = "multipart/form-data; boundary=B"
_LOOKS = 8  # at a job, one a second


def _line(number: int, body: str) -> bytes:
    start = f'{{"custom_id":"{number}","method":"POST","url":"/v1/completions","body":'
    return (start + body + "}\n").encode()


def _long_text(_: int) -> str:
    return json.dumps({"prompt": "word and " * 190_000})


def _dense(_: int) -> str:
    return json.dumps({"prompt": "qxzjvk" * 290_000})


def _lists(_: int) -> str:
    return filled('{"prompt":[', "[]", "]}", 8 << 20).decode()


def _deep(_: int) -> str:
    return "[" * 1_000_000


def _samples(_: int) -> str:
    return json.dumps({"prompt": "x", "n": 60, "logprobs": 20, "max_tokens": 400, "ignore_eos": True})


def _odd(number: int) -> str:
    odd = [
        '{"prompt":"\\ud800"}',
        '{"prompt":[-1]}',
        '{"prompt":"x","stop":["\\udfff"]}',
        '{"prompt":"\\u0000"}',
        '{"prompt":[],"max_tokens":1}',
        '{"prompt":"x","bad_words":["\\ud800"]}',
        "null",
        '{"prompt":"x","max_tokens":1e400}',
    ]
    return odd[number % len(odd)]


def _job(line: Callable[[int], str], count: int) -> Act:
    made: list[bytes] = []

    async def act(visit: Visit) -> None:
        if not made:
            made.append(form(b"".join(_line(number, line(number)) for number in range(count))))
        answer = await visit.json("POST", "/v1/files", made[0], _FORM)
        if not answer:
            await asyncio.sleep(0.2)
            return
        file = json.loads(answer)["id"]
        wanted = {"input_file_id": file, "endpoint": "/v1/completions", "completion_window": "24h"}
        answer = await visit.json("POST", "/v1/batches", text(wanted))
        try:
            if answer:
                await _followed(visit, json.loads(answer)["id"])
        finally:
            await visit.json("DELETE", f"/v1/files/{file}")

    return act


async def _followed(visit: Visit, job: str) -> None:
    for _ in range(_LOOKS):
        await asyncio.sleep(1.0)
        answer = await visit.json("GET", f"/v1/batches/{job}")
        if answer and json.loads(answer)["status"] in ("completed", "failed"):
            return
    await visit.json("POST", f"/v1/batches/{job}/cancel")


async def _broken_off(visit: Visit) -> None:
    async with visit.line() as line:
        if line is not None:
            await line.send(head("/v1/files", 64 << 20, visit.key, kind=_FORM) + form(b"x" * (4 << 20))[:-100])
            visit.note("left")


async def _no_file(visit: Visit) -> None:
    parts = b'--B\r\nContent-Disposition: form-data; name="purpose"\r\n\r\n' + b"p" * (8 << 20)
    await visit.ask(head("/v1/files", len(parts), visit.key, kind=_FORM), parts)


async def _form_headers(visit: Visit) -> None:
    parts = b"--B\r\n" + b"x-header: value\r\n" * 400_000
    await visit.ask(head("/v1/files", len(parts), visit.key, kind=_FORM), parts)


async def _one_form_header(visit: Visit) -> None:
    parts = b"--B\r\nContent-Disposition: form-data; name=" + b"n" * (16 << 20)
    await visit.ask(head("/v1/files", len(parts), visit.key, kind=_FORM), parts)


async def _boundary(visit: Visit) -> None:
    await visit.ask(upload(b"{}\n", visit.key, "B" * visit.rng.choice([257, 4000])))


async def _pages(visit: Visit) -> None:
    await visit.json(
        "GET", visit.rng.choice(["/v1/files?limit=10000", "/v1/batches?limit=100", "/v1/files/file-x/content"])
    )


def file_attacks() -> list[Attack]:
    return [
        Attack("job of long text", "10 lines of 1.7 MB of words", _job(_long_text, 10), 3),
        Attack("job of dense text", "10 lines of 1.7 MB of letters", _job(_dense, 10), 3),
        Attack("job of lists", "4 lines of 8 MB of [[],[],", _job(_lists, 4), 3),
        Attack("job of deep lines", "20 lines of a million [", _job(_deep, 20), 3),
        Attack("job of odd lines", "2,000 lines of what breaks parsers and tokenizers", _job(_odd, 2000), 3),
        Attack("job of samples", "40 lines of n 60 with 20 log-probabilities", _job(_samples, 40), 3),
        Attack("job of empty lines", "4 million empty lines", _job_of_nothing(), 3),
        Attack("uploads that break off", "64 MB announced, 4 MB sent", _broken_off, 8),
        Attack("form without a file", "a field of 8 MB that is no file", _no_file, 8),
        Attack("headers in a form", "400,000 headers of one part", _form_headers, 8),
        Attack("one header in a form", "a header of 16 MB in a part", _one_form_header, 8),
        Attack("long boundary", "a boundary of 257 or 4,000 letters", _boundary, 8),
        Attack("lists of files", "pages of files and jobs, and a file that there is not", _pages, 16),
    ]


def _job_of_nothing() -> Act:
    return _job(lambda _: "\n" * 2_000_000, 2)
