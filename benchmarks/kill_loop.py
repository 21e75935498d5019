"""A data directory under `kill -9` and under damage: what was answered is kept, and what is foreign is never touched.

Two trials, each with a real server in a process of its own:

- killed: while jobs run and files come and go, the server is killed at random moments, now and then before it answers
  at all. After each kill: every answer that was durable before is, unchanged. After each restart: files whose upload
  was answered are there, whole; files whose deletion was answered are not; nothing was moved aside. In the end every
  line stands in exactly one file of its job, with the answer that was durable first.
- damaged: a directory as a kill left it, with an ended and a running job, is damaged (`damages`). The server refuses
  it with one sentence and changes nothing at all; or it starts, and then every foreign byte and every byte of its own
  files that the damage left is still somewhere in the folder, and its running job ends with no line doubled, and none
  lost and no answer changed where what it is made of was not hurt.
"""

from __future__ import annotations

import argparse
import contextlib
import hashlib
import json
import random
import re
import shutil
import sqlite3
import sys
import tempfile
import threading
import time
import urllib.error
from collections import Counter
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from benchmarks.damages import DATABASE, LOG, SIDES, Damage, damage
from benchmarks.killed_server import ENDED, Server, Wrong
from benchmarks.results import table, write_section

_REFUSAL = re.compile(r"(?:inflight: |[\d:.]+ ERROR +inflight\.server )(.+\.)")
EARLY = 0.1  # share of the lives that are ended before the server is ready
DAMAGES_EACH = 10  # of one directory as a kill left it, before another is made
_UPLOAD_BYTES = (10, 5_000, 400_000)


@dataclass(slots=True)
class Tally:
    kills: int = 0
    early: int = 0
    jobs: int = 0
    lines: int = 0
    answered: int = 0  # most lines whose answer was durable at a kill
    uploads: int = 0
    deletions: int = 0
    damages: Counter[str] = field(default_factory=Counter)
    refused: Counter[str] = field(default_factory=Counter)
    foreign: Counter[str] = field(default_factory=Counter)  # things
    gone_on: Counter[str] = field(default_factory=Counter)  # jobs that ended completed

    def add(self, other: Tally) -> None:
        for name in self.__slots__:
            mine, theirs = getattr(self, name), getattr(other, name)
            setattr(self, name, max(mine, theirs) if name == "answered" else mine + theirs)


# -- killed -----------------------------------------------------------------------------------------------------------
class Uploads:
    """Files come and go while the server lives; what it answered is what it must keep."""

    def __init__(self, server: Server, chosen: random.Random, tally: Tally):
        self._server, self._chosen, self._tally = server, chosen, tally
        self._kept: dict[str, bytes] = {}
        self._sent: set[bytes] = set()  # digests of all that may be there

    def go_on(self, stop: threading.Event) -> None:
        """Until the server is gone."""
        with contextlib.suppress(OSError):
            while not stop.is_set():
                if len(self._kept) > 8:
                    self._delete(self._chosen.choice(sorted(self._kept)))
                content = self._chosen.randbytes(self._chosen.choice(_UPLOAD_BYTES))
                self._sent.add(hashlib.sha256(content).digest())
                self._kept[self._server.upload(content)] = content
                self._tally.uploads += 1

    def _delete(self, file_id: str) -> None:
        content = self._kept.pop(file_id)  # from here on it may be there or not
        self._server.call("DELETE", f"/v1/files/{file_id}")
        self._sent.discard(hashlib.sha256(content).digest())
        self._tally.deletions += 1

    def check(self, others: set[str]) -> None:
        """others: ids of files of jobs. Takes the files in that came without an answer."""
        listed = {file["id"]: file for file in self._server.call("GET", "/v1/files")["data"]}
        if lost := self._kept.keys() - listed.keys():
            raise Wrong(f"Files were lost: {sorted(lost)}.")
        for file_id in listed.keys() - others:
            content = self._server.content(f"/v1/files/{file_id}/content")
            if self._kept.setdefault(file_id, content) != content or len(content) != listed[file_id]["bytes"]:
                raise Wrong(f"The content of {file_id} is not what was sent.")
            if listed[file_id]["purpose"] == "batch" and hashlib.sha256(content).digest() not in self._sent:
                raise Wrong(f"{file_id} was not sent in this form, or its deletion was answered.")


def killed(folder: Path, kills: int, lines: int, max_tokens: int, longest: float, seed: int) -> Tally:
    chosen, tally = random.Random(seed), Tally()
    server = Server(folder / "data", folder / "log")
    uploads = Uploads(server, random.Random(seed + 1), tally)
    job: dict[str, Any] | None = None
    others: set[str] = set()
    kept: dict[int, str] = {}
    while tally.kills < kills or job is not None:
        server.spawn()
        if tally.kills < kills and chosen.random() < EARLY:
            time.sleep(chosen.uniform(0, 1))
            server.kill()
            tally.kills, tally.early = tally.kills + 1, tally.early + 1
            continue
        if (code := server.wait_until_ready()) is not None:
            raise Wrong(f"The server ended with {code}: {server.words()[:500]}")
        if (folder / "data" / "unknown").exists():
            raise Wrong(f"Something was moved aside after a kill: {server.words()[:500]}")
        if job is None:
            job, kept = server.create_job(lines, max_tokens), {}
            others.add(job["input_file_id"])
        uploads.check(others | _files_of(server))
        stop = threading.Event()
        traffic = threading.Thread(target=uploads.go_on, args=(stop,), daemon=True)
        traffic.start()
        job = _looked_at(server, job, chosen.uniform(0, longest) if tally.kills < kills else 600)
        if job["status"] in ENDED:
            check_job(server, job, lines, kept)
            tally.jobs, tally.lines, job = tally.jobs + 1, tally.lines + lines, None
            print(f"job {tally.jobs}: {lines} lines whole after {tally.kills} kills", file=sys.stderr)
        tally.kills += tally.kills < kills
        stop.set()
        server.kill()
        traffic.join()
        if job is not None:
            kept = _still(kept, durable_answers(folder / "data"))
            tally.answered = max(tally.answered, len(kept))
    return tally


def _looked_at(server: Server, job: dict[str, Any], seconds: float) -> dict[str, Any]:
    """Until it has ended, or the time is up."""
    until = time.monotonic() + seconds
    while job["status"] not in ENDED and time.monotonic() < until:
        before, job = job, server.job(job["id"])
        if any(job["request_counts"][name] < count for name, count in before["request_counts"].items()):
            raise Wrong(f"A count went back: {before['request_counts']}, then {job['request_counts']}.")
        time.sleep(0.005)
    return job


def _files_of(server: Server) -> set[str]:
    """Ids of inputs and outputs of all jobs."""
    names = ("input_file_id", "output_file_id", "error_file_id")
    jobs = server.call("GET", "/v1/batches?limit=100")["data"]
    return {job[name] for job in jobs for name in names if job[name] is not None}


def durable_answers(data: Path) -> dict[int, str]:
    """By line: what the store holds of jobs that have not ended, read from a copy."""
    with tempfile.TemporaryDirectory() as copy:
        for name in (DATABASE, LOG):
            if (data / name).exists():
                shutil.copyfile(data / name, Path(copy) / name)
        with contextlib.closing(sqlite3.connect(Path(copy) / DATABASE)) as database:
            return dict(database.execute("SELECT line, payload FROM answers").fetchall())


def _still(before: dict[int, str], now: dict[int, str]) -> dict[int, str]:
    """Return what is durable now, if that holds all that was. Answers of an ended job stand in its files only."""
    if now and any(now.get(line) != payload for line, payload in before.items()):
        raise Wrong(f"An answer that was durable is gone or another: {len(before)} before, {len(now)} now.")
    return now or before


def check_job(server: Server, job: dict[str, Any], lines: int, kept: dict[int, str]) -> None:
    """kept: by line, answers that were durable before. Raises Wrong where a line is missing, double or out of order, or
    was answered anew."""
    found = server.lines(job["output_file_id"])
    names = [one["custom_id"] for one in found]
    counts = job["request_counts"]
    whole = names == [str(n) for n in range(lines)] and job["error_file_id"] is None
    if not whole or job["status"] != "completed" or counts != {"total": lines, "completed": lines, "failed": 0}:
        raise Wrong(f"Lines were lost or doubled: {len(set(names))} of {lines} once, {counts}, {job['status']}.")
    if any(found[line - 1]["response"]["body"] != json.loads(payload) for line, payload in kept.items()):
        raise Wrong("A line whose answer was durable has another one.")


# -- damaged ----------------------------------------------------------------------------------------------------------
@dataclass(frozen=True, slots=True)
class Left:
    """A directory as a kill left it. older: as it was some time before. job: the running one, of so many lines. kept:
    its durable answers."""

    data: Path
    older: Path
    job: dict[str, Any]
    lines: int
    kept: dict[int, str]


def left_by_a_kill(folder: Path, chosen: random.Random) -> Left:
    shutil.rmtree(folder, ignore_errors=True)
    folder.mkdir()
    server = Server(folder / "data", folder / "log")
    server.start()
    for _ in range(3):
        server.upload(chosen.randbytes(chosen.choice(_UPLOAD_BYTES)))
    server.ended(server.create_job(20, 4)["id"])
    (server.stop if chosen.random() < 0.5 else server.kill)()
    shutil.copytree(folder / "data", folder / "older", symlinks=True)
    server.start()
    files = server.call("GET", "/v1/files")["data"]
    server.call("DELETE", f"/v1/files/{files[-1]['id']}")
    for _ in range(2):
        server.upload(chosen.randbytes(chosen.choice(_UPLOAD_BYTES)))
    lines = 80
    job = server.create_job(lines, 24)
    while (job := server.job(job["id"]))["request_counts"]["completed"] < 5 and job["status"] not in ENDED:
        time.sleep(0.005)
    server.kill()
    return Left(folder / "data", folder / "older", job, lines, durable_answers(folder / "data"))


def damaged(folder: Path, damages: int, seed: int) -> Tally:
    chosen, tally = random.Random(seed), Tally()
    left: Left | None = None
    for number in range(damages):
        if left is None or number % DAMAGES_EACH == 0:
            left = left_by_a_kill(folder / "left", chosen)
        data = folder / "data"
        shutil.rmtree(data, ignore_errors=True)
        shutil.copytree(left.data, data, symlinks=True)
        done = damage(data, left.older, chosen)
        tally.damages[done.kind] += 1
        server = Server(data, folder / "log")
        try:
            _judge(server, left, done, tally)
        except (Wrong, OSError) as error:
            raise Wrong(f"{done.kind} ({', '.join(sorted(done.hurt)[:9])}): {error}") from error
    return tally


def _judge(server: Server, left: Left, done: Damage, tally: Tally) -> None:
    before, must_stay = held(server.data), contents(server.data)
    tally.foreign[done.kind] += sum(count for digest, count in must_stay.items() if digest[0] == "foreign")
    server.spawn()
    code = server.wait_until_ready()
    if code is not None:
        tally.refused[done.kind] += 1
        _check_refusal(server, code)
        if held(server.data) != before:
            raise Wrong("A refused start has changed the folder.")
        return
    try:
        tally.gone_on[done.kind] += _check_job(server, left, done)
        _check_files(server, done)
    finally:
        server.kill()
    if missing := must_stay - contents(server.data):
        raise Wrong(f"Content was lost: {list(missing)[:3]}.")
    if "Traceback" in server.words():
        raise Wrong(f"A traceback: {server.words()[:2000]}")


def _check_refusal(server: Server, code: int) -> None:
    """By the command, or in the log where the directory was checked after the port answered; who asked meanwhile has
    lines of its own."""
    words = [line for line in server.words().strip().splitlines() if " ERROR " in line or "inflight: " in line]
    sentence = _REFUSAL.fullmatch("\n".join(words))
    if code != 1 or sentence is None or ". " in sentence[1]:
        raise Wrong(f"No refusal in one sentence, but code {code}: {server.words()[:1000]}")


def _check_job(server: Server, left: Left, done: Damage) -> bool:
    """Whether it ended completed."""
    store_hurt = bool(done.hurt & {DATABASE, LOG})
    try:
        job = server.ended(left.job["id"])
    except urllib.error.HTTPError as error:
        if error.code == 404 and store_hurt:  # an older store does not know it
            return False
        raise
    input_hurt = f"files/{left.job['input_file_id']}" in done.hurt
    if not store_hurt and not input_hurt:
        check_job(server, job, left.lines, left.kept)
        return True
    found = [*server.lines(job["output_file_id"]), *server.lines(job["error_file_id"])]
    names = [one["custom_id"] for one in found if one["custom_id"] is not None]
    if len(names) != len(set(names)) or len(found) > left.lines + 1:
        raise Wrong(f"Lines are doubled: {len(found)} lines with {len(set(names))} names.")
    said = any(error["code"] in ("lines_lost", "input_file_missing") for error in (job["errors"] or {}).get("data", []))
    if len(found) < left.lines and not said:
        raise Wrong(f"{left.lines - len(found)} lines are in no file, and the job does not say so: {job}.")
    if not store_hurt and any(
        one["response"] is None or one["response"]["body"] != json.loads(left.kept[line])
        for line in left.kept
        for one in found
        if one["custom_id"] == str(line - 1)
    ):
        raise Wrong("A line whose answer was durable has another one.")
    return bool(job["status"] == "completed")


def _check_files(server: Server, done: Damage) -> None:
    """Each is given out whole, or refused in a sentence."""
    for file in server.call("GET", "/v1/files")["data"]:
        try:
            content = server.content(f"/v1/files/{file['id']}/content")
        except urllib.error.HTTPError as error:
            code = json.loads(error.read())["error"]["code"]
            if code not in ("content_missing", "content_damaged") or not done.hurt:
                raise Wrong(f"{file['id']} is refused with {error.code} {code}.") from None
            continue
        if len(content) != file["bytes"]:
            raise Wrong(f"{file['id']} has {len(content)} of {file['bytes']} bytes.")


def held(data: Path) -> dict[str, str]:
    """Everything there is, by path; but for the index of the log, which every reader of the database makes anew."""
    found = {}
    for path in sorted(data.rglob("*")):
        if path.name == "batch.sqlite-shm":
            continue
        if path.is_symlink():
            found[str(path)] = f"link to {path.readlink()}"
        else:
            found[str(path)] = hashlib.sha256(path.read_bytes()).hexdigest() if path.is_file() else "folder"
    return found


def contents(data: Path) -> Counter[tuple[str, str]]:
    """Count what must not be lost, wherever it lies: foreign files, and files of tenants.

    Returns:
        ("foreign" or "own", digest) → how often.
    """
    found: Counter[tuple[str, str]] = Counter()
    for path in data.rglob("*"):
        name = path.relative_to(data)
        if path.is_symlink() or not path.is_file() or str(name) in SIDES:
            continue
        content = path.read_bytes()
        if content.startswith(b"foreign "):
            found["foreign", hashlib.sha256(content).hexdigest()] += 1
        elif name.parts[0] in ("files", "unknown"):
            found["own", hashlib.sha256(content).hexdigest()] += 1
    return found


# -- both -------------------------------------------------------------------------------------------------------------
def run(given: argparse.Namespace) -> Tally:
    """The trials are spread over workers, each with folders of its own."""
    tally = Tally()
    with tempfile.TemporaryDirectory() as name, ThreadPoolExecutor(given.workers) as pool:
        waiting = []
        for worker in range(given.workers):
            kills, damages = (_share(number, worker, given.workers) for number in (given.kills, given.damages))
            for trial in ("killed", "damaged"):
                (Path(name) / f"{trial} {worker}").mkdir()
            seed = given.seed + 1000 * worker
            place = Path(name) / f"killed {worker}"
            shape = (given.lines, given.max_tokens, given.longest_life)
            if kills:
                waiting.append(pool.submit(killed, place, kills, *shape, seed))
            if damages:
                place = Path(name) / f"damaged {worker}"
                waiting.append(pool.submit(damaged, place, damages, seed))
        for one in waiting:
            tally.add(one.result())
    return tally


def _share(number: int, worker: int, workers: int) -> int:
    return (number + worker) // workers


def report(tally: Tally, seconds: float) -> str:
    head = (
        "kills",
        "before it was ready",
        "jobs",
        "lines, each once",
        "uploads",
        "deletions",
        "answers at a kill, at most",
    )
    row = (tally.kills, tally.early, tally.jobs, tally.lines, tally.uploads, tally.deletions, tally.answered)
    kinds = ("damage", "times", "refused in one sentence", "started, job completed", "foreign files, all kept")
    rows = [
        (kind, times, tally.refused[kind], tally.gone_on[kind], tally.foreign[kind])
        for kind, times in sorted(tally.damages.items())
    ]
    sums = [each.total() for each in (tally.damages, tally.refused, tally.gone_on, tally.foreign)]
    rows.append(("all", sums[0], sums[1], sums[2], sums[3]))
    return "\n\n".join(
        [
            table(head, [row]),
            table(kinds, rows),
            "No foreign byte was lost or changed, no answered line lost, doubled or answered anew, and a refused start "
            f"changed nothing in its folder; the program ends at the first that is. {seconds / 60:.0f} minutes.",
        ]
    )


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--kills", type=int, default=500)
    parser.add_argument("--damages", type=int, default=200)
    parser.add_argument("--lines", type=int, default=1000, help="of each job that is killed")
    parser.add_argument("--max-tokens", type=int, default=16, help="of each answer")
    parser.add_argument("--longest-life", type=float, default=0.8, help="seconds from ready to the kill")
    parser.add_argument("--workers", type=int, default=2, help="servers at a time")
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--write", action="store_true", help="into docs/results.md")
    given = parser.parse_args()
    started = time.monotonic()
    try:
        tally = run(given)
    except Wrong as wrong:
        raise SystemExit(str(wrong)) from None
    body = report(tally, time.monotonic() - started)
    print(body)
    if given.write:
        command = f"python -m benchmarks.kill_loop --kills {given.kills} --damages {given.damages}"
        write_section("kill_loop", "The data directory under kill -9 and damage", command, body)


if __name__ == "__main__":
    main()
