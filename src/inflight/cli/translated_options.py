"""Read options of other servers on the command line of verbs that run an engine, and say once what each is read as."""

from __future__ import annotations

import contextlib
import json
import re
from collections import deque
from collections.abc import Sequence
from functools import cache
from typing import Any, NamedTuple

import click

from inflight.cli.options import show_choice
from inflight.cli.verb import Verb

# Of our options, those that take several words behind them at vLLM, and those with values that others write in another
# way. They are named here, so that the tables are loaded for options of others alone.
SEVERAL = ("--served-model-name", "--api-key", "--lora")
CONVERTED = (
    *("--max-model-len", "--max-num-batched-tokens", "--dtype", "--quantization", "--load-format", "--kv-cache-dtype"),
    "--attention-backend",
)
_OPTIONAL = re.compile(r"\d+|on|off|auto|all|none|true|false")  # a value that may be left out
_NUMBER = re.compile(r"-\d")
_OVERRIDES = "--override-generation-config"


class EngineVerb(Verb):
    """A verb that runs an engine."""

    def parse_args(self, ctx: click.Context, args: list[str]) -> list[str]:
        return super().parse_args(ctx, args if ctx.resilient_parsing else _Translation(self, args).run())


class _Known(NamedTuple):
    """A name of another server. form: of its value. ours, convert: as of ReadAs. reason, is_refused: of the others."""

    form: str
    ours: str | None = None
    convert: Any = None
    reason: str = ""
    is_refused: bool = False


@cache
def _known() -> dict[str, _Known]:
    from inflight.cli.foreign_options import NO_EFFECT, READ_AS, REFUSED

    found: dict[str, _Known] = {}
    for row in READ_AS:
        names, form = names_of(row.names)
        found |= dict.fromkeys(names, _Known(form, row.ours, row.convert))
    for rows, is_refused in ((NO_EFFECT, False), (REFUSED, True)):
        for _, text, reason in rows:
            names, form = names_of(text)
            found |= dict.fromkeys(names, _Known(form, None, None, reason, is_refused))
    return found


def names_of(text: str) -> tuple[list[str], str]:
    """Return the names of a row, and the form of their value; empty: they are flags."""
    parts = text.split(" ")
    return [one for one in parts if one.startswith("-")], " ".join(one for one in parts if not one.startswith("-"))


class _Translation:
    """One command line."""

    def __init__(self, command: click.Command, typed: Sequence[str]):
        options = [one for one in command.params if isinstance(one, click.Option)]
        self._own = {name: one for one in options for name in (*one.opts, *one.secondary_opts)}
        self._rest = deque(typed)
        # Where any number of arguments may follow, as the prompt of `run`, an option takes one of them.
        self._takes_several = all(one.nargs == 1 for one in command.params if isinstance(one, click.Argument))
        self._has_model = any(word.partition("=")[0] in ("--model", "-m") for word in typed)
        self._takes_sampling = _OVERRIDES in self._own
        self._sampling: dict[str, Any] = {}
        self._overrides: dict[str, Any] = {}  # typed as our option, which wins

    def run(self) -> list[str]:
        """Return the words in our options. Raises click.UsageError for an option that is refused."""
        done: list[str] = []
        while self._rest:
            word = self._rest.popleft()
            if word == "--":
                done += [word, *self._rest]
                break
            if word[:1] != "-" or word == "-" or _NUMBER.match(word):
                self._has_model = True
                done.append(word)
            else:
                done += self._option(word)
        given = json.dumps({**self._sampling, **self._overrides})
        return [_OVERRIDES, given, *done] if self._sampling or self._overrides else done

    def _option(self, word: str) -> list[str]:
        """Return the words for an option, and take its values off the rest."""
        typed, equals, value = word.partition("=")
        name = self._spelled(typed)
        inline = value if equals else None
        if name in self._own:
            return self._ours(name, inline)
        if self._takes_sampling and (key := _sampling_key(name)):
            return self._sampled(name, key, inline)
        row = _known().get(name) or _known().get(name.partition(".")[0]) or _negated(name)
        is_prompt = row is not None and row.ours == "" and row.form == "TEXT"
        if row is None or (is_prompt and self._takes_several):
            return [word]  # click refuses it
        if row.ours and (ours := row.ours.split(" ")[0]) not in self._own:
            raise click.UsageError(f"No such option {name!r} of this command; where there is one, it is {ours}.")
        return self._foreign(name, row, inline)

    def _spelled(self, name: str) -> str:
        """Return a name with - for _, where it is known so."""
        other = name.replace("_", "-")
        if other == name or name[:2] != "--" or not (other in self._own or other in _known()):
            return name
        show_choice(f"{name} is read as {other}.")
        return other

    def _ours(self, name: str, inline: str | None) -> list[str]:
        option = self._own[name]
        if option.is_flag:
            return [name if inline is None else f"{name}={inline}"]
        values = [inline] if inline is not None else self._values(option.nargs)
        if name == _OVERRIDES and values:
            with contextlib.suppress(ValueError):  # which click refuses, as other values than objects
                if isinstance(found := json.loads(values[0]), dict):
                    self._overrides |= found
                    return []
        if name in SEVERAL and self._has_model and self._takes_several:
            values += self._several()
        if name in CONVERTED and values:
            from inflight.cli.foreign_values import VALUES

            return self._converted(name, values[0], [name], VALUES[name])
        if name in SEVERAL:
            return [word for one in values for word in (name, one)] if values else [name]
        return [f"{name}={inline}"] if inline is not None else [name, *values]

    def _sampled(self, name: str, key: str, inline: str | None) -> list[str]:
        [value] = self._values_of(name, "N", inline)
        show_choice(f"{name} is read as {_OVERRIDES}, for requests that name none.")
        try:
            self._sampling[key] = json.loads(value)
        except ValueError:
            raise click.UsageError(f"{name} is {value!r}; give a number.") from None
        return []

    def _foreign(self, name: str, row: _Known, inline: str | None) -> list[str]:
        if row.is_refused:
            raise click.UsageError(f"{name} is not supported: {row.reason}.")
        values = self._values_of(name, row.form, inline)
        if row.ours is None:
            show_choice(f"{name} has no effect here: {row.reason}.")
            return []
        ours = row.ours.split(" ") if row.ours else []
        if not row.form:
            show_choice(f"{name} is read as {row.ours}.")
            return ours
        done: list[str] = []
        for value in values:
            done += [*ours, value] if row.convert is None else self._converted(name, value, ours, row.convert)
        if done and ours:
            show_choice(f"{name} is read as {row.ours}.")
        return done

    def _converted(self, name: str, value: str, ours: list[str], convert: Any) -> list[str]:
        from inflight.cli.foreign_values import NoEffect, Refused

        try:
            found = convert(value)
        except NoEffect as error:
            show_choice(f"{name} {value} has no effect here: {error}.")
            return []
        except Refused as error:
            raise click.UsageError(f"{name} {value} is not supported: {error}.") from None
        except (ValueError, AttributeError):
            raise click.UsageError(f"{name} is {value!r}, which cannot be read; give it by our own option.") from None
        if ours in (["--served-model-name"], ["--cors-origin"]):
            return [word for one in found for word in (*ours, one)]
        return [*ours, *found]

    def _values_of(self, name: str, form: str, inline: str | None) -> list[str]:
        if inline is not None:
            return [inline]
        if form.startswith("["):
            return self._values(1) if self._rest and _OPTIONAL.fullmatch(self._rest[0]) else []
        has_several = form.endswith("...") and self._takes_several
        found = self._several() if has_several else self._values(1) if form else []
        if form and not found:
            raise click.UsageError(f"{name} needs a value.")
        return found

    def _values(self, number: int) -> list[str]:
        return [self._rest.popleft() for _ in range(min(number, len(self._rest)))]

    def _several(self) -> list[str]:
        found: list[str] = []
        while self._rest and self._rest[0][:1] != "-":
            found.append(self._rest.popleft())
        return found


def _sampling_key(name: str) -> str | None:
    from inflight.cli.foreign_options import SAMPLING

    return SAMPLING.get(name)


def _negated(name: str) -> _Known | None:
    """Return the row of a flag without effect, for its --no- form."""
    row = _known().get(name.replace("--no-", "--", 1)) if name.startswith("--no-") else None
    return row if row is not None and row.ours is None and not row.form and not row.is_refused else None
