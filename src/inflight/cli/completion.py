"""`inflight completion`: the script by which a shell completes this command."""

from __future__ import annotations

import click
from click.shell_completion import get_completion_class

from inflight.cli.verb import Verb


@click.command("completion", cls=Verb)
@click.argument("shell", type=click.Choice(("bash", "zsh", "fish")))
def command(shell: str) -> int:
    """Print the script by which SHELL completes verbs, options, their known values and names of models.

    \b
    inflight completion bash > ~/.local/share/bash-completion/completions/inflight
    inflight completion zsh > "${fpath[1]}/_inflight"
    inflight completion fish > ~/.config/fish/completions/inflight.fish
    """
    from inflight.cli import app

    found = get_completion_class(shell)
    assert found is not None, "one of the choices"
    click.echo(found(app, {}, "inflight", "_INFLIGHT_COMPLETE").source())
    return 0
