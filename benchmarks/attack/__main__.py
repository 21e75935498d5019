"""The command: which parts, for how long, and their sections of docs/results.md."""

from __future__ import annotations

import argparse
import signal
import sys
import tempfile
from collections.abc import Sequence
from pathlib import Path
from types import FrameType

from benchmarks.attack import crowd, mixture, tenants, trials
from benchmarks.attack.catalogue import catalogue
from benchmarks.attack.kind import Attack
from benchmarks.attack.target import PROCESS_BYTES, make_model
from benchmarks.attack.waits import BACK, BUDGET_MB, P99, WORST
from benchmarks.results import write_section

_LIMITS = (
    f"Limits: waits for /health and between tokens rise by at most {P99 * 1e3:g} ms at p99 and never by more "
    f"than {WORST * 1e3:g} ms; memory (PSS of all processes of the server, sampled every 0.1 s) rises by at "
    f"most {BUDGET_MB:g} MB and is within 16 MB of rest again after {BACK:g} s. Each process of the server "
    f"runs under RLIMIT_DATA of {PROCESS_BYTES / 1e9:.2f} GB (RLIMIT_AS would count address space that threads "
    "reserve and never use; a control group would need privileges), and their sum is "
    "watched. The built-in model with --policy fair, a key for each of 20 honest clients and of 4 hostile "
    "ones, everything else as it is by itself; its chat template turns hostile when a message asks for it. "
    "/health is asked every 20 ms; a wait during which more was due, and a gap of several usual steps, count "
    "as many waits. Attackers are processes on the same machine with a lower priority (nice 5). Of the "
    "server's own doing is what is left without the time for which its event loop was ready and others had "
    "the core, and that is what is judged."
)


def main(given: Sequence[str] | None = None) -> None:
    parser, known = _options(), catalogue()
    arguments = parser.parse_args(given)
    attacks = [] if arguments.attacks else list(known.values())
    for name in arguments.attacks:
        group = [attack for attack in known.values() if attack.name.startswith(f"{name}: ")]
        if name not in known and not group:
            parser.error(f"{name!r} is unknown; --list names all attacks.")
        attacks += [known[name]] if name in known else group
    if arguments.list:
        for attack in attacks:
            print(f"{attack.name}: {attack.what}")
        return
    everything = not any((arguments.each, arguments.mixture, arguments.connections, arguments.tenants))
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        make_model(folder)
        if arguments.each or everything:
            _each(folder, attacks, arguments.each or 3.0, arguments)
        if arguments.mixture or everything:
            minutes = arguments.mixture or 10.0
            body = f"{_LIMITS}\n\n{mixture.mixture(folder, attacks, 60 * minutes, arguments.seed)}"
            _publish("attack mixture", f"All attacks at random for {minutes:g} minutes", body, arguments.write)
        if arguments.connections or everything:
            body = crowd.crowd(folder, arguments.rounds, arguments.seconds)
            title = f"{crowd.IDLE:,} idle and {crowd.SLOW} slow connections"
            _publish("attack crowd", title, body, arguments.write)
        if arguments.tenants or everything:
            body = tenants.tenants(folder, 30.0, arguments.seed)
            _publish("attack tenants", "One tenant floods", body, arguments.write)


def _each(folder: Path, attacks: Sequence[Attack], seconds: float, arguments: argparse.Namespace) -> None:
    found, rest = trials.trials(folder, attacks, seconds, arguments.seed)
    body = f"{_LIMITS}\n\n{trials.report(found, rest, seconds)}"
    if {attack.name.partition(": ")[0] for attack in attacks} == {"grammar"}:
        return _publish("attack grammars", "Attacks by grammars", body, arguments.write)
    _publish("attack each", "Each attack by itself", body, arguments.write)


def _publish(section: str, title: str, body: str, write: bool) -> None:
    print(body, flush=True)
    if write:
        given = [argument for argument in sys.argv[1:] if argument != "--write"]
        write_section(section, title, " ".join(["python -m benchmarks.attack", *given]), body)


def _ended(number: int, frame: FrameType | None) -> None:
    raise SystemExit(128 + number)  # through everything that is to be cleaned up


def _options() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(
        prog="python -m benchmarks.attack",
        description="The server under attack. Without an option all parts run, which takes about 25 minutes: each "
        "attack by itself (11), all of them at random (12), idle and slow connections (2), two tenants (1).",
    )
    parser.add_argument(
        "attacks",
        nargs="*",
        metavar="ATTACK",
        help="these only, by name, or by what stands before a colon; all by default",
    )
    parser.add_argument("--each", type=float, metavar="SECONDS", help="each attack by itself for so long")
    parser.add_argument("--mixture", type=float, metavar="MINUTES", help="a random mixture; the target is about 10")
    parser.add_argument("--connections", action="store_true", help="2,000 idle and 200 slow connections")
    parser.add_argument("--tenants", action="store_true", help="two tenants, one of which floods")
    parser.add_argument("--rounds", type=int, default=6, help="of --connections (default 6)")
    parser.add_argument("--seconds", type=float, default=10.0, help="of each half of such a round (default 10)")
    parser.add_argument("--seed", type=int, default=1)
    parser.add_argument("--list", action="store_true", help="name all attacks and end")
    parser.add_argument("--write", action="store_true", help="write the sections of docs/results.md")
    return parser


if __name__ == "__main__":
    signal.signal(signal.SIGTERM, _ended)
    main()
