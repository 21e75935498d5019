"""Render chat messages as prompt text by the model's chat template, after checking them."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from functools import cached_property
from typing import TYPE_CHECKING, Any, NamedTuple

from msgspec import Struct

from inflight.counted import cause_of
from inflight.models.gguf.gguf_model import GGUFModel
from inflight.text.chat_messages import (
    CONTINUATION_TAG,
    ContentForm,
    checked_messages,
    cut_at_tag,
    final_text,
    plain,
    to_be_continued,
)
from inflight.text.errors import ChatTemplateError, TemplateVariableError
from inflight.text.template_budget import RenderLimits
from inflight.text.tokenizer_config import FILE_NAME, read_tokenizer_config, special_tokens

if TYPE_CHECKING:
    from pathlib import Path

    import jinja2


class Conversation(Struct, frozen=True):
    """A conversation.

    Attributes:
        messages: `{"role": …, "content": …}` each, with further keys that the template reads. Content is a string or a
            list of `{"type": "text", "text": …}`; such parts are joined by newlines for templates that only take
            strings. It may be missing if there are `tool_calls`.
        variables: Further variables of the template, such as `documents` or `enable_thinking`. A client may choose any
            names, so they come as one mapping.
        tools: Descriptions of functions that the model may call.
        add_generation_prompt: End with the beginning of an assistant's message.
    continue_final_message: end with the last message's text instead, so that the model goes on with it.
    """

    messages: Sequence[Mapping[str, Any]]
    variables: Mapping[str, Any] | None = None
    tools: Sequence[Mapping[str, Any]] | None = None
    add_generation_prompt: bool = True
    continue_final_message: bool = False


_DEFAULT, _WITH_TOOLS = "default", "tool_use"
_RESERVED = ("messages", "tools", "add_generation_prompt")  # variables that have a place of their own


_LONGEST_SOURCE = 2**18  # characters; the longest that are published have a quarter of it
_LONGEST_CAUSE = 500  # characters of what goes wrong in a template


class CheckedChat(Struct, frozen=True):
    """A conversation in the form that a template takes, with plain JSON values only.

    Attributes:
        variables: The client's.
        continues: Whether the prompt ends where the last message ends.
    """

    template: str
    messages: list[dict[str, Any]]
    tools: Any
    variables: dict[str, Any]
    add_generation_prompt: bool
    continues: bool


class _Compiled(NamedTuple):
    template: jinja2.Template
    content_form: ContentForm
    looked_for: frozenset[str]
    changes_text: bool
    arguments_as_text: bool


class ChatTemplate:
    """A model's chat templates, by name; compiled at first use, safe to share between threads."""

    def __init__(
        self,
        source: str | Mapping[str, str] | None,
        special_tokens: Mapping[str, str | list[str]] | None = None,
        limits: RenderLimits = RenderLimits(),  # noqa: B008  (frozen)
        *,
        searched: str = "",
        option: str = "",
        variables: Mapping[str, Any] | None = None,
    ) -> None:
        """Store the sources.

        Args:
            source: One template, or several by name ("default", "tool_use", …); None: the model has none.
            special_tokens: Variables of the template, such as `bos_token`.
            limits: Of one rendering.
            searched: Names for errors where a template was searched; empty: a model's folder.
            option: Name of the option that gives the template; empty: the model has it.
            variables: Variables of the template, unless a conversation has others.
        """
        self._searched = searched or f"neither chat_template.jinja nor a chat_template in {FILE_NAME}"
        self._option, self._variables = option, dict(variables or {})
        self._limits = limits
        self._sources = {_DEFAULT: source} if isinstance(source, str) else dict(source or {})
        self._special_tokens = dict(special_tokens or {})
        self._compiled: dict[str, _Compiled] = {}

    @classmethod
    def load(cls, folder: Path | GGUFModel) -> ChatTemplate:
        """Read a model folder's templates: from `*.jinja` files, else from tokenizer_config.json.

        For a folder without one, `render` raises ChatTemplateError.

        Raises:
            TokenizerError: tokenizer_config.json cannot be read.
            ChatTemplateError: A template file cannot be read, or the setting has an unknown form.
        """
        config = read_tokenizer_config(folder)
        if isinstance(folder, GGUFModel):
            searched = f"the metadata of {folder.path.name} have no tokenizer.chat_template"
            return cls(_templates_in(config, folder.path), special_tokens(config), searched=searched)
        return cls(_template_files(folder) or _templates_in(config, folder / FILE_NAME), special_tokens(config))

    def of_other_source(self, source: str) -> ChatTemplate:
        """Make another template for the same model."""
        return ChatTemplate(source, self._special_tokens, self._limits)

    def with_options(self, source: str, variables: Mapping[str, Any]) -> ChatTemplate:
        """Return the template with other variables, and with the source of --chat-template, if there is one. Raises
        TemplateVariableError."""
        if not source and not variables:
            return self
        try:
            checked = _checked_variables(variables)
        except TemplateVariableError as error:
            raise TemplateVariableError(f"--chat-template-kwargs: {error}") from None
        option = "--chat-template" if source else ""
        sources = source or self._sources
        return ChatTemplate(
            sources, self._special_tokens, self._limits, searched=self._searched, option=option, variables=checked
        )

    @property
    def is_available(self) -> bool:
        """Whether the model has a chat template at all."""
        return bool(self._sources)

    @property
    def written(self) -> str:
        """The sources of all its templates."""
        return "\n".join(self._sources.values())

    def looked_for(self) -> frozenset[str]:
        """Return strings that the templates search messages for, such as `</think>`. Raises ChatTemplateError."""
        return frozenset().union(*(self._compile(name).looked_for for name in self._sources))

    def changes_text(self) -> bool:
        """Return whether the templates may remove or change parts of a text, such as `/no_think`. Raises
        ChatTemplateError."""
        return any(self._compile(name).changes_text for name in self._sources)

    def takes_arguments_as_text(self, has_tools: bool) -> bool:
        """Return whether arguments of tool calls are written unchanged, and so must be JSON text, not objects.

        Args:
            has_tools: Whether the conversation has tools.

        Raises:
            ChatTemplateError: The template cannot be compiled.
        """
        return self._compile(self._choose(has_tools)).arguments_as_text

    def knows_tools(self) -> bool:
        """Return whether one of the templates writes tools into the prompt."""
        return _WITH_TOOLS in self._sources or "tools" in self.written

    @cached_property
    def shows_system(self) -> bool:
        """Whether the template writes system messages into the prompt; some leave them out or refuse them."""
        messages = [{"role": "system", "content": CONTINUATION_TAG}, {"role": "user", "content": "Hello"}]
        try:
            return CONTINUATION_TAG.strip() in self.render(Conversation(messages))
        except ChatTemplateError:
            return False

    def render(self, conversation: Conversation) -> str:
        """Write a conversation as one prompt text, to be encoded without adding special tokens.

        Raises:
            TemplateVariableError: A variable's name is reserved, or its value is no JSON.
            ChatTemplateError: The model has no template, the messages have a wrong form, or the template fails.
        """
        return self.write(self.check(conversation))

    def check(self, conversation: Conversation) -> CheckedChat:
        """Check a conversation: the first half of `render`, with its errors."""
        if conversation.continue_final_message and conversation.add_generation_prompt:
            raise ChatTemplateError(
                "continue_final_message and add_generation_prompt are both set, but a prompt cannot end in the last "
                "message and in the beginning of another; set add_generation_prompt to false."
            )
        name = self._choose(has_tools=bool(conversation.tools))
        try:
            return CheckedChat(
                name,
                checked_messages(conversation.messages, self._compile(name).content_form),
                plain(conversation.tools, "tools"),
                {**self._variables, **_checked_variables(conversation.variables or {})},
                conversation.add_generation_prompt,
                conversation.continue_final_message,
            )
        except RecursionError:
            raise ChatTemplateError("The messages are nested too deeply; send them flatter.") from None

    def write(self, chat: CheckedChat) -> str:
        """Run the template: the second half of `render`, with its errors."""
        messages = to_be_continued(chat.messages) if chat.continues else chat.messages
        context = {
            "documents": None,
            **self._special_tokens,
            **chat.variables,
            "messages": messages,
            "tools": chat.tools,
            "add_generation_prompt": chat.add_generation_prompt,
        }
        try:
            text = self._run(chat.template, context)
        except ChatTemplateError:
            raise
        except Exception as error:  # a template is a program: it may fail in any way
            raise ChatTemplateError(
                f"The model's chat template fails on these {len(messages)} messages ({type(error).__name__}: "
                f"{str(error)[:_LONGEST_CAUSE]}); check the roles and fields it expects, or give the prompt as text."
            ) from error
        return cut_at_tag(final_text(chat.messages), text) if chat.continues else text

    def compile(self) -> None:
        """Compile all templates now. Raises ChatTemplateError for a faulty one."""
        for name in self._sources:
            self._compile(name)

    def _run(self, name: str, context: Mapping[str, Any]) -> str:
        from .sandbox import render

        return render(self._compile(name).template, context, self._limits)

    def _choose(self, has_tools: bool) -> str:
        if not self._sources:
            raise ChatTemplateError(
                f"This model has no chat template ({self._searched}), so it takes no messages; give the prompt as "
                "text, or a template with --chat-template."
            )
        if has_tools and _WITH_TOOLS in self._sources:
            return _WITH_TOOLS
        if _DEFAULT not in self._sources:
            raise ChatTemplateError(
                f"This model's chat templates are named {', '.join(sorted(self._sources))}, and none of these is "
                f"{_DEFAULT!r}; name one so in {FILE_NAME}, or give the prompt as text."
            )
        return _DEFAULT

    def _compile(self, name: str) -> _Compiled:
        if name not in self._compiled:
            from jinja2 import TemplateSyntaxError  # here, because it takes longer to import than all of this package

            from inflight.text.sandbox import chat_environment
            from inflight.text.template_reading import (
                changes_text,
                content_form,
                strings_looked_for,
                takes_arguments_as_text,
            )

            environment, source = chat_environment(), self._sources[name]
            if len(source) > _LONGEST_SOURCE:
                raise ChatTemplateError(
                    f"{self._title(name)} has {len(source):,} characters, and at most {_LONGEST_SOURCE:,} are "
                    f"compiled; {self._correct}."
                )
            try:
                tree = environment.parse(source)
                read = (
                    content_form(tree),
                    strings_looked_for(tree),
                    changes_text(tree),
                    takes_arguments_as_text(tree),
                )
                self._compiled[name] = _Compiled(environment.from_string(tree), *read)  # which rewrites the tree
            except TemplateSyntaxError as error:
                raise ChatTemplateError(
                    f"{self._title(name)} has an error in line {error.lineno}: {error.message}; {self._correct}."
                ) from error
            except (RecursionError, MemoryError, SyntaxError, ValueError) as error:  # of Python's own compiler, too
                raise ChatTemplateError(
                    f"{self._title(name)} cannot be compiled ({type(error).__name__}: it is nested too deeply, or no "
                    f"program); {self._correct}."
                ) from error
        return self._compiled[name]

    def _title(self, name: str) -> str:
        return self._option or f"The model's chat template {name!r}"

    @property
    def _correct(self) -> str:
        """Return the next step after an error of the source."""
        return "correct it" if self._option else "correct it in the model's folder, or give the prompt as text"


def _template_files(folder: Path) -> dict[str, str]:
    """Read `chat_template.jinja`, the default one, and `additional_chat_templates/NAME.jinja`."""
    paths = {path.stem: path for path in sorted((folder / "additional_chat_templates").glob("*.jinja"))}
    if (default := folder / "chat_template.jinja").is_file():
        paths[_DEFAULT] = default
    sources: dict[str, str] = {}
    for name, path in paths.items():
        try:
            with path.open(encoding="utf-8") as file:
                sources[name] = file.read(
                    _LONGEST_SOURCE + 1
                )  # one more: compiling it then reports that it is too long
        except (OSError, UnicodeDecodeError) as error:
            raise ChatTemplateError(
                f"{path} cannot be read: {cause_of(error)}; check the file and its permissions."
            ) from error
    return sources


def _templates_in(config: Mapping[str, Any], path: Path) -> dict[str, str]:
    """Read the `chat_template` setting: one template, a list of `{"name", "template"}`, or none."""
    setting = config.get("chat_template")
    if setting is None:
        return {}
    if isinstance(setting, str):
        return {_DEFAULT: setting}
    try:
        return {str(entry["name"]): str(entry["template"]) for entry in setting}
    except (TypeError, KeyError) as error:
        raise ChatTemplateError(
            f"chat_template in {path} is neither a string nor a list of objects with name and template; "
            "correct it there, or put the template into chat_template.jinja beside it."
        ) from error


def _checked_variables(variables: Mapping[str, Any]) -> dict[str, Any]:
    """Copy the variables. Raises TemplateVariableError for a reserved name or a value that is no JSON."""
    if taken := [name for name in _RESERVED if name in variables]:
        raise TemplateVariableError(
            f"The template variables may not name {', '.join(taken)}: {', '.join(_RESERVED)} have places of their own; "
            "leave these names out of the variables."
        )
    try:
        return {str(name): plain(value, f"template variables.{name}") for name, value in variables.items()}
    except ChatTemplateError as error:
        raise TemplateVariableError(str(error)) from None
