"""A command with options in groups, each of which an environment variable may give, too."""

from __future__ import annotations

import copy
import difflib
import os
import re
from collections.abc import Callable, Iterable, Iterator
from contextlib import contextmanager
from typing import Any

import click
from click.shell_completion import CompletionItem

Decorator = Callable[[Callable[..., Any]], Callable[..., Any]]
HELP_NAMES = ["-h", "--help"]
_REST = "Options"
_MANY = 30  # options of a verb, above which its help is short
_SHORT = (  # names of the options in a short help
    *("config", "preset", "model", "models", "device", "quantization", "chat_template", "max_model_len"),
    *("max_num_seqs", "host", "port", "api_key", "served_model_name", "temperature", "max_tokens", "system"),
    *("input_path", "output_path", "output", "settings", "servers", "rate", "rates", "concurrency", "duration"),
    *("input_tokens", "output_tokens", "trace", "slo", "hardware", "step_model", "html", "fast"),
)
_NEAR = 0.75  # similarity of a name that an unknown option may mean
_HELP = "inflight.help"  # key in click's context: titles of the groups to show; empty: the short help
WORDS = "inflight.words"  # key in click's context: the command line
_TYPED = "inflight.typed"  # key in click's context: options of the command line
_GROUPS = "option_groups"  # attribute of a verb's function: name of an option → title of its group


def stacked(*decorators: Decorator) -> Decorator:
    """Return one decorator that applies all, the first one outermost."""

    def decorate(function: Callable[..., Any]) -> Callable[..., Any]:
        for decorator in reversed(decorators):
            function = decorator(function)
        return function

    return decorate


def grouped(title: str, *decorators: Decorator) -> Decorator:
    """Show the options of all decorators under one title; those that are in a group already stay there."""

    def decorate(function: Callable[..., Any]) -> Callable[..., Any]:
        before = len(_parameters(function))
        function = stacked(*decorators)(function)
        groups: dict[str, str] = vars(function).setdefault(_GROUPS, {})
        for parameter in _parameters(function)[before:]:
            groups.setdefault(str(parameter.name), title)
        return function

    return decorate


def _parameters(function: Callable[..., Any]) -> list[click.Parameter]:
    """Return the parameters that decorators have added so far."""
    found: list[click.Parameter] = vars(function).get("__click_params__", [])
    return found


def groups_of(command: click.Command) -> dict[str, str]:
    """Return the titles of options' groups, by the options' names."""
    found: dict[str, str] = vars(command.callback).get(_GROUPS, {})
    return found


def variables_of(parameter: click.Parameter) -> list[str]:
    """Return the environment variables of an option: INFLIGHT_<LONG_NAME>, and others that are declared."""
    if not isinstance(parameter, click.Option) or parameter.hidden or not parameter.allow_from_autoenv:
        return []
    more = [parameter.envvar] if isinstance(parameter.envvar, str) else list(parameter.envvar or ())
    names = [name[2:].upper().replace("-", "_") for name in parameter.opts if name.startswith("--")]
    return list(dict.fromkeys((*more, *(f"INFLIGHT_{name}" for name in names))))


class _HelpOption(click.Option):
    """--help with an optional value."""


def _words_of(titles: Iterable[str]) -> dict[str, str]:
    """Return the title of each group by the word that stands for it."""
    return {title.partition(" ")[0].lower(): title for title in titles}


class Verb(click.Command):
    """A verb. An option comes from the command line, else the environment, else --config, else its default."""

    def __init__(self, *args: Any, **kwargs: Any):
        super().__init__(*args, **kwargs)
        for parameter in self.params:
            parameter.envvar = variables_of(parameter)

    def without_environment(self) -> click.Command:
        """Return the verb with options that no environment variable gives."""
        bare = copy.copy(self)
        bare.params = [copy.copy(parameter) for parameter in self.params]
        for parameter in bare.params:
            parameter.envvar = None
        return bare

    def parse_args(self, ctx: click.Context, args: list[str]) -> list[str]:
        ctx.meta[WORDS] = list(args)
        ctx.meta[_TYPED] = {word.partition("=")[0] for word in args}
        with _naming_variables(ctx):
            try:
                return super().parse_args(ctx, args)
            except click.NoSuchOption as error:
                names = [name for one in self.params for name in (*one.opts, *one.secondary_opts)]
                near = difflib.get_close_matches(error.option_name, names, 3, _NEAR)
                raise click.NoSuchOption(error.option_name, possibilities=near, ctx=error.ctx) from None

    def invoke(self, ctx: click.Context) -> Any:
        with _naming_variables(ctx):
            return super().invoke(ctx)

    def get_help_option_names(self, ctx: click.Context) -> list[str]:
        """Return the names in any context; click keeps the option of the first one, of a command line or not."""
        return HELP_NAMES

    def get_help_option(self, ctx: click.Context) -> click.Option | None:
        """Return --help, with the name of a group where there are many options."""
        found = super().get_help_option(ctx)
        if found is None or len(self.params) <= _MANY or isinstance(found, _HelpOption):
            return found
        self._help_option = _HelpOption(
            found.opts,
            is_flag=False,
            flag_value="",
            is_eager=True,
            expose_value=False,
            metavar="[GROUP]",
            callback=self._show_help,
            help="Show a short help; the options of a GROUP; or all.",
            shell_complete=self._complete_groups,
        )
        return self._help_option

    def format_options(self, ctx: click.Context, formatter: click.HelpFormatter) -> None:
        grouped = self._grouped(ctx)
        asked = ctx.meta.get(_HELP, tuple(grouped))
        for title in asked:
            with formatter.section(title):
                formatter.write_dl([record for _, record in grouped[title]])
        if not asked:
            of_all = [item for items in grouped.values() for item in items]
            with formatter.section("Options"):
                formatter.write_dl([record for name, record in of_all if name in _SHORT])
            counts = {word: f"{title}: {len(grouped[title])}" for word, title in _words_of(grouped).items()}
            with formatter.section(f"More, by `{ctx.command_path} --help GROUP` or `--help all`"):
                formatter.write_dl([*counts.items()])

    def _grouped(self, ctx: click.Context) -> dict[str, list[tuple[str, tuple[str, str]]]]:
        """Return names and help of all options by the titles of their groups."""
        groups = groups_of(self)
        shown: dict[str, list[tuple[str, tuple[str, str]]]] = {}
        for parameter in [*self.params, *filter(None, [self._help_option])]:
            record = parameter.get_help_record(ctx)
            if record is not None and isinstance(parameter, click.Option):
                shown.setdefault(groups.get(str(parameter.name), _REST), []).append((str(parameter.name), record))
        shown[_REST] = shown.pop(_REST, [])  # the last
        return shown

    def _complete_groups(self, ctx: click.Context, option: click.Parameter, begun: str) -> list[CompletionItem]:
        return [CompletionItem(word) for word in (*_words_of(self._grouped(ctx)), "all") if word.startswith(begun)]

    def _show_help(self, ctx: click.Context, option: click.Parameter, given: str | None) -> None:
        if given is None or ctx.resilient_parsing:
            return
        titles = _words_of(self._grouped(ctx))
        found = [title for word, title in titles.items() if given == "all" or word.startswith(given.lower() or "-")]
        if given and not found:
            raise click.UsageError(f"--help has no group {given!r}; there are all, {', '.join(titles)}.")
        ctx.meta[_HELP] = tuple(found)
        click.echo(ctx.get_help(), color=ctx.color)
        ctx.exit()


@contextmanager
def _naming_variables(ctx: click.Context) -> Iterator[None]:
    """Name options in errors as the command line does, and add the environment variables that they come from. An error
    that begins with an option or a value is of that, whatever found it, and has click's exit code for it."""
    try:
        yield
    except click.UsageError as error:
        sentence = error.format_message()
        named, note = _as_typed(ctx, sentence), _from_environment(ctx, sentence)
        if named == sentence and not note:
            raise
        raise click.UsageError(f"{named}{note if not note or named.endswith('.') else f'.{note}'}", ctx) from None
    except ValueError as error:
        if note := _from_environment(ctx, str(error)):
            error.add_note(note)
        if (named := _as_typed(ctx, str(error))) != str(error):
            error.args = (named,)
        begins = [rf"({'|'.join((*one.opts, str(one.name)))})(?![\w-])" for one in ctx.command.params]
        begins += [re.escape(repr(value)) for value in ctx.params.values() if value and isinstance(value, str)]
        if any(re.match(one, named) for one in begins):
            vars(error)["exit_code"] = click.UsageError.exit_code
        raise


def _as_typed(ctx: click.Context, sentence: str) -> str:
    """Return a sentence with those names of options that were typed, where these have several."""
    for one in ctx.command.params:
        typed = [name for name in one.opts if name in ctx.meta[_TYPED]]
        if typed and one.opts[0] not in typed:
            sentence = re.sub(rf"(?<![\w-]){one.opts[0]}(?![\w-])", typed[0], sentence)
    return sentence


def _from_environment(ctx: click.Context, sentence: str) -> str:
    notes = []
    for one in ctx.command.params:
        name = rf"(?<![\w-])({'|'.join(map(re.escape, one.opts))})(?![\w-])|^{one.name} "
        is_typed = not ctx.meta[_TYPED].isdisjoint((*one.opts, *one.secondary_opts))
        if one.envvar and not is_typed and re.search(name, sentence) and one.resolve_envvar_value(ctx) is not None:
            given = next(variable for variable in one.envvar if os.environ.get(variable))
            notes.append(f" {one.opts[0]} comes from the environment variable {given}.")
    return "".join(notes)
