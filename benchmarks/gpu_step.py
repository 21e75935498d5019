"""docs/pictures/gpu-step.svg: what host and device do in a few steps, two of them in flight.

    INFLIGHT_ISA=torch python -m benchmarks.gpu_step

No GPU is asked. What the host does for a step is measured here: the engine serves its built-in model over the backend
for GPUs, on this CPU, and planning, preparing (with the upload) and committing are timed. What the device does is taken
from the data sheet: an H100 computing Qwen3-8B in bf16, as `inflight simulate` has it. Both are put together by the
rule of two steps in flight: the host is at most one step ahead, and commits a step when its result has come. Launching
and copying results are not measured, since a CPU does neither, and take no time in the picture.
"""

from __future__ import annotations

import random
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any
from unittest.mock import patch

from benchmarks.drive import drive
from inflight.build import build_engine
from inflight.config.engine import EngineSettings
from inflight.config.scheduling import SchedulingSettings
from inflight.core.scheduling.scheduler import Scheduler
from inflight.core.types.features import Features, features
from inflight.core.types.plan import BatchPlan
from inflight.core.types.request import Request
from inflight.core.types.sampling import SamplingParams
from inflight.execution.backends.torch.backend import TorchBackend
from inflight.models.known import known_model
from inflight.report.charts.chart import Key
from inflight.report.charts.frame import WIDE, Axis, Frame
from inflight.report.charts.svg import Drawing, rectangle, tag, text
from inflight.simulate.hardware import find_gpu
from inflight.simulate.roofline import Roofline

PICTURE = Path(__file__).parent.parent / "docs" / "pictures" / "gpu-step.svg"
ROWS, PROMPT, ANSWER, SHOWN = 16, 64, 16, 5
LANE, GAP = 34, 26
ON_DEVICE = ("layers", "logits and draws")
CLASSES = {"plan": "s5", "prepare, upload": "s2", "commit": "s3", ON_DEVICE[0]: "decode", ON_DEVICE[1]: "idle"}


@dataclass(frozen=True, slots=True)
class HostStep:
    """Record what the host did for one step, in seconds, and what the step held."""

    features: Features
    plan: float
    prepare: float
    commit: float


@dataclass(frozen=True, slots=True)
class Bar:
    """Hold one operation of a step; name is one of CLASSES, times in seconds."""

    name: str
    step: int
    start: float
    end: float


def measured_steps() -> list[HostStep]:
    """Measure the built-in model's engine while requests come and go."""
    settings = EngineSettings(max_num_seqs=ROWS, max_num_batched_tokens=ROWS + PROMPT)
    engine = build_engine(settings, SchedulingSettings(speculation="off"))
    rng, vocabulary = random.Random(0), engine.capacity.vocab_size
    requests = [
        Request(
            request_id=str(number),
            prompt_token_ids=tuple(rng.randrange(vocabulary) for _ in range(PROMPT)),
            params=SamplingParams(temperature=0, max_tokens=ANSWER, ignore_eos=True),
            arrival=0.0,
            forced_output_tokens=rng.randint(ANSWER // 4, ANSWER),
        )
        for number in range(ROWS + ROWS // 2)
    ]
    plans: list[BatchPlan] = []
    try:
        with (
            timed(Scheduler, "plan", plans) as plan,
            timed(TorchBackend, "prepare") as prepare,
            timed(Scheduler, "commit") as commit,
        ):
            drive(engine.loop, requests)
    finally:
        engine.loop.close()
    return [HostStep(features(one), *each) for one, *each in zip(plans, plan, prepare, commit, strict=True)]


@contextmanager
def timed(owner: type, name: str, plans: list[BatchPlan] | None = None) -> Iterator[list[float]]:
    """Seconds of each call of a method: the thread's own, which other processes do not lengthen. plans: which of its
    answers are kept, and only those are timed."""
    found: list[float] = []
    method: Callable[..., Any] = getattr(owner, name)

    def watched(*args: Any, **kwargs: Any) -> Any:
        began = time.thread_time()
        answer = method(*args, **kwargs)
        if plans is None or isinstance(answer, BatchPlan):
            found.append(time.thread_time() - began)
            if plans is not None:
                plans.append(answer)
        return answer

    with patch.object(owner, name, watched):
        yield found


def timeline(steps: Sequence[HostStep], model: Roofline) -> tuple[list[Bar], list[Bar]]:
    """The host's bars and the device's, with two steps in flight: while the device computes step n, the host plans and
    prepares n + 1; it commits n when the device is done with it."""
    host, device, now, free = list[Bar](), list[Bar](), 0.0, 0.0
    ends: list[float] = []

    def spend(name: str, step: int, seconds: float) -> None:
        nonlocal now
        host.append(Bar(name, step, now, now + seconds))
        now += seconds

    for number, one in enumerate(steps):
        if number >= 2:
            now = max(now, ends[number - 2])
            spend("commit", number - 2, steps[number - 2].commit)
        spend("plan", number, one.plan)
        spend("prepare, upload", number, one.prepare)
        costs = {cost.kind: cost.seconds for cost in model.costs(one.features)}
        logits, all_of_it = costs["logits head"], sum(costs.values())
        begin = max(now, free)
        free = begin + all_of_it
        device += [Bar(ON_DEVICE[0], number, begin, free - logits), Bar(ON_DEVICE[1], number, free - logits, free)]
        ends.append(free)
    return host, device


def picture(host: Sequence[Bar], device: Sequence[Bar], first: int) -> Drawing:
    """SHOWN steps from `first` on."""
    shown = [bar for bar in device if first <= bar.step < first + SHOWN]
    start, end = shown[0].start - (shown[-1].end - shown[0].start) / 40, shown[-1].end
    keys = [Key(name, style, "area") for name, style in CLASSES.items()]
    frame = Frame(Axis(0.0, end - start, "time", "s"), keys, 2 * (LANE + GAP), WIDE)
    body = ""
    for place, (lane, bars) in enumerate((("host", host), ("device", device))):
        y = frame.top + GAP - 8 + place * (LANE + GAP)
        body += text(frame.left - 6, y + LANE / 2 + 4, lane, anchor="end")
        body += tag("path", d=rectangle(frame.left, y, frame.right - frame.left, LANE), class_="area free")
        within = [bar for bar in bars if bar.end > start and bar.start < end]
        for bar in within:
            x, until = (frame.at_x(min(max(one, start), end) - start) for one in (bar.start, bar.end))
            body += tag("path", d=rectangle(x, y, until - x, LANE), class_=f"area {CLASSES[bar.name]}")
        for bar in within:
            if bar.name in ("plan", ON_DEVICE[0]) and bar.start >= start:
                body += text(frame.at_x(bar.start - start) + 1, y - 5, f"step {bar.step - first + 1}")
    title = "Two steps in flight: the host is done with the next step long before the device is with this one"
    about = (
        f"Host: measured on a CPU, an engine of {ROWS} rows. Device: an H100's data sheet, Qwen3-8B in bf16. While the "
        "device computes a step, the host commits the one before, plans the next and uploads what is new in it."
    )
    return Drawing(title, about, WIDE, frame.height, frame.around(body), wide=True)


def main() -> None:
    steps = measured_steps()
    host, device = timeline(steps, Roofline(known_model("qwen3-8b"), find_gpu("h100")))
    first = (
        next(number for number, one in enumerate(steps) if number > 3 and one.features.tokens > one.features.rows) - 1
    )
    PICTURE.write_text(picture(host, device, first).standalone(), encoding="utf-8")
    of_host = sorted(one.plan + one.prepare + one.commit for one in steps)
    of_device = sum(bar.end - bar.start for bar in device) / len(steps)
    waited = sum(max(0.0, b.start - a.end) for a, b in zip(device[1::2], device[2::2], strict=False))
    print(f"{len(steps)} steps; host {of_host[len(steps) // 2] * 1e3:.2f} ms a step (median), ", end="")
    print(f"device {of_device * 1e3:.2f} ms, waited {waited * 1e3:.2f} ms in all")


if __name__ == "__main__":
    main()
