"""`inflight serve`: the OpenAI-compatible server."""

from __future__ import annotations

import time
from dataclasses import fields
from typing import Any

import click

from inflight.cli.options import (
    engine_options,
    engine_settings,
    record_option,
    scheduling_options,
    scheduling_settings,
    server_options,
)
from inflight.cli.verb import Verb
from inflight.server.settings import ServerSettings

DEFAULTS = {"admission": "auto"}  # where clients come as they like, what waits must be bounded


@click.command("serve", cls=Verb, context_settings={"default_map": DEFAULTS})
@click.argument("name", metavar="[MODEL]", required=False)
@engine_options
@scheduling_options
@server_options
@record_option
@click.option("--verbose", is_flag=True, help="Show every setting in force, with its reason.")
def command(name: str | None, **values: Any) -> int:
    """Serve MODEL (a folder or a hub id; without it the built-in model) to OpenAI's clients, on 127.0.0.1:8000."""
    started = time.monotonic()
    if name is not None and values["model"] is not None:
        raise click.UsageError(f"MODEL {name!r} and --model {values['model']!r} both say what to serve; give one.")
    values["model"] = name if name is not None else values["model"]
    record, verbose = values.pop("record"), values.pop("verbose")
    api_keys, keys_file = values.pop("api_key"), values.pop("api_keys_file")
    given = {item.name: values.pop(item.name) for item in fields(ServerSettings)}
    settings = ServerSettings(**given)
    engine, scheduling = engine_settings(values), scheduling_settings(values)

    # Loaded only now, so that a mistake above is told at once. The process that reads bodies is started first: it takes
    # as long as the web's modules and the model's, and loads beside them.
    from inflight.server.preprocessing.pool import PreprocessingPool
    from inflight.server.tenants import load_tenants

    tenants = load_tenants(api_keys, keys_file)
    preprocessing = None if settings.api_processes else PreprocessingPool()
    from inflight.cli.serving import serve

    return serve(
        settings,
        engine,
        scheduling,
        tenants,
        preprocessing,
        record=record,
        verbose=verbose,
        started=started,
        **values,
    )
