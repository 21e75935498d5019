"""One model, several low-rank adapters, one batch: the same prompt to each of them and to the model itself.

Call: `python examples/adapters.py MODEL sql=./adapters/sql support=./adapters/support`
"""

from __future__ import annotations

import asyncio
import sys

from inflight import AsyncEngine, SamplingParams

PROMPT = "Continuous batching"


async def ask(engine: AsyncEngine, adapter: str | None) -> str:
    text = ""
    async for output in engine.generate(PROMPT, SamplingParams(temperature=0, max_tokens=24), adapter=adapter):
        text = output.outputs[0].text
    return text


async def main(model: str | None, adapters: list[str]) -> None:
    names = [None, *(one.partition("=")[0] for one in adapters)]
    async with AsyncEngine(model, lora=tuple(adapters)) as engine:
        # All at once: rows of different adapters, and of none, are computed in one step.
        for name, text in zip(names, await asyncio.gather(*(ask(engine, name) for name in names)), strict=True):
            print(f"{name or 'without'}: {text!r}")


if __name__ == "__main__":
    asyncio.run(main(sys.argv[1] if len(sys.argv) > 1 else None, sys.argv[2:]))
