"""Options of a server."""

from __future__ import annotations

from pathlib import Path

import click

from inflight.cli.declared import settings_options
from inflight.server.settings import ServerSettings

_FILE = click.Path(dir_okay=False, path_type=Path)

_models = click.option(
    "--models",
    type=click.Path(exists=True, dir_okay=False, path_type=Path),
    help="TOML file of several models behind this address, loaded when they are called; instead of MODEL.",
)
_keys = (
    click.option("--api-key", multiple=True, help="Key that clients must send; several times."),
    click.option("--api-keys-file", type=_FILE, help="TOML file of tenants, each with a key, a weight and limits."),
)
_log = (
    click.option("--log-format", type=click.Choice(["auto", "text", "json"]), default="auto", show_default=True),
    click.option(
        "--log-level",
        type=click.Choice(["debug", "info", "warning", "error"]),
        default="info",
        show_default=True,
        help="info has a line for every request.",
    ),
)
server_options = settings_options(
    ServerSettings, {"served_model_name": (_models,), "isolate_tenants": _keys, "otlp_traces_endpoint": _log}
)
