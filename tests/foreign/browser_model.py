"""`inflight` with the built-in model, run in place of the command line: who asks for markup is answered with markup,
and steps take as long as the first argument says, so that what happens in the middle of an answer can be tested."""

from __future__ import annotations

import os
import socket
import sys
from pathlib import Path

from inflight import build
from inflight.core.types.executor import Executor
from inflight.testing.paced import Pace, PacedExecutor
from inflight.testing.scripted import ScriptedExecutor
from inflight.text import Tokenizer

PROGRAM = (str(Path(__file__)), "0.0")
SLOW = (str(Path(__file__)), "0.08")
SECONDS = "BROWSER_MODEL_SECONDS"  # of a step, in the environment of the engine's process
MARKUP = "Show me markup."
ANSWER = (
    "<img src=x onerror=\"document.title='owned'\"><script>document.title='owned'</script>"
    "<a href=\"javascript:document.title='owned'\">here</a> & <b>bold</b> 漢字 😀 end"
)


def scripted(executor: Executor, *_: object) -> Executor:
    tokenizer = Tokenizer.load(build.BUILT_IN)
    end = tokenizer.eos_token_id
    assert end is not None
    answer = [*tokenizer.encode(ANSWER), end]

    def script(prompt: tuple[int, ...], sample: int) -> list[int]:
        asked = tokenizer.decode(list(prompt), skip_special_tokens=False).rpartition("<|user|>")[2]
        return answer if MARKUP in asked else []

    paced = PacedExecutor(executor, Pace(step=float(os.environ[SECONDS]), token=0.0))
    return ScriptedExecutor(paced, script)


if __name__ == "__main__":
    if sys.argv[1].isdigit():  # as the engine's process
        from inflight.launch import engine_process

        os._exit(engine_process.main(socket.socket(fileno=int(sys.argv[1])), scripted))
    os.environ[SECONDS] = sys.argv.pop(1)
    os.environ["PYTHONPATH"] = str(Path(__file__).parent)
    from inflight import cli
    from inflight.launch import one_model

    one_model.LOCAL_ENGINE = one_model.EngineProgram(module="browser_model")
    sys.argv[0] = "inflight"
    cli.main()
