"""One run of a judge against a server of ours, seen by the judge, on the wire and in the server's record."""

from __future__ import annotations

import json
import tempfile
from array import array
from collections.abc import Sequence
from dataclasses import dataclass, replace
from pathlib import Path

import inflight
from benchmarks.judges.judge import Figures, Judge, Load, Target
from benchmarks.judges.wire import Relay
from benchmarks.served import Server
from inflight.bench.answer import spread
from inflight.execution.checkpoints.packaged.catalogue import CATALOGUE
from inflight.execution.checkpoints.packaged.model_cache import pull
from inflight.metrics.observation import Observation
from inflight.models.gguf.gguf_model import GGUFModel
from inflight.report.reading import read_record
from inflight.text.gguf_tokenizer import gguf_backend, read_gguf_tokenizer_config

BUILT_IN = "built-in"
HEAD = ("figure", "theirs", "ours", "theirs / ours", "by their definition", "theirs / that", "server's record")
_SERVE = ("--threads", "1", "--host", "127.0.0.1")  # the other core is the judge's


@dataclass(frozen=True, slots=True)
class Seen:
    """The figures of one run. defined: ours by the judge's definitions; recorded: of the server's step record, which
    begins behind HTTP and the tokenizer."""

    judge: Judge
    model: str
    load: Load
    theirs: Figures
    ours: Figures
    defined: Figures
    recorded: Figures


def write_tokenizer(model: str, folder: Path) -> Path:
    """Return a folder with the model's tokenizer as judges read it: that of the built-in model, or one made of GGUF."""
    if model == BUILT_IN:
        return Path(inflight.__file__).parent / "builtin_model"
    gguf = GGUFModel(pull(CATALOGUE[model]))
    gguf_backend(gguf).save(str(folder / "tokenizer.json"))
    settings = {"tokenizer_class": "PreTrainedTokenizerFast", **read_gguf_tokenizer_config(gguf)}
    (folder / "tokenizer_config.json").write_text(json.dumps(settings), encoding="utf-8")
    return folder


def run(judge: Judge, model: str, load: Load, seconds: float = 300) -> Seen:
    """Start a server, let the judge measure it and collect what each side saw."""
    judge.environment.make()
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        record = folder / "record.jsonl"
        model_arguments = [] if model == BUILT_IN else [model]
        with (
            Server(*model_arguments, *_SERVE, "--record", str(record)) as server,
            Relay(f"http://127.0.0.1:{server.port}") as relay,
        ):
            target = Target(relay.url, model, write_tokenizer(model, folder))
            program, *arguments = judge.command(target, load, folder)
            output = judge.environment.run(program, *arguments, seconds=seconds, **judge.variables)
            passed = relay.passed()
        theirs = judge.figures(folder, output)
        definition = judge.definition(target, folder)
        recorded = read_record(record).runs[0].observations
    # A judge's probes and warm-up come before; what it broke off at its end it does not count.
    counted = [one for one in passed if one.observation.outcome != "unfinished"][-(theirs.requests + theirs.failed) :]
    known = {one.request_id.rpartition("-")[0]: one for one in recorded}  # its sample is the last part
    counted = [replace(one, observation=_counted(one.observation, known)) for one in counted]
    ours = [one.observation for one in counted]
    same = [known[one.request_id] for one in ours if one.request_id in known]
    views = (Figures.of_observations(ours), definition.figures(counted), Figures.of_observations(same))
    return Seen(judge, model, load, theirs, *views)


def _counted(one: Observation, known: dict[str, Observation]) -> Observation:
    """Return the observation with the record's token counts where the judge did not request usage."""
    if one.prompt_tokens or one.request_id not in known:
        return one
    record = known[one.request_id]
    return replace(
        one,
        token_times=spread(array("d", one.token_times), record.output_tokens),
        prompt_tokens=record.prompt_tokens,
        output_tokens=record.output_tokens,
        longest_output=record.longest_output,
    )


def table_rows(seen: Seen) -> Sequence[Sequence[str]]:
    """Return rows as `HEAD` has them."""
    views = (seen.theirs, seen.ours, seen.defined, seen.recorded)
    rows: list[tuple[str, Sequence[float | None], int]] = []
    for label, attribute, digits in (
        ("requests", "requests", 0),
        ("failed", "failed", 0),
        ("input tokens", "input_tokens", 0),
        ("output tokens", "output_tokens", 0),
        ("requests/s", "requests_per_s", 3),
        ("output tokens/s", "output_tokens_per_s", 2),
    ):
        rows.append((label, [getattr(view, attribute) for view in views], digits))
    for metric in ("ttft", "itl", "tpot"):
        for which in ("mean", "p50", "p99"):
            found = [getattr(getattr(view, metric), which) for view in views]
            ms = [None if value is None else value * 1e3 for value in found]
            rows.append((f"{metric.upper()} {which}, ms", ms, 2))
    return [_row(label, values, digits) for label, values, digits in rows if values[0] is not None]


def _row(label: str, values: Sequence[float | None], digits: int) -> Sequence[str]:
    texts = [_text(value, digits) for value in values]
    theirs, ours, defined, _ = values
    return (label, texts[0], texts[1], _ratio(theirs, ours), texts[2], _ratio(theirs, defined), texts[3])


def _text(value: float | None, digits: int) -> str:
    return "" if value is None else f"{value:,.{digits}f}"


def _ratio(theirs: float | None, ours: float | None) -> str:
    return f"{theirs / ours:.3f}" if theirs is not None and ours else ""
