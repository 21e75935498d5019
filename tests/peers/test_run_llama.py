"""How llama.cpp's runner makes batches, over a library that computes nothing."""

from __future__ import annotations

import ctypes
import sys
from dataclasses import dataclass, field
from types import ModuleType, SimpleNamespace
from typing import Any

import pytest

import benchmarks.peers.run_llama as run_llama
from benchmarks.peers.run_llama import Llama
from benchmarks.peers.stepping import Work, run

from .builders import job

VOCABULARY = 8
Fed = tuple[int, int, int, bool]  # row, position, token, whether its logits are wanted


@dataclass
class Library:
    """A library by which the token that follows is one more than the last one fed. batches: fed so far; freed: rows."""

    batches: list[list[Fed]] = field(default_factory=list)
    freed: list[int] = field(default_factory=list)
    parameters: Any = None
    code: int = 0

    def llama_init_from_model(self, model: object, parameters: object) -> str:
        self.parameters = parameters
        return "context"

    def llama_batch_init(self, tokens: int, embd: int, sequences: int) -> SimpleNamespace:
        rows = [(ctypes.c_int32 * sequences)() for _ in range(tokens)]
        columns = {name: (ctypes.c_int32 * tokens)() for name in ("token", "pos", "n_seq_id", "logits")}
        return SimpleNamespace(n_tokens=0, seq_id=rows, **columns)

    def llama_decode(self, context: object, batch: Any) -> int:
        fed = [
            (batch.seq_id[at][0], batch.pos[at], batch.token[at], bool(batch.logits[at]))
            for at in range(batch.n_tokens)
        ]
        self.batches.append(fed)
        return self.code

    def llama_get_logits_ith(self, context: object, index: int) -> Any:
        _, _, token, wanted = self.batches[-1][index]
        assert wanted, "logits of a place that was not asked for any"
        logits = (ctypes.c_float * VOCABULARY)()
        logits[(token + 1) % VOCABULARY] = 1.0
        return logits

    def llama_memory_seq_rm(self, memory: object, row: int, begin: int, end: int) -> bool:
        self.freed.append(row)
        return True

    def __getattr__(self, name: str) -> Any:
        answers = {
            "llama_print_system_info": b"CPU : AVX2 = 1 | AVX512 = 0 |",
            "llama_context_default_params": SimpleNamespace(),
            "llama_vocab_n_tokens": VOCABULARY,
        }
        return lambda *given: answers.get(name, name)


@pytest.fixture
def library(monkeypatch: pytest.MonkeyPatch) -> Library:
    found = Library()
    package = ModuleType("llama_cpp")
    package.llama_cpp, package.__version__ = found, "1.0"  # type: ignore[attr-defined]
    monkeypatch.setitem(sys.modules, "llama_cpp", package)
    monkeypatch.setattr(run_llama, "_BATCH", 6)
    return found


def test_decoding_goes_first_and_prompts_fill_what_is_left(library: Library) -> None:
    run(Llama(job()), [Work(0.0, [1, 2], 3), Work(0.0, [3, 3, 3, 3, 5], 2)])
    first, second = [(0, 0, 1, False), (0, 1, 2, True)], [(1, at, 3, False) for at in range(4)]
    assert library.batches == [
        [*first, *second],
        [(0, 2, 3, True), (1, 4, 5, True)],
        [(0, 3, 4, True), (1, 5, 6, True)],
    ], "six tokens at most, and each row goes on with what was picked for it"


def test_a_row_is_free_again_when_its_request_has_ended(library: Library) -> None:
    answer = run(Llama(job()), [Work(0.0, [1], 1) for _ in range(6)])
    assert library.parameters.n_seq_max == 4 and library.parameters.n_ctx == 4 * 64
    assert [len(batch) for batch in library.batches] == [4, 2], "four rows, so two wait"
    assert sorted(library.freed) == [0, 0, 1, 1, 2, 3]
    assert all(len(times) == 1 for times in answer["times"])


def test_what_the_library_answers_is_reported(library: Library) -> None:
    library.code = 1
    with pytest.raises(RuntimeError, match="llama_decode answered 1 to a batch of 2 tokens"):
        run(Llama(job()), [Work(0.0, [1, 2], 1)])


def test_the_instructions_that_it_uses_are_reported(library: Library) -> None:
    assert Llama(job()).settings.endswith("in a micro-batch, AVX2")
