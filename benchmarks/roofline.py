"""How close to the machine's limits a model of random weights comes: each kernel, whole steps, and steps as served.

Limits and shares are those of `rates`.

Three parts. `kernels` times single calls. `steps` times a forward pass, logits and sampling of rows that each have a
given context, whose keys and values are whatever memory holds, and of one prompt. `served` is what a user gets: from
one committed step to the next, with scheduling and all of Python in it.
"""

from __future__ import annotations

import argparse
import itertools
import statistics
import tempfile
from collections.abc import Callable, Iterator, Mapping, Sequence
from functools import partial
from pathlib import Path

import numpy as np

from benchmarks.kernel_bodies import BLOCK, Body, Head, Layers, attention, others
from benchmarks.rates import Probe, Timing, in_turns, timed
from benchmarks.results import table, write_section
from benchmarks.shapes import SHAPES, write_config
from inflight.api import LLM, SamplingParams
from inflight.config.engine import EngineSettings
from inflight.config.threads import resolve_threads
from inflight.core.types.plan import Capacity, Chunk
from inflight.counted import counted
from inflight.execution.backends.native import NativeBackend
from inflight.execution.backends.protocol import AttentionMetadata, Hold, Quantization
from inflight.execution.batch.pass_layout import PassInputs
from inflight.execution.checkpoints.dummy import DummyWeights
from inflight.execution.memory import GIB, kv_shape
from inflight.execution.model import Model as ForwardPasses
from inflight.execution.roofline import Machine, decode_ceiling, prefill_ceiling
from inflight.execution.sizes import kv_bytes_per_token
from inflight.execution.weights import load_weights
from inflight.models.registry import read_folder
from inflight.models.spec import ModelSpec
from inflight.records.schema import of_kind, read_records

HELD: dict[Quantization, str] = {
    "none": "bf16",
    "int8": "int8",
    "int8-all": "int8-all",
    "int4": "int4",
    "int4-all": "int4-all",
}
HOLDS: tuple[Hold, ...] = ("act", "int8", "int4")
MAX_KV = 4 * GIB  # bytes of keys and values that a step may read here
PROMPTS = (512, 2048)  # tokens of a step that computes one
PROMPT, OUTPUT = 64, 48  # tokens of a served request
SLAB = 32  # rows of logits at a time, as the engine takes them


# -- kernels --------------------------------------------------------------------------------------------------------
def kernel_bodies(
    config: ModelSpec, backend: NativeBackend, batches: Sequence[int], contexts: Sequence[int]
) -> Iterator[list[Body]]:
    """Rows of the table: the same in bf16, int8 and int4; keys and values in the first two."""
    layers, heads = [[kind(config, backend, hold) for hold in HOLDS] for kind in (Layers, Head)]
    for tokens in (*batches, 512):
        yield [one.products(tokens) for one in layers]  # type: ignore[union-attr]
    for rows in (batch for batch in batches if batch <= SLAB):
        yield [one.logits(rows) for one in heads]  # type: ignore[union-attr]
    for context in contexts:
        for rows in (batches[0], SLAB):
            yield [attention(config, backend, quantized, rows, context - 1, 1) for quantized in (False, True)]
    for length in PROMPTS:
        yield [attention(config, backend, quantized, 1, 0, length) for quantized in (False, True)]


def kernels(
    config: ModelSpec,
    backend: NativeBackend,
    probe: Probe,
    batches: Sequence[int],
    contexts: Sequence[int],
    repeats: int,
) -> str:
    bodies = list(kernel_bodies(config, backend, batches, contexts))
    cells: list[list[object]] = []
    for row, timings in zip(bodies, in_turns(bodies, probe, repeats), strict=True):
        shares = [timing.cells(probe.best) for timing in timings]
        best = [min(timing.seconds) for timing in timings]
        ratios = [f"{before / after:.2f}" for before, after in itertools.pairwise(best)]
        none = [""] * (len(HOLDS) - len(row))
        cells.append([row[0].name, *itertools.chain(*shares), *none, *none, *ratios, *none])
    small = [[body.name, f"{min(timed(body.run, 20) for _ in range(5)) * 1e6:.1f}"] for body in others(config, backend)]
    head = ["kernel", "bf16, ms", "share", "int8, ms", "share", "int4, ms", "share", "bf16 / int8", "int8 / int4"]
    return f"{table(head, cells)}\n\n{table(['beside them', 'best, µs'], small)}"


# -- steps ----------------------------------------------------------------------------------------------------------
class Step:
    """One decode step of a model: forward pass, logits and sampling."""

    def __init__(
        self, config: ModelSpec, backend: NativeBackend, quantization: Quantization, longest: int, blocks: int
    ):
        self._config, self._backend, self._blocks = config, backend, blocks
        self._weights = load_weights(config, DummyWeights(), backend, longest, quantization=quantization)
        self._kv_cache = backend.kv_cache(kv_shape(config, BLOCK), blocks)

    def prompt(self, tokens: int) -> Callable[[], None]:
        """One prompt in one step, and the token after it."""
        return self._run(1, 0, tokens)

    def of(self, batch: int, context: int) -> Callable[[], None]:
        """Each of `batch` rows computes the token that makes its sequence `context` long."""
        return self._run(batch, context - 1, 1)

    def _run(self, rows: int, start: int, length: int) -> Callable[[], None]:
        """A step of chunks of `length` tokens from `start` on, and the tokens after them."""
        tokens, width = rows * length, -(-(start + length) // BLOCK)
        decoder = ForwardPasses(self._config, self._weights, self._backend, tokens, SLAB)
        tables = np.random.default_rng(0).permutation(self._blocks)[: rows * width].reshape(rows, width)
        metadata = AttentionMetadata(
            np.tile(np.arange(start, start + length, dtype=np.int32), rows),
            np.arange(rows + 1, dtype=np.int32) * length,
            np.full(rows, start, np.int32),
            tables.astype(np.int32)[None],
        )
        chunks = [Chunk(row, row, start, length, (), True) for row in range(rows)]
        chunk_of = np.repeat(np.arange(rows, dtype=np.int32), length)
        inputs = PassInputs(np.arange(rows, dtype=np.int32), chunk_of, np.arange(tokens, dtype=np.int32), metadata)
        last = (np.arange(rows) * length + length - 1).tolist()
        slabs = [last[first : first + SLAB] for first in range(0, rows, SLAB)]
        slots = self._backend.input_batch(Capacity(self._blocks, BLOCK, rows, 1 << 20, self._config.vocab_size), 0)

        def run() -> None:
            batch = self._backend.forward_pass(inputs, self._kv_cache, slots, chunks)
            decoder.forward(batch)
            for slab in slabs:
                batch.sample(decoder.logits(batch, slab), slab)

        return run


def steps(
    config: ModelSpec,
    backend: NativeBackend,
    probe: Probe,
    batches: Sequence[int],
    contexts: Sequence[int],
    repeats: int,
) -> str:
    per_token = kv_bytes_per_token(config, "bfloat16")
    sizes = [(b, c) for c in contexts for b in batches if b * c * per_token <= MAX_KV]
    blocks = max(-(-max(PROMPTS) // BLOCK), *(batch * -(-context // BLOCK) for batch, context in sizes))
    models = {held: Step(config, backend, held, max(*contexts, *PROMPTS), blocks) for held in HELD}
    rows: list[tuple[str, list[Timing]]] = []
    for batch, context in sizes:
        bodies = {held: model.of(batch, context) for held, model in models.items()}
        ceilings = {held: partial(decode_seconds, config, batch, context, held) for held in models}
        rows.append(
            (f"{counted(batch, 'row')} at {context:,} tokens", steps_in_turns(bodies, ceilings, probe, repeats))
        )
    for tokens in PROMPTS:
        bodies = {held: model.prompt(tokens) for held, model in models.items()}
        of_prompt = {held: partial(prefill_seconds, config, tokens, held) for held in models}
        rows.append((f"a prompt of {tokens:,} tokens", steps_in_turns(bodies, of_prompt, probe, repeats)))
    cells = [[name, *itertools.chain(*(timing.cells(probe.best) for timing in timings))] for name, timings in rows]
    return table(["step", *itertools.chain(*([f"{name}, ms", "share"] for name in HELD.values()))], cells)


def decode_seconds(config: ModelSpec, batch: int, context: int, held: Quantization, machine: Machine) -> float:
    return decode_ceiling(config, machine, batch, context, held).seconds


def prefill_seconds(config: ModelSpec, tokens: int, held: Quantization, machine: Machine) -> float:
    return prefill_ceiling(config, machine, tokens, held).seconds


def steps_in_turns(
    bodies: Mapping[Quantization, Callable[[], None]],
    ceilings: Mapping[Quantization, Callable[[Machine], float]],
    probe: Probe,
    repeats: int,
) -> list[Timing]:
    """The same step of each kind of weights, one after the other, after one that is not timed."""
    timings = {held: Timing(ceiling) for held, ceiling in ceilings.items()}
    for body in bodies.values():
        body()
    for _ in range(repeats):
        machine = probe.now()
        for held, body in bodies.items():
            timings[held].add(timed(body), machine)
    return list(timings.values())


# -- as served --------------------------------------------------------------------------------------------------------
def decode(llm: LLM, batch: int, number: int) -> None:
    prompts = [[number, batch, *((batch * 31 + i) * 7 + j for j in range(PROMPT - 2))] for i in range(batch)]
    llm.generate(prompts, SamplingParams(temperature=0, max_tokens=OUTPUT, ignore_eos=True))


def decode_steps(record: Path, first_step: int, batch: int) -> tuple[list[float], int]:
    """Seconds between commits of steps in which all rows decode, and the last step's number."""
    lines = [line for line in of_kind(list(read_records(record)), "step") if line.plan.step >= first_step]
    gaps = [
        after.committed - before.committed
        for before, after in itertools.pairwise(lines)
        if all(line.features.tokens == line.features.samples == batch for line in (before, after))
    ]
    return gaps, lines[-1].plan.step + 1


def served(model: str, config: ModelSpec, probe: Probe, batches: Sequence[int], repeats: int) -> str:
    timings: dict[tuple[int, Quantization], Timing] = {}
    with tempfile.TemporaryDirectory() as folder:
        engines = {
            held: LLM(
                model,
                load_format="dummy",
                quantization=held,
                max_num_seqs=max(batches),
                max_model_len=PROMPT + OUTPUT,
                speculation="off",
                record=Path(folder) / f"{held}.jsonl",
            )
            for held in HELD
        }
        next_step = dict.fromkeys(HELD, 0)
        for repeat, batch, held in itertools.product(range(repeats), batches, HELD):
            machine = probe.now()
            decode(engines[held], batch, repeat)
            gaps, next_step[held] = decode_steps(Path(folder) / f"{held}.jsonl", next_step[held], batch)
            ceiling = partial(decode_seconds, config, batch, PROMPT + OUTPUT // 2, held)
            timings.setdefault((batch, held), Timing(ceiling)).add(statistics.median(gaps), machine)
        for llm in engines.values():
            llm.close()
    rows: list[list[object]] = []
    for batch in batches:
        one = [timings[batch, held] for held in HELD]
        speeds = [f"{batch / min(timing.seconds):,.0f}" for timing in one]
        rows.append([batch, *itertools.chain(*zip(speeds, (t.cells(probe.best)[1] for t in one), strict=True))])
    return table(["batch", *itertools.chain(*([f"{name}, tokens/s", "share"] for name in HELD.values()))], rows)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.split("\n")[0])
    parser.add_argument("--model", choices=list(SHAPES), default="qwen2.5-0.5b", help="shape, of random weights")
    parser.add_argument("--batches", default="1,4,8,16,32,64,128")
    parser.add_argument("--contexts", default="128,1024,8192")
    parser.add_argument("--repeats", type=int, default=5)
    parser.add_argument("--parts", default="kernels,steps,served")
    parser.add_argument("--threads", type=int, help="of kernels and steps; without it one per usable core")
    parser.add_argument("--isa", default="auto", help="instruction set of kernels and steps")
    parser.add_argument("--write", action="store_true")
    arguments = parser.parse_args()
    batches, contexts = ([int(n) for n in text.split(",")] for text in (arguments.batches, arguments.contexts))
    backend = NativeBackend(
        "bfloat16", int(resolve_threads(EngineSettings(threads=arguments.threads)).value), arguments.isa
    )
    probe = Probe(backend)
    bodies: list[str] = []
    with tempfile.TemporaryDirectory() as folder:
        model = write_config(Path(folder) / f"{arguments.model}-shape", SHAPES[arguments.model])
        config = read_folder(model, to_run=True)
        parts: dict[str, tuple[str, Callable[[], str]]] = {
            "kernels": ("Kernels", lambda: kernels(config, backend, probe, batches, contexts, arguments.repeats)),
            "steps": ("Whole steps", lambda: steps(config, backend, probe, batches, contexts, arguments.repeats)),
            "served": ("Decoding as served", lambda: served(model, config, probe, batches, arguments.repeats)),
        }
        for name in arguments.parts.split(","):
            title, run = parts[name]
            bodies.append(f"### {title}\n\n{run()}")
            print(f"{bodies[-1]}\n\n{probe.summary()}\n", flush=True)
    if arguments.write:
        command = "python -m benchmarks.roofline " + " ".join(
            f"--{name} {getattr(arguments, name)}" for name in ("model", "batches", "contexts", "repeats", "parts")
        )
        body = f"{backend.name}, {backend.threads} threads. {probe.summary()}\n\n" + "\n\n".join(bodies)
        write_section(
            f"roofline {arguments.model}", f"Shares of the roofline: {arguments.model}'s shape", command, body
        )


if __name__ == "__main__":
    main()
