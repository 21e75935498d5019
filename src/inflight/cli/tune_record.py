"""`inflight tune --record` and `--url`: settings for the requests that a server recorded, and their shadow replay."""

from __future__ import annotations

import contextlib
import os
import tempfile
from collections.abc import Iterator
from dataclasses import dataclass, replace
from pathlib import Path
from urllib.parse import urlsplit

import click

from inflight.cli.demand import DemandOptions
from inflight.cli.machines import PricedMachineOptions
from inflight.cli.stage_line import StageLine
from inflight.cli.summary import show
from inflight.config.engine import EngineSettings, LoadFormat
from inflight.config.setting import SettingsError, above_zero, declared_settings, option, setting
from inflight.metrics.slo import Slo, targets
from inflight.metrics.summary import Summary
from inflight.planning.engine_config import EngineConfig
from inflight.planning.parallel import cores
from inflight.planning.recorded_traffic import LEAD, RecordedTraffic, read_recorded
from inflight.planning.retuning import Retuning, retune
from inflight.planning.shadow import Shadow, shadow_replay
from inflight.workload.workload import Workload

HOUR = 3600.0
_OTHERS = "--record and --url have the requests and the machine"


@dataclass(frozen=True, slots=True, kw_only=True)
class RecordOptions:
    """The record of a server, instead of a machine and a demand."""

    record: Path | None = setting(
        None, "Tune for the requests of this record (serve --record).", "Record", path="present file", is_early=True
    )
    url: str | None = setting(None, "Or of the record that the server at this address writes.", metavar="URL")
    api_key: str | None = setting(None, "Key of its operator.", metavar="KEY", is_secret=True)
    last: float | None = setting(
        None, f"Seconds at the record's end; {HOUR:g} unless set.", bound=above_zero("seconds"), metavar="SECONDS"
    )

    @property
    def is_given(self) -> bool:
        return self.record is not None or self.url is not None


def check_record(asked: RecordOptions, machine: PricedMachineOptions, demand: DemandOptions) -> None:
    """Raise click.UsageError for options that do not go together with a record, or without one."""
    if not asked.is_given:
        if asked.last is not None:
            raise click.UsageError("--last is about a record; give --record FILE or --url URL with it.")
        return
    if asked.record is not None and asked.url is not None:
        raise click.UsageError("--record and --url both name a record; give one of them.")
    for given, kept in ((demand, ("slo", "seed")), (machine, ("model", "family"))):
        for item in declared_settings(type(given)):
            if item.name not in kept and getattr(given, item.name) != item.default:
                raise click.UsageError(f"{_OTHERS}; leave {option(item.name)} out.")


@contextlib.contextmanager
def record_of(asked: RecordOptions) -> Iterator[Path]:
    """Yield the record's file: the given one, or the end of the server's, which is removed afterwards. Raises the
    errors of asking servers."""
    if asked.record is not None:
        yield asked.record
        return
    from inflight.launch.running_servers import AskingError, download

    url = str(asked.url).rstrip("/")
    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder) / "record.jsonl"
        with path.open("wb") as file:
            download(url, f"/live/record?last={(1 + LEAD) * (asked.last or HOUR):g}", asked.api_key, file)
        if not path.stat().st_size:  # its first lines are written with its first answer
            raise AskingError(f"The server at {url} has recorded no answer yet; tune when it has given some.")
        address = urlsplit(url)
        if address.netloc:
            path = path.rename(path.with_name(address.netloc.rpartition("@")[2]))  # by which the answer names it
        if address.scheme == "unix" or address.hostname in ("127.0.0.1", "localhost", "::1"):
            _yield_processors()
        yield path


def _yield_processors() -> None:
    """Compute only when the server on this machine does not, where the system is Linux."""
    with contextlib.suppress(AttributeError, OSError):
        os.sched_setscheduler(0, os.SCHED_IDLE, os.sched_param(0))
        show("This runs when the server leaves the processors idle.")


def retuned(asked: RecordOptions, path: Path, slos: tuple[Slo, ...], beyond: bool, **fixed: int | None) -> Retuning:
    """Find settings for a record. beyond: whether steps may be larger than any that was recorded. Raises the errors of
    records and step models, SettingsError."""
    traffic = read_recorded(path, asked.last or HOUR)
    if not slos and not any(entry.targets for entry in traffic.workload.entries):
        raise SettingsError(
            "--slo is missing, and the recorded requests state no limits of their own: without one all settings are "
            "equally good; give one such as --slo ttft=500(p99)."
        )
    show(f"{len(traffic.workload.entries):,} requests are simulated, of {traffic.seconds:,.0f} s.")
    with StageLine() as line:
        return retune(traffic, slos, beyond=beyond, workers=cores(), progress=line, **fixed)


def shadowed(
    retuning: Retuning, machine: PricedMachineOptions, load_format: LoadFormat | None, seconds: float, repeats: int
) -> Shadow:
    """Replay the busiest seconds of the record on engines of this process, with the present and the proposed settings.

    Raises the errors of models.
    """
    engine = _recorded_engine(retuning.traffic, machine, load_format)

    def run(config: EngineConfig, workload: Workload, shares: tuple[float, float]) -> Summary:
        from inflight.build import build_engine  # loads numpy and the kernels
        from inflight.planning.measured_run import measure_on

        settings = replace(
            engine, max_num_seqs=config.max_num_seqs, max_num_batched_tokens=config.max_num_batched_tokens
        )
        built = build_engine(settings, config.scheduling)
        judged = targets(retuning.slos) if retuning.slos else None
        return measure_on(built.loop, built.capacity.vocab_size, workload, shares, judged)

    return shadow_replay(retuning, run, seconds, repeats, show)


def _recorded_engine(
    traffic: RecordedTraffic, machine: PricedMachineOptions, load_format: LoadFormat | None
) -> EngineSettings:
    """Return the settings of the recorded engine, as far as they decide its speed. machine: names its model, where it
    is found under another name here."""
    values, recorded = traffic.values, traffic.settings.engine
    name = machine.model or values.get("model")
    settings = replace(
        recorded,
        model=None if name in (None, "built-in") else str(name),
        family=machine.family,
        load_format=load_format or "auto",
    )
    names = ("device", "quantization", "dtype", "threads", "tensor_parallel_size", "batch_invariant")
    given = {name: values[name] for name in names if name in values}
    if values.get("kv_cache_dtype") in ("int8", "fp8"):
        given["kv_cache_dtype"] = values["kv_cache_dtype"]
    return replace(settings, **given)
