"""Make options of the command line from declared settings, and from options of strategies and routers."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import fields, replace
from functools import wraps
from pathlib import Path
from typing import TYPE_CHECKING, Any, TypeVar

import click
from click.shell_completion import CompletionItem

from inflight.cli.verb import Decorator, grouped, stacked
from inflight.config.setting import DeclaredSetting, Setting, SettingsError, check_settings, declared_settings, option
from inflight.core.options import Option

if TYPE_CHECKING:
    from _typeshed import DataclassInstance

Complete = Callable[[click.Context, click.Parameter, str], list[CompletionItem]]


Options = TypeVar("Options", bound="DataclassInstance")


def options_of(kind: type[Options], values: Mapping[str, Any]) -> Options:
    """Make a dataclass of those arguments of a verb that are its fields. Raises click.UsageError for a number outside
    its bounds; a class that checks itself raises SettingsError."""
    made = kind(**{item.name: values[item.name] for item in fields(kind)})
    try:
        check_settings(made)
    except SettingsError as error:
        raise click.UsageError(str(error)) from None
    return made


def takes(**kinds: type[DataclassInstance]) -> Decorator:
    """Give a verb the options of dataclasses of settings. It is called with an object of each, by these names, instead
    of their values."""
    names = {item.name for kind in kinds.values() for item in fields(kind)}

    def decorate(function: Callable[..., Any]) -> Callable[..., Any]:
        @wraps(function)
        def with_settings(*arguments: Any, **values: Any) -> Any:
            made = {name: options_of(kind, values) for name, kind in kinds.items()}
            others = {name: value for name, value in values.items() if name not in names}
            return function(*arguments, **others, **made)

        return stacked(*map(settings_options, kinds.values()))(with_settings)

    return decorate


class SettingOption(click.Option):
    """An option that an environment variable may give."""

    def resolve_envvar_value(self, ctx: click.Context) -> str | None:
        """Return the variable's text. Kubernetes sets NAME_PORT to tcp://ADDRESS:PORT for a Service of that name, which
        is no value of an option."""
        given = super().resolve_envvar_value(ctx)
        is_service = given is not None and str(self.name).endswith("port") and given.startswith(("tcp://", "udp://"))
        return None if is_service else given

    def value_from_envvar(self, ctx: click.Context) -> Any:
        """Return the variable's value; of a flag that sets False the opposite."""
        given = self.resolve_envvar_value(ctx)
        if given is None or self.flag_value is not False:
            return super().value_from_envvar(ctx)
        return not click.BOOL.convert(given, self, ctx)


def registry_options(options: Mapping[str, Option[Any]]) -> list[Decorator]:
    """Return options that the entries of a registry declare."""
    return [click.option(option(one.name), type=one.kind, help=one.help) for one in options.values()]


def settings_options(
    kind: type,
    before: Mapping[str, Sequence[Decorator]] | None = None,
    complete: Mapping[str, Complete] | None = None,
    only: Sequence[str] = (),
    group: str = "",
    unset: Sequence[str] = (),
) -> Decorator:
    """Return the options of a dataclass of settings, in their groups.

    Args:
        kind: the dataclass.
        before: other options, by the name of the setting that they precede and whose group they share.
        complete: completions of words in a shell, by names of settings.
        only: names of the settings to be options; all by default.
        group: title of all of them; by default those that the settings declare.
        unset: names of settings that are None unless given, whatever their default is.
    """
    groups: dict[str, list[Decorator]] = {}
    title = ""
    for one in declared_settings(kind):
        title = group or one.setting.group or title
        if only and one.name not in only:
            continue
        one = replace(one, default=None) if one.name in unset else one
        completion = (complete or {}).get(one.name)
        groups.setdefault(title, []).extend((*(before or {}).get(one.name, ()), setting_option(one, completion)))
    return stacked(*(grouped(title, *options) for title, options in groups.items()))


def setting_option(one: DeclaredSetting, complete: Complete | None = None) -> Decorator:
    declared = one.setting
    known: dict[str, Any] = {"help": declared.help, "metavar": declared.metavar, "is_eager": declared.is_early}
    known["hide_input"] = declared.is_secret
    if declared.variable is not None:
        known["envvar"] = declared.variable
    if declared.text is not None:
        known["callback"] = _reads(declared.text)
    flags = declared.flags or (option(one.name),)
    if one.kind is bool:
        known |= _of_flag(one.default, flags)
    else:
        known |= {"type": _type_of(one.kind, one.choices, declared), "shell_complete": complete or _completes(one)}
        if one.kind is tuple and one.parts[-1] is not Ellipsis:
            known |= {"type": _type_of(one.parts[0], (), declared), "nargs": len(one.parts)}
        elif one.kind is tuple or isinstance(one.default, Mapping):
            parts = one.parts if one.kind is tuple else (str,)
            known |= {"type": _type_of(parts[0], (), declared), "multiple": True}
        elif one.default is not None:
            is_round = isinstance(one.default, float) and one.default.is_integer()
            known |= {"default": int(one.default) if is_round else one.default, "show_default": True}
    return click.option(*flags, one.name, cls=SettingOption, **known)


def _of_flag(default: bool | None, flags: Sequence[str]) -> dict[str, Any]:
    if "/" in flags[0]:
        return {"default": default}
    return {"is_flag": True, "flag_value": False, "default": True} if default else {"is_flag": True}


def _type_of(kind: Any, choices: Sequence[str], declared: Setting) -> Any:
    if choices and declared.is_choice:
        return click.Choice(choices)
    if kind is Path or declared.path != "any":
        return click.Path(
            exists="present" in declared.path,
            dir_okay=not declared.path.endswith("file"),
            file_okay=not declared.path.endswith("folder"),
            path_type=Path if kind is Path else None,
        )
    return kind if kind in (int, float) else str


def _reads(text: Callable[[str], Any]) -> Callable[[click.Context, click.Parameter, str | None], Any]:
    return lambda context, parameter, word: None if word is None else text(word)


def _completes(one: DeclaredSetting) -> Complete | None:
    if not one.choices or one.setting.is_choice:
        return None
    return lambda context, parameter, begun: [CompletionItem(word) for word in one.choices if word.startswith(begun)]
