"""The state of a conversation in the terminal, and the commands that show, change, save and load it."""

from __future__ import annotations

import contextlib
import json
from collections.abc import Callable
from dataclasses import fields, replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

from inflight.cli.chat_terminal import QUOTES, Prompt
from inflight.cli.summary import show
from inflight.core.types.sampling import Grammar, InvalidSampling, SamplingParams
from inflight.counted import did_you_mean
from inflight.json_file import JsonFileError, read_json_object
from inflight.private_files import open_private
from inflight.text import Conversation

if TYPE_CHECKING:
    from inflight.build import Engine
    from inflight.models.spec import ModelSpec

HELP = """Type a message; between three quotes (""\") it may have several lines. Ctrl-C stops an answer, Ctrl-D ends.
  /set parameter NAME VALUE    temperature, top_p, top_k, max_tokens, stop, seed, ...
  /set system TEXT             system message, from here on
  /set think | nothink         reason before answering, where the model can
  /set format json | FILE      answer with JSON, or by the JSON schema in a file; "" (or noformat) ends it
  /set verbose | quiet         figures after each answer
  /set wordwrap | nowordwrap   break lines between words
  /set history | nohistory     keep what is typed for the next time
  /show [info | parameters | system | template]
  /save FILE, /load FILE       the conversation with its settings
  /clear                       start over (also /reset)
  /bye                         end (also /exit)
  /help                        show this (also /?)"""
_OTHER_NAMES = {"num_predict": "max_tokens", "repeat_penalty": "repetition_penalty"}
_START_OPTIONS = {"num_ctx": "--max-model-len", "num_thread": "--threads", "num_gpu": "--device"}
_THINKING = ("enable_thinking", "thinking")
_INFO = ("model", "max_model_len", "quantization", "dtype", "kv_cache_dtype", "device", "kernels")
_SETTABLE = tuple(one.name for one in fields(SamplingParams) if one.name not in ("n", "logprobs", "prompt_logprobs"))


def _weights(model: ModelSpec) -> str:
    from inflight.models.weight_format import described

    return model.checkpoint_dtype or "plain" if model.weight_format is None else described(model.weight_format)


class ChatError(ValueError):
    """A command cannot be carried out; the sentence says why."""


class Session:
    """A conversation with its settings.

    Attributes:
        messages: Without the system message.
        params: Of every answer.
        variables: Of the chat template.
        form: Of every answer; None: any text.
        is_verbose: Whether figures follow each answer.
        wraps: Whether lines of answers are broken between words.
    """

    def __init__(
        self, engine: Engine, params: SamplingParams, system: str | None, is_verbose: bool, wraps: bool, prompt: Prompt
    ) -> None:
        self.messages: list[dict[str, str]] = []
        self.params, self.system, self.is_verbose, self.wraps = params, system, is_verbose, wraps
        self.variables: dict[str, Any] = {}
        self.form: Grammar | None = None
        self._engine, self._prompt = engine, prompt

    def conversation(self) -> Conversation:
        """Return all messages for the chat template."""
        system = [{"role": "system", "content": self.system}] if self.system else []
        return Conversation([*system, *self.messages], variables=self.variables or None)

    def command(self, line: str) -> None:
        """Carry out a line that begins with a slash. Raises ChatError, OSError."""
        name, _, rest = line.partition(" ")
        commands: dict[str, Callable[[str], None]] = {
            "/set": self._set,
            "/show": self._show,
            "/save": self._save,
            "/load": self._load,
            "/clear": self._clear,
            "/reset": self._clear,
            "/help": lambda _: show(HELP),
            "/?": lambda _: show(HELP),
        }
        if name not in commands:
            raise ChatError(f"{name} is no command.{did_you_mean(name, commands)} /help lists all.")
        try:
            commands[name](rest.strip())
        except KeyboardInterrupt:  # while lines of a value are typed
            raise ChatError("Nothing is set.") from None

    def _clear(self, _: str) -> None:
        self.messages.clear()
        show("The conversation starts over.")

    # -- /set -----------------------------------------------------------------------------------------------------
    def _set(self, rest: str) -> None:
        name, _, value = rest.partition(" ")
        switches: dict[str, tuple[str, bool]] = {
            "verbose": ("is_verbose", True),
            "quiet": ("is_verbose", False),
            "wordwrap": ("wraps", True),
            "nowordwrap": ("wraps", False),
        }
        if name in switches:
            setattr(self, *switches[name])
        elif name in ("history", "nohistory"):
            self._prompt.keep_history(name == "history")
        elif name in ("think", "nothink"):
            self._set_thinking(name == "think", value.strip())
        elif name == "noformat" or (name == "format" and value.strip()):
            self._set_format("" if name == "noformat" else value.strip().strip("\"'"))
        elif name == "system" and value.strip():
            text = value.strip()
            self.system = self._prompt.rest_of(text.removeprefix(QUOTES)) if text.startswith(QUOTES) else text
        elif name == "parameter":
            self._set_parameter(*value.partition(" ")[::2])
        elif name in _SETTABLE or name in _OTHER_NAMES:
            raise ChatError(f"{name} is a parameter: /set parameter {rest}")
        else:
            raise ChatError(
                "/set takes parameter NAME VALUE, system TEXT, think, nothink, format json or FILE, noformat, verbose, "
                "quiet, wordwrap, nowordwrap, history or nohistory."
            )
        show(f"Set {name} {value.partition(' ')[0]}." if name == "parameter" else f"Set {name}.")

    def _set_thinking(self, thinks: bool, effort: str) -> None:
        reads = self._engine.prompts.template_reads
        if effort and reads("reasoning_effort"):
            self.variables["reasoning_effort"] = effort
        elif variable := next((one for one in _THINKING if reads(one)), None):
            self.variables[variable] = thinks
        elif reads("reasoning_effort"):
            raise ChatError("This model always reasons; set how much: /set think low, medium or high.")
        else:
            raise ChatError("This model's chat template has no switch for reasoning.")

    def _set_format(self, form: str) -> None:
        """Set the form of answers: none, any JSON object, or a file's JSON schema."""
        if not form or form == "json":
            self.form = Grammar("json_object") if form else None
            return
        path = Path(form).expanduser()
        try:
            self.form = Grammar("json_schema", json.dumps(read_json_object(path)))
        except FileNotFoundError:
            raise ChatError(f'{path} does not exist; /set format takes json, a file of a JSON schema, or "".') from None
        except JsonFileError as error:
            raise ChatError(str(error)) from None

    def _set_parameter(self, name: str, value: str) -> None:
        name, value = _OTHER_NAMES.get(name, name), value.strip()
        if (option := _START_OPTIONS.get(name)) is not None:
            raise ChatError(f"{name} is a setting of the start: end, and give {option}.")
        if name not in _SETTABLE or not value:
            near = did_you_mean(name, _SETTABLE) if name not in _SETTABLE else ""
            raise ChatError(f"/set parameter takes a name and a value.{near} Names are: {', '.join(_SETTABLE)}.")
        parsed: Any = value
        with contextlib.suppress(ValueError):
            parsed = json.loads(value)
        if name == "max_tokens" and parsed in (-1, -2):  # as ollama says that there is no limit
            parsed = None
        if name == "stop" and not isinstance(parsed, list):
            parsed = value
        try:
            self.params = replace(self.params, **{name: parsed})
        except InvalidSampling as error:
            raise ChatError(str(error)) from None

    # -- /show ----------------------------------------------------------------------------------------------------
    def _show(self, what: str) -> None:
        engine, template = self._engine, self._engine.prompts.template_source
        default = SamplingParams()
        shown = {
            "info": "\n".join(
                [f"{'family':<14} {engine.model.family}", f"{'weights':<14} {_weights(engine.model)}"]
                + [f"{name:<14} {engine.settings[name].value}" for name in _INFO if name in engine.settings]
            ),
            "parameters": "\n".join(
                f"{name:<28} {value}"
                for name in _SETTABLE
                if (value := getattr(self.params, name)) != getattr(default, name)
                or name in ("temperature", "max_tokens")
            ),
            "system": self.system or "No system message is set.",
            "template": template,
        }
        if what not in ("", *shown):
            raise ChatError(f"/show takes {', '.join(shown)}; `inflight show MODEL` has licence and files.")
        show(shown[what or "info"])

    # -- /save and /load ------------------------------------------------------------------------------------------
    def _save(self, name: str) -> None:
        path = _path("/save", name)
        if path.exists() and not _is_conversation(path):
            raise ChatError(f"{path} is there already, and is no conversation of ours; give another name.")
        params = {
            one: value for one in _SETTABLE if (value := getattr(self.params, one)) != getattr(SamplingParams(), one)
        }
        saved = {
            "messages": self.messages,
            "system": self.system,
            "parameters": params,
            "variables": self.variables,
            "format": self.form and [self.form.kind, self.form.source],
        }
        with open(path, "w", encoding="utf-8", opener=open_private) as file:
            json.dump(saved, file, ensure_ascii=True, indent=1)
        show(f"Saved {len(self.messages)} messages in {path}.")

    def _load(self, name: str) -> None:
        path = _path("/load", name)
        try:
            found = read_json_object(path)
            messages = [{"role": str(one["role"]), "content": str(one["content"])} for one in found["messages"]]
            params = replace(
                SamplingParams(), **{name: value for name, value in found["parameters"].items() if name in _SETTABLE}
            )
            system, variables = found["system"], dict(found["variables"])
            form = Grammar(*map(str, found["format"])) if found.get("format") else None  # type: ignore[arg-type]
        except FileNotFoundError:
            raise ChatError(f"{path} does not exist; /save FILE writes one.") from None
        except (JsonFileError, InvalidSampling) as error:
            raise ChatError(str(error)) from None
        except (KeyError, TypeError, ValueError, AttributeError):
            raise ChatError(f"{path} holds no conversation that /save wrote.") from None
        self.messages, self.params, self.variables, self.form = messages, params, variables, form
        self.system = system if isinstance(system, str) else None
        show(f"Loaded {len(messages)} messages from {path}.")


def _path(command: str, name: str) -> Path:
    if not name:
        raise ChatError(f"{command} takes the name of a file.")
    return Path(name).expanduser()


def _is_conversation(path: Path) -> bool:
    try:
        return "messages" in read_json_object(path)
    except (JsonFileError, OSError):
        return False
