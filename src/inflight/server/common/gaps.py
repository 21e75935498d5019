"""Prompts from which a model fills the gap between two texts."""

from __future__ import annotations

from collections.abc import Sequence

from inflight.server.common.conversation import Prompts
from inflight.server.errors import clients_fault, invalid
from inflight.text.fill_in_middle import ContextFile, FilledPrompt


def filled(
    prompts: Prompts,
    prefix: str,
    suffix: str,
    field: str,
    files: Sequence[ContextFile] = (),
    max_tokens: int | None = None,
) -> FilledPrompt:
    """Return a prompt from which the model fills the gap between two texts.

    Args:
        prompts: Of the model.
        prefix, suffix: The texts.
        field: That asks for it.
        files: Other files of the project, the most relevant last.
        max_tokens: To which it is cut; None: it is not.

    Raises:
        ApiError: 400, also where the model has no tokens for that.
    """
    fill = prompts.tokenizer.fill_in_middle
    if fill is None:
        raise invalid(
            "This model has no fill-in-the-middle tokens, so it continues text and fills no gaps; use one that has "
            f"them (Qwen2.5-Coder, StarCoder2, Codestral and others), or send a prompt without {field}.",
            field,
            "unsupported_task",
        )
    if max_tokens is None:
        prompts.check_length(prefix + suffix, "prompt", None)
    elif (longest := prompts.max_token_chars) is not None:
        most = max(1, max_tokens) * longest  # characters beyond that cannot be in the prompt
        prefix, suffix, files = prefix[-most:], suffix[:most], _last_files(files, most)
    return clients_fault(lambda: fill.prompt(prefix, suffix, files, max_tokens=max_tokens), field)


def fill_stop_token_ids(prompts: Prompts) -> tuple[int, ...]:
    """Return the tokens that end what fills a gap."""
    fill = prompts.tokenizer.fill_in_middle
    return () if fill is None else fill.stop_token_ids


def _last_files(files: Sequence[ContextFile], characters: int) -> Sequence[ContextFile]:
    """Return the last files that have no more characters together."""
    begin = len(files)
    while begin and (characters := characters - len(files[begin - 1].text)) >= 0:
        begin -= 1
    return files[begin:]
