"""One side of `versions`: loads a model and times steps on demand, for a line "AMOUNT STEPS BUSY" each.

BUSY is 1 where a thread of this process runs Python all the while, else 0.

Run by the Python of the checkout that is to be measured; imports nothing but its public API.
"""

import sys
import threading
import time
from importlib.util import find_spec
from typing import Any

from inflight import LLM, SamplingParams


def main() -> None:
    model, quantization = sys.argv[1:]
    # A step is to be a token a row in every version; older ones know of no drafts.
    options: dict[str, Any] = {"speculation": "off"} if find_spec("inflight.core.speculation") else {}
    if model == "built-in":
        llm = LLM(max_model_len=1024, **options)
    else:
        llm = LLM(model, load_format="dummy", quantization=quantization, max_model_len=1024, kv_memory=0.25, **options)
    busy = threading.Event()
    threading.Thread(target=_spin, args=(busy,), daemon=True).start()
    for number, line in enumerate(sys.stdin):
        amount, steps, is_busy = map(int, line.split())
        busy.set() if is_busy else busy.clear()
        # Prompts are never the same, or they would be found in the cache.
        start = 7 + number
        if steps:
            prompts = [[start + row, start] for row in range(amount)]
            seconds = _generate(llm, prompts, steps + 1) - _generate(llm, prompts, 1)
            print(seconds / steps, flush=True)
        else:
            print(_generate(llm, [[(start * 31 + 17 * at) % 9973 + 20 for at in range(amount)]], 1), flush=True)


def _spin(busy: threading.Event) -> None:
    """Run Python while the event is set."""
    while busy.wait():
        for _ in range(1000):
            pass


def _generate(llm: LLM, prompts: list[list[int]], tokens: int) -> float:
    began = time.perf_counter()
    llm.generate(prompts, SamplingParams(temperature=0, max_tokens=tokens, ignore_eos=True))
    return time.perf_counter() - began


main()
