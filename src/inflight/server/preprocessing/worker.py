"""The process that reads bodies for the server, and its messages: `python -m inflight.server.preprocessing.worker FD`.

`Preprocessor` is the pure part: one body in, what the engine needs of it out, or the sentence that refuses it.

The first process loads tokenizer and template once and then only forks: each socket that comes over FD gets a child,
which shares what is loaded, says hello, and serves jobs until the socket closes. A child limits itself: the memory it
may take beyond what it has (RLIMIT_AS), and the seconds of CPU for one job (an interval timer that kills). The server
sees the socket close, and kills a child that makes no progress. Messages are typed msgpack and can name no code: a
process that a hostile template has taken over can send wrong token ids, and no more.
"""

from __future__ import annotations

import contextlib
import faulthandler
import os
import signal
import socket
import sys
from typing import Any, NamedTuple, TypeVar

import msgspec
from msgspec import Struct, structs

from inflight.counted import counted
from inflight.frontend.parsers.generic import GENERIC_NAME
from inflight.frontend.parsers.parser_choice import ParserChoice
from inflight.frontend.prompts import PromptEncoder
from inflight.limited_process import (
    LENGTH_BYTES,
    end_before_others,
    limit_memory,
    receive,
    resident_bytes,
    send,
    silence_stderr,
)
from inflight.models.errors import ModelError
from inflight.server.common.answer_forms import AnswerForms, form_field
from inflight.server.common.bodies import UnknownFields
from inflight.server.common.conversation import ChatBody, Prompts
from inflight.server.common.fields import FORM_FIELDS, ChatSettings, GenerationSettings
from inflight.server.common.mistakes import renamed_fields
from inflight.server.common.prepared import (
    EndpointName,
    Limits,
    Prepared,
    PreparedAnswer,
    PreparedChat,
    PreparedCompletion,
    PreparedTexts,
    Prompt,
    check_logprobs,
    check_model,
    check_samples,
    max_tokens_of,
    packed,
)
from inflight.server.errors import ApiError, invalid
from inflight.server.parsers import parsers_of
from inflight.server.registry import ENDPOINTS
from inflight.text import TextFiles, Tokenizer

Body = bytes | memoryview
S = TypeVar("S", bound=GenerationSettings)


class Preprocessor:
    """Reads bodies of all endpoints, whose `prepare` functions use its parts."""

    def __init__(
        self,
        encoder: PromptEncoder,
        tokenizer: Tokenizer | None,
        limits: Limits,
        parsers: ParserChoice | None = None,
    ):
        """parsers: of the model's answers; None where nothing is known of them."""
        self.limits = limits
        generic_tools = parsers is not None and parsers.names.tools == GENERIC_NAME
        self.prompts = Prompts(encoder, tokenizer, limits, generic_tools)
        self.forms = AnswerForms(self.prompts, limits.keeps_grammars, parsers)

    def prepared(self, endpoint: EndpointName, body: Body, history: Body = b"") -> Prepared | PreparedAnswer:
        """Prepare a body. history: where answers are stored, the items before it, as JSON. Raises ApiError."""
        asked, ignored = self.decoded(endpoint, body)
        return self.of_decoded(endpoint, asked, history, ignored)

    def decoded(self, endpoint: EndpointName, body: Body) -> tuple[Any, tuple[str, ...]]:
        """Return the body's struct, and the paths of ignored fields that are to be named. Raises ApiError."""
        policy = self.limits.unknown_fields
        unknown = UnknownFields(refuses=policy == "refuse")
        asked = ENDPOINTS[endpoint].body.decode(body, unknown)
        return asked, unknown.names if policy == "warn" else ()

    def of_decoded(
        self, endpoint: EndpointName, asked: Any, history: Body = b"", ignored: tuple[str, ...] = ()
    ) -> Prepared | PreparedAnswer:
        """Prepare a body that is decoded. Raises ApiError."""
        entry = ENDPOINTS[endpoint]
        with renamed_fields(entry.field_names):
            prepared = entry.prepare(self, asked, history)
        return structs.replace(prepared, ignored=ignored) if ignored else prepared

    def check_generates(self, model: str | None) -> None:
        """Refuse a name that is none of the model's, and a model that generates no text. Raises ApiError."""
        check_model(model, self.limits.models)
        pooler = self.limits.pooler
        if not self.limits.generates and pooler is not None:
            made = counted(len(pooler.labels), "score") if pooler.labels else "a vector"
            ask = "/classify, /score or /v1/rerank" if pooler.labels else "/v1/embeddings"
            raise invalid(
                f"This model generates no text: it computes {made} of each text; ask {ask}.",
                "model",
                "unsupported_task",
            )

    def settings_of(self, body: GenerationSettings, kind: type[S]) -> S:
        """Return the body without its prompt and the form of its answer. Allowed tokens are named once: a list of a
        million may name a hundred. Raises ApiError."""
        names = [name for name in kind.__struct_fields__ if name not in FORM_FIELDS]
        settings = kind(**{name: getattr(body, name) for name in names})
        if settings.allowed_token_ids:
            allowed, most = sorted(set(settings.allowed_token_ids)), self.limits.vocab_size
            if most is not None and allowed[-1] >= most:
                raise invalid(
                    f"allowed_token_ids names the token id {allowed[-1]}, but the vocabulary has {most} tokens (0 to "
                    f"{most - 1}).",
                    "allowed_token_ids",
                )
            settings.allowed_token_ids = allowed
        return settings

    def chat(
        self, body: ChatBody, kind: EndpointName = "chat", echoed: bytes = b"", stored_items: bytes = b""
    ) -> PreparedChat:
        """Prepare a conversation.

        Args:
            kind: The endpoint.
            echoed: JSON, what its answer repeats of its body.
            stored_items: JSON, the items that the answer is stored with.

        Raises:
            ApiError: 400, 404.
        """
        self.check_generates(body.model)
        check_samples(self.limits, 1, body.n or 1)
        tools = self.forms.tools(body)
        rendered = self.prompts.rendered(body, tools.shown)
        in_reasoning = self.forms.opens_in_reasoning(rendered.text)
        grammar = self.forms.of_chat(body, tools, rendered.text, in_reasoning)
        tokens = self.prompts.of_chat(body, rendered)
        shown = max_tokens_of(body) if body.logprobs else None
        check_logprobs(self.limits, shown, body.n or 1, body.top_logprobs or 0, len(tokens), body.prompt_logprobs)
        return PreparedChat(
            self.settings_of(body, ChatSettings),
            (Prompt(packed(tokens)),),
            kind,
            grammar=grammar,
            form_field=ENDPOINTS[kind].field_names.get(field := form_field(body), field),
            tools=tools.callable,
            old_functions=tools.old,
            parallel_calls=tools.choice.parallel,
            in_reasoning=in_reasoning,
            echoed=echoed,
            stored_items=stored_items,
        )


# -- messages ----------------------------------------------------------------------------------------------------------

NAMES = tuple(ENDPOINTS)
READY = b"ready"  # the first process has loaded what it needs
PID_BYTES = 4  # of a child's process id, with which the first process answers a socket
ABORTED = b"Fatal Python error"[:LENGTH_BYTES]  # instead of an answer's length; no answer is that long
KEEP, RENEW = b"k", b"r"  # before an answer: whether the child that gave it goes on
SHORT, LONG = b"s", b"l"  # with a socket: what the child will read
# That a process may take for a short body, beyond what it has; the limits have that for a long one.
SHORT_MEMORY_BYTES = 16 << 20
GROWN_BYTES = 4 << 20  # that a child may have kept of earlier bodies; then a new one takes its place


def memory_of_body(limits: Limits, is_long: bool) -> int:
    """Return the bytes that a process may take for one body, beyond what it has."""
    return limits.memory_bytes if is_long else min(SHORT_MEMORY_BYTES, limits.memory_bytes)


def out_of_memory(max_bytes: int) -> ApiError:
    return ApiError(
        400,
        f"The body needs more memory to be read than the {max_bytes:,} bytes that one may take; send less in one "
        "body, or a shorter conversation.",
        code="body_too_complex",
    )


class Setup(Struct, frozen=True):
    """The settings of a process: the model's text files, and the seconds that it may compute for one body."""

    text: TextFiles
    cpu_seconds: float


class Job(NamedTuple):
    """A body as it came. history: where answers are stored, the items that come before it, as JSON."""

    endpoint: EndpointName
    body: memoryview
    history: memoryview


def job_frame(endpoint: EndpointName, body: bytes, history: bytes) -> tuple[bytes, bytes, bytes]:
    """Return the endpoint's number, the length of the history, the history, and the body: in pieces, none of which is
    copied."""
    length = 1 + LENGTH_BYTES + len(history) + len(body)
    head = bytes([NAMES.index(endpoint)]) + len(history).to_bytes(LENGTH_BYTES, "big")
    return length.to_bytes(LENGTH_BYTES, "big") + head, history, body


def job_of(frame: bytearray) -> Job:
    """Return the job of a frame without its length."""
    begin = 1 + LENGTH_BYTES
    end = begin + int.from_bytes(frame[1:begin], "big")
    view = memoryview(frame)
    return Job(NAMES[frame[0]], view[end:], view[begin:end])


class Refused(Struct, frozen=True, tag_field="outcome", tag="refused"):
    """An ApiError on its way between processes."""

    status: int
    message: str
    type: str
    param: str | None
    code: str | None

    @classmethod
    def of(cls, error: ApiError) -> Refused:
        return cls(error.status, error.message, error.type, error.param, error.code)

    def error(self) -> ApiError:
        return ApiError(self.status, self.message, type=self.type, param=self.param, code=self.code)


Outcome = PreparedCompletion | PreparedChat | PreparedTexts | PreparedAnswer | Refused

encode = msgspec.msgpack.Encoder().encode
decode_limits = msgspec.msgpack.Decoder(Limits).decode
decode_setup = msgspec.msgpack.Decoder(Setup).decode
decode_outcome = msgspec.msgpack.Decoder(Outcome).decode


# -- the process -------------------------------------------------------------------------------------------------------


def main() -> int:
    """Serve until the server closes the socket, which brings a Setup, the Limits, and then sockets."""
    # One thread, so that a fork is whole and no thread's stack counts as memory.
    os.environ["TOKENIZERS_PARALLELISM"] = "false"
    # Those of a terminal or a service are for the server, which closes the socket when its calls are done.
    for number in (signal.SIGINT, signal.SIGTERM, signal.SIGHUP):
        signal.signal(number, signal.SIG_IGN)
    with socket.socket(fileno=int(sys.argv[1])) as control, contextlib.suppress(EOFError, OSError):
        try:
            _fork_for(control)  # the server's end, early or late, is this one's too
        except ModelError:  # the server reads the same files, and reports them
            return 1
    return 0


def _fork_for(control: socket.socket) -> None:
    """Load what children share, and fork one for each socket. Raises EOFError or OSError where the server has closed
    its side."""
    setup = decode_setup(receive(control))
    tokenizer, template = setup.text.load_if_any()
    if tokenizer is not None:
        _ = tokenizer.longest_token, tokenizer.fill_in_middle  # looked up once, before there are children
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


def serve(jobs: socket.socket, preprocessor: Preprocessor, max_bytes: int, cpu_seconds: float) -> None:
    """Read bodies; never return. A job that exceeds its time ends the process. max_bytes: of memory, beyond what it has
    now."""
    # A library that gets no memory aborts the process, which then says so; a process that is killed says nothing.
    faulthandler.enable(jobs.fileno())
    limit_memory(max_bytes)
    rest = resident_bytes()
    try:
        while True:
            frame = receive(jobs)
            signal.setitimer(signal.ITIMER_PROF, cpu_seconds)  # SIGPROF kills, wherever the process is
            answer = encode(_outcome(preprocessor, frame, max_bytes))
            signal.setitimer(signal.ITIMER_PROF, 0)
            grown = resident_bytes() - rest > GROWN_BYTES
            with contextlib.suppress(OSError):
                send(jobs, (RENEW if grown else KEEP) + answer)
    except MemoryError:
        with contextlib.suppress(OSError):
            jobs.sendall(ABORTED)
            while jobs.recv(1 << 16):  # the server reads that when it has sent the body
                pass
    except (EOFError, OSError):
        pass
    finally:
        os._exit(0)


def _outcome(preprocessor: Preprocessor, frame: bytearray, max_bytes: int) -> Outcome:
    try:
        job = job_of(frame)
        return preprocessor.prepared(job.endpoint, job.body, job.history)
    except ApiError as error:
        return Refused.of(error)
    except MemoryError:
        return Refused.of(out_of_memory(max_bytes))
    except Exception as fault:
        sentence = (
            f"Internal server error while the body was read ({type(fault).__name__}: {fault}); see the server log."
        )
        return Refused(500, sentence[:500], "server_error", None, "internal_error")


if __name__ == "__main__":
    sys.exit(main())
