"""Conversations of many turns over HTTP: how much of each prompt the cache has, and when the first token comes.

A chat client sends the whole conversation each turn. Models whose layers keep a state of fixed size or a window are
where engines compute it all again; so files of such shapes (`gguf_hybrids`), and a real one if it is named, are served
by `inflight serve` and by llama.cpp's server, one after the other, on the same port's worth of cores. What could be
found of a prompt, the ideal, is counted in tokens of the file's own tokenizer: as far as it begins like the prompt and
the answer of the turn before, without the last token, whose keys and values were not computed.

    python -m benchmarks.turns --llama FOLDER/llama/build-server/bin/llama-server --scenario plain
"""

from __future__ import annotations

import argparse
import http.client
import json
import os
import random
import socket
import statistics
import subprocess
import tempfile
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from benchmarks.comparison import log_line
from benchmarks.gguf_hybrids import SHAPES, words
from benchmarks.results import table, write_section
from benchmarks.served import Server, tree_seconds
from inflight.core.types.kv_blocks import max_blocks
from inflight.counted import counted
from inflight.execution.kv.kv_groups import kv_groups
from inflight.models.gguf.gguf_model import GGUFModel
from inflight.models.registry import read_folder
from inflight.models.sequence_memory import state_bytes
from inflight.text import Tokenizer

SYSTEM, USER, ANSWER, LONG_USER, LONG_ANSWER = 590, 52, 40, 700, 160  # tokens, beside those of the template
MODEL_LEN, BLOCK, BUDGET = 8192, 16, 512
GIB = 2**30
SPARE_STATES = 1  # for what conversations share; each has two

_COMMAND = "python -m benchmarks.turns"

Message = dict[str, str]


@dataclass(frozen=True, slots=True)
class Scenario:
    """conversations: whose turns alternate. again: each turn is sent twice, the second time with its last message
    edited, or as it was. dropped: share of an answer that is reasoning, which the history leaves out. user, answer:
    tokens of a turn. just_enough: memory for these conversations and no more."""

    title: str
    conversations: int = 1
    again: str = ""
    dropped: float = 0.0
    user: int = USER
    answer: int = ANSWER
    turns: int = 20
    just_enough: bool = False


SCENARIOS = {
    "plain": Scenario("one conversation"),
    "two": Scenario("two that alternate, memory just enough", 2, turns=10, just_enough=True),
    "eight": Scenario("eight that alternate, memory just enough", 8, turns=5, just_enough=True),
    "edited": Scenario("each last message edited and sent again", again="edited", turns=6),
    "retried": Scenario("each turn sent again", again="same", turns=6),
    "reasoning": Scenario("the history drops the reasoning", dropped=0.75, answer=LONG_ANSWER, turns=6),
    "long": Scenario("messages longer than the window", user=LONG_USER, turns=5),
}


@dataclass(frozen=True, slots=True)
class ModelFile:
    """has_template: whether the file brings a chat template; without one its conversations are written as text.
    of_word: tokens of one of our words, with the space before it."""

    name: str
    path: Path
    tokenizer: Tokenizer
    has_template: bool
    of_word: float

    @classmethod
    def read(cls, name: str, path: Path) -> ModelFile:
        model = GGUFModel(path)
        tokenizer, some = Tokenizer.load(model), words()[:200]
        of_word = len(tokenizer.encode(" " + " ".join(some), add_special_tokens=False)) / len(some)
        return cls(name, path, tokenizer, "tokenizer.chat_template" in model.metadata, of_word)

    def text(self, chance: random.Random, tokens: int) -> str:
        """Random words that make so many tokens, or close to it."""
        return " " + " ".join(chance.choices(words(), k=round(tokens / self.of_word)))

    def written(self, messages: list[Message], answer: str = "") -> str:
        """The prompt as the server has it, and the beginning of the answer."""
        if not self.has_template:
            return "".join(f"{one['role']}: {one['content']}\n" for one in messages) + "assistant:" + answer
        turns = (f"<|im_start|>{one['role']}\n{one['content']}<|im_end|>\n" for one in messages)
        return "".join(turns) + "<|im_start|>assistant\n" + answer

    def tokens(self, messages: list[Message], answer: str = "") -> list[int]:
        return self.tokenizer.encode(self.written(messages, answer))

    def memory(self, scenario: Scenario) -> list[str]:
        """Options of `inflight serve`: blocks and snapshots for the scenario's conversations at their ends."""
        spec = read_folder(GGUFModel(self.path), to_run=True)
        windows = kv_groups(spec, BLOCK, MODEL_LEN).windows
        turn = scenario.user + scenario.answer + 16
        tokens = SYSTEM + 16 + scenario.turns * turn
        each = max_blocks(tokens, BLOCK, windows, turn)
        blocks = max(scenario.conversations * each, max_blocks(tokens, BLOCK, windows, BUDGET))
        options = ["--num-blocks", str(blocks)]
        if state := state_bytes(spec):
            count = 2 * scenario.conversations + SPARE_STATES
            options += ["--state-memory", f"{(count + 0.5) * state / GIB:.9f}"]
        return options


@dataclass(frozen=True, slots=True)
class Turn:
    """One answer. prompt, cached, ideal: tokens. ttft: seconds. cpu: of the server, until the first token."""

    number: int
    prompt: int
    cached: int
    ideal: int
    ttft: float
    cpu: float


@dataclass(slots=True)
class Conversation:
    """before: tokens of the last prompt and its answer, none before the first turn."""

    messages: list[Message]
    chance: random.Random
    before: list[int] = field(default_factory=list)


@dataclass(frozen=True, slots=True)
class Served:
    """A server that listens. process: its id."""

    engine: str
    port: int
    process: int


@contextmanager
def inflight(file: ModelFile, scenario: Scenario, threads: int) -> Iterator[Served]:
    memory = file.memory(scenario) if scenario.just_enough else ["--num-blocks", "8192"]
    options = ["--threads", str(threads), "--max-model-len", str(MODEL_LEN), "--max-num-batched-tokens", str(BUDGET)]
    with Server("--model", str(file.path), *options, *memory) as server:
        yield Served("inflight", server.port, server.process.pid)


@contextmanager
def llama(binary: Path, file: ModelFile, scenario: Scenario, threads: int) -> Iterator[Served]:
    """Its server as it comes, with a slot and the context of its own for each conversation."""
    port, slots = _free_port(), scenario.conversations
    command = [str(binary), "--model", str(file.path), "--port", str(port), "--threads", str(threads)]
    command += ["--threads-batch", str(threads), "--parallel", str(slots), "--ctx-size", str(slots * MODEL_LEN)]
    with tempfile.TemporaryFile() as log:
        environment = {**os.environ, "LD_LIBRARY_PATH": str(binary.parent)}
        process = subprocess.Popen(command, stdout=log, stderr=log, env=environment)
        try:
            while not _is_ready(port):
                if process.poll() is not None:
                    raise RuntimeError(f"{' '.join(command)} ended with {process.returncode}; start it by hand.")
                time.sleep(0.1)
            yield Served("llama.cpp", port, process.pid)
        finally:
            process.terminate()
            process.wait()


def _free_port() -> int:
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        return int(free.getsockname()[1])


def _is_ready(port: int) -> bool:
    connection = http.client.HTTPConnection("127.0.0.1", port)
    try:
        connection.request("GET", "/health")
        return connection.getresponse().status == 200
    except OSError:
        return False
    finally:
        connection.close()


def converse(server: Served, file: ModelFile, scenario: Scenario) -> list[Turn]:
    """All turns but the conversations' first ones, of which nothing can be found."""
    shared = file.text(random.Random(0), SYSTEM)
    system: Message = {"role": "system", "content": shared}
    all_talks = [Conversation([system], random.Random(number + 1)) for number in range(scenario.conversations)]
    found = []
    for number in range(1, scenario.turns + 1):
        for talk in all_talks:
            talk.messages.append({"role": "user", "content": file.text(talk.chance, scenario.user)})
            answer, turn = ask(server, file, scenario, talk, number)
            found.append(turn)
            if scenario.again:
                if scenario.again == "edited":
                    message = talk.messages[-1]["content"]
                    kept = message[: message.index(" ", len(message) // 2)]
                    talk.messages[-1]["content"] = kept + file.text(talk.chance, scenario.user // 2)
                answer, turn = ask(server, file, scenario, talk, number)
                found.append(turn)
            first = int(answer.count(" ") * scenario.dropped)
            said = answer if not first else " ".join(answer.split(" ")[first:])
            talk.messages.append({"role": "assistant", "content": said})
        log_line(f"{file.name}, {server.engine}, turn {number}: {found[-1]}")
    return [turn for turn in found if turn.ideal]


def ask(server: Served, file: ModelFile, scenario: Scenario, talk: Conversation, number: int) -> tuple[str, Turn]:
    """One turn as a client streams it; returns the answer's text, too."""
    body: dict[str, Any] = {"max_tokens": scenario.answer, "temperature": 0, "ignore_eos": True, "stream": True}
    body["stream_options"] = {"include_usage": True}
    body |= {"messages": talk.messages} if file.has_template else {"prompt": file.written(talk.messages)}
    route = "/v1/chat/completions" if file.has_template else "/v1/completions"
    connection = http.client.HTTPConnection("127.0.0.1", server.port)
    cpu, began, ttft, text, usage = tree_seconds(server.process), time.perf_counter(), 0.0, "", None
    connection.request("POST", route, json.dumps(body), {"Content-Type": "application/json"})
    response = connection.getresponse()
    if response.status != 200:
        raise RuntimeError(f"{server.engine} answered {response.status}: {response.read().decode()}")
    for line in response:
        if not line.startswith(b"data: {"):
            continue
        event = json.loads(line[6:])
        usage = event.get("usage") or usage
        piece = _piece(event)
        if piece and not ttft:
            ttft, cpu = time.perf_counter() - began, tree_seconds(server.process) - cpu
        text += piece
    connection.close()
    assert usage is not None, f"{server.engine} sent no usage"
    prompt = file.tokens(talk.messages)
    ideal = 0
    if talk.before:
        ideal = min(_alike(prompt, talk.before), len(talk.before) - 1, len(prompt) - 1)
    talk.before = file.tokens(talk.messages, text)
    cached = (usage.get("prompt_tokens_details") or {}).get("cached_tokens", 0)
    return text, Turn(number, usage["prompt_tokens"], cached, ideal, ttft, cpu)


def _piece(event: dict[str, Any]) -> str:
    """The text of an event of either route."""
    if not event.get("choices"):
        return ""
    choice = event["choices"][0]
    return choice.get("text") or (choice.get("delta") or {}).get("content") or ""


def _alike(one: list[int], other: list[int]) -> int:
    """Leading tokens that are the same."""
    return next((at for at, (a, b) in enumerate(zip(one, other, strict=False)) if a != b), min(len(one), len(other)))


def share(turns: list[Turn]) -> float:
    return sum(turn.cached for turn in turns) / sum(turn.ideal for turn in turns)


def row(file: ModelFile, scenario: Scenario, runs: dict[str, list[Turn]]) -> list[str]:
    """Return every engine's figures from the second turn on: hits, and time and processor to the first token."""

    def cells(figure: Callable[[list[Turn]], str]) -> list[str]:
        return [figure(turns) for turns in runs.values()]

    return [
        file.name,
        scenario.title,
        *cells(lambda turns: f"{share(turns):.1%}"),
        *cells(lambda turns: f"{min(turn.cached / turn.ideal for turn in turns):.0%}"),
        *cells(lambda turns: f"{statistics.median(turn.ttft for turn in turns):.2f}"),
        *cells(lambda turns: f"{statistics.fmean(turn.cpu for turn in turns):.2f}"),
    ]


def each_turn(runs: dict[str, list[Turn]]) -> str:
    """One conversation, turn by turn."""
    columns = list(zip(*runs.values(), strict=True))
    rows = [
        [str(turns[0].number), str(turns[0].prompt), str(turns[0].ideal)]
        + [cell for turn in turns for cell in (str(turn.cached), f"{turn.ttft:.2f}", f"{turn.cpu:.2f}")]
        for turns in columns
        if turns[0].number in (2, 3, 5, 10, 15, 20)
    ]
    heads = ["turn", "prompt tokens", "ideal"]
    return table(heads + [f"{engine}: {one}" for engine in runs for one in ("cached", "TTFT, s", "CPU, s")], rows)


def measure(file: ModelFile, scenario: Scenario, binary: Path | None, threads: int) -> dict[str, list[Turn]]:
    with inflight(file, scenario, threads) as server:
        runs = {server.engine: converse(server, file, scenario)}
    if binary is not None:
        with llama(binary, file, scenario, threads) as server:
            runs[server.engine] = converse(server, file, scenario)
    return runs


def _engines(binary: Path | None) -> str:
    """Which build of llama.cpp it was."""
    if binary is None:
        return "inflight alone."
    environment = {**os.environ, "LD_LIBRARY_PATH": str(binary.parent)}
    output = subprocess.run([str(binary), "--version"], env=environment, capture_output=True, text=True).stderr
    version = output.splitlines()[0].removeprefix("version: ").partition(" (")[0]
    build = f"{version}, of llama-cpp-python 0.3.36"
    return f"llama.cpp's server ({build}) runs with a slot for each conversation and its other defaults."


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--llama", type=Path, help="llama.cpp's server; without it inflight alone is measured")
    parser.add_argument("--scenario", nargs="*", choices=sorted(SCENARIOS), default=list(SCENARIOS))
    parser.add_argument("--shape", nargs="*", choices=sorted(SHAPES), default=list(SHAPES), help="of random weights")
    parser.add_argument("--file", type=Path, nargs="*", default=[], help="real GGUF files to serve besides")
    parser.add_argument("--threads", type=int, default=1, help="of each server (default 1)")
    parser.add_argument("--write", action="store_true", help="write the section of docs/results.md")
    arguments = parser.parse_args()
    rows, by_turn = [], []
    with tempfile.TemporaryDirectory() as folder:
        files = [ModelFile.read(name, SHAPES[name](Path(folder) / f"{name}.gguf")) for name in arguments.shape]
        files += [ModelFile.read(path.stem, path) for path in arguments.file]
        for name in arguments.scenario:
            for file in files:
                runs = measure(file, SCENARIOS[name], arguments.llama, arguments.threads)
                rows.append(row(file, SCENARIOS[name], runs))
                if name == "plain":
                    by_turn.append(f"{file.name}, turn by turn:\n\n{each_turn(runs)}")
                engines = list(runs)
    heads = ["file", "conversation"]
    for figure in ("of the ideal", "worst turn", "TTFT, s", "CPU s to it"):
        heads += [f"{engine}: {figure}" for engine in engines]
    body = "\n\n".join(
        [
            f"A system prompt of {SYSTEM} tokens, turns of {USER} tokens and answers of {ANSWER}, turns 2 to the last; "
            f"{counted(arguments.threads, 'thread')} a server. The ideal is what begins like the turn before, to the "
            "token. TTFT are medians over turns, CPU seconds of the server until then are means. "
            f"{_engines(arguments.llama)}",
            table(heads, rows),
            *by_turn,
        ]
    )
    print(body)
    if arguments.write:
        given = ["--llama FOLDER/llama/build-server/bin/llama-server"] if arguments.llama is not None else []
        given += [f"--file {path.name}" for path in arguments.file]
        write_section(
            "turns", "Turns of conversations on hybrid and windowed models", " ".join([_COMMAND, *given]), body
        )


if __name__ == "__main__":
    main()
