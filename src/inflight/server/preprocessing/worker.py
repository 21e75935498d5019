"""The process that reads bodies for the server: `python -m inflight.server.preprocessing.worker FD`.

The first process loads tokenizer and template once and then only forks: each socket that comes over FD gets a child,
which shares what is loaded, says hello, and serves jobs until the socket closes. A child limits itself: the memory it
may take beyond what it has (RLIMIT_AS), and the seconds of CPU for one job (an interval timer that kills). The server
sees the socket close, and kills a child that makes no progress.
"""

from __future__ import annotations

import contextlib
import os
import signal
import socket
import sys
from pathlib import Path

from inflight.frontend.prompts import PromptEncoder
from inflight.limited_process import end_before_others, limit_memory, receive, resident_bytes, send, silence_stderr
from inflight.server.errors import ApiError
from inflight.server.parsers import parsers_of
from inflight.server.preprocessing.preprocessor import Preprocessor
from inflight.server.preprocessing.wire import (
    KEEP,
    LONG,
    PID_BYTES,
    READY,
    RENEW,
    Outcome,
    Refused,
    decode_limits,
    decode_setup,
    encode,
    job_of,
    memory_of_body,
    out_of_memory,
)
from inflight.text import ChatTemplate, Tokenizer, TokenizerError

GROWN_BYTES = 4 << 20  # that a child may have kept of earlier bodies; then a new one takes its place


def main() -> int:
    """Until the server closes the socket. The first frame is a Setup, the second the Limits; then come sockets."""
    # One thread, so that a fork is whole and no thread's stack counts as memory.
    os.environ["TOKENIZERS_PARALLELISM"] = "false"
    for number in (signal.SIGINT, signal.SIGHUP):  # the terminal's are for the server, which closes the socket
        signal.signal(number, signal.SIG_IGN)
    with socket.socket(fileno=int(sys.argv[1])) as control, contextlib.suppress(EOFError, OSError):
        _fork_for(control)  # the server's end, early or late, is this one's too
    return 0


def _fork_for(control: socket.socket) -> None:
    """Raises EOFError or OSError where the server has closed its side."""
    setup = decode_setup(receive(control))
    tokenizer, template = loaded(Path(setup.model_folder))
    if tokenizer is not None:
        _ = tokenizer.longest_token  # looked up once, before there are children
    send(control, READY)
    limits = decode_limits(receive(control))
    signal.signal(signal.SIGCHLD, signal.SIG_IGN)  # children leave no zombies
    end_before_others()
    encoder = PromptEncoder(
        tokenizer,
        template,
        0,
        parse_control_tokens=limits.parse_control_tokens,
        pair_template=limits.prompts.of_pairs,
    )
    encoder.check_chat()
    preprocessor = Preprocessor(encoder, tokenizer, limits, parsers_of(encoder, tokenizer, limits.parsers))
    while True:
        role, descriptors, _, _ = socket.recv_fds(control, 1, 1)
        if not descriptors:
            return
        pid = os.fork()
        if not pid:
            control.close()
            silence_stderr()
            if role == LONG:
                os.nice(10)  # long bodies take seconds; streams and short ones do not
            max_bytes = memory_of_body(limits, role == LONG)
            serve(socket.socket(fileno=descriptors[0]), preprocessor, max_bytes, setup.cpu_seconds)
        os.close(descriptors[0])
        control.sendall(pid.to_bytes(PID_BYTES, "big"))


def loaded(folder: Path) -> tuple[Tokenizer | None, ChatTemplate | None]:
    """Load what the server loads too, which reports mistakes; a model without a tokenizer takes token ids."""
    try:
        return Tokenizer.load(folder), ChatTemplate.load(folder)
    except TokenizerError:
        return None, None


def serve(jobs: socket.socket, preprocessor: Preprocessor, max_bytes: int, cpu_seconds: float) -> None:
    """Never returns. A job that exceeds its time ends the process. max_bytes: of memory, beyond what it has now."""
    limit_memory(max_bytes)
    rest = resident_bytes()
    while True:
        try:
            frame = receive(jobs)
        except (EOFError, OSError):
            os._exit(0)
        signal.setitimer(signal.ITIMER_PROF, cpu_seconds)  # SIGPROF kills, wherever the process is
        answer = encode(_outcome(preprocessor, frame, max_bytes))
        signal.setitimer(signal.ITIMER_PROF, 0)
        grown = resident_bytes() - rest > GROWN_BYTES
        with contextlib.suppress(OSError):
            send(jobs, (RENEW if grown else KEEP) + answer)


def _outcome(preprocessor: Preprocessor, frame: bytearray, max_bytes: int) -> Outcome:
    try:
        job = job_of(frame)
        return preprocessor.prepared(job.endpoint, job.body, job.history)
    except ApiError as error:
        return Refused.of(error)
    except MemoryError:
        return Refused.of(out_of_memory(max_bytes))
    except Exception as fault:
        sentence = f"Internal server error with this body ({type(fault).__name__}: {fault}); its operator can help."
        return Refused(500, sentence[:500], "server_error", None, "internal_error")


if __name__ == "__main__":
    sys.exit(main())
