"""Options of a server, and of how answers are read where there is none.

Knows names, types and help texts; what the values may be, `ServerSettings` knows.
"""

from __future__ import annotations

from pathlib import Path

import click

from inflight.cli.verb import grouped, stacked
from inflight.config.kv_events import read_kv_events

_PARSERS = (
    click.option(
        "--tool-parser",
        "--tool-call-parser",
        "tool_parser",
        default="auto",
        show_default=True,
        help="How the model writes calls of tools: a name, package.module:Class, none; auto: by template and family.",
    ),
    click.option(
        "--reasoning-parser",
        default="auto",
        show_default=True,
        help="How it marks its reasoning: a name, none; auto: by template and family.",
    ),
)

answer_options = grouped("Answers to OpenAI's lines", *_PARSERS)

server_options = stacked(
    grouped(
        "Server",
        click.option("--host", default="127.0.0.1", show_default=True, help="Address to listen on."),
        click.option(
            "--port", type=int, default=8000, show_default=True, help="Port to listen on; 0 takes a free one."
        ),
        click.option(
            "--api-processes",
            type=int,
            default=1,
            show_default=True,
            help="Processes for HTTP and streams, beside the engine's.",
        ),
        click.option(
            "--models",
            type=click.Path(exists=True, dir_okay=False, path_type=Path),
            help="TOML file of several models behind this address, loaded when they are called; instead of MODEL.",
        ),
        click.option("--served-model-name", multiple=True, help="Name of the model in requests; several times."),
        click.option(
            "--parse-control-tokens", is_flag=True, help="Let messages spell control tokens; without it they are text."
        ),
        click.option(
            "--unknown-fields",
            default="warn",
            show_default=True,
            help="Of bodies: warn serves the request and names them in a header and the log; ignore; refuse: a 400.",
        ),
        *_PARSERS,
        click.option(
            "--no-ui",
            "ui",
            is_flag=True,
            flag_value=False,
            default=True,
            help="No pages: none live at /, and no playground.",
        ),
        click.option("--metrics-names", default="inflight", show_default=True, help="inflight, or vllm for both."),
        click.option(
            "--kv-events-config",
            metavar="JSON",
            callback=lambda context, option, text: None if text is None else read_kv_events(text),
            help='Tell routers what is cached, as vLLM does: {"enable_kv_cache_events": true, ...}.',
        ),
    ),
    grouped(
        "Prefill and decode apart",
        click.option(
            "--role",
            help="prefill: hand the keys and values of prompts over to other engines; decode: take them over; both.",
        ),
        click.option(
            "--kv-transfer-host", help="Address by which peers reach a prefill engine; 127.0.0.1 if not given."
        ),
        click.option("--kv-transfer-port", type=int, help="Port at which peers connect; a free one if not given."),
        click.option(
            "--kv-transport", help="How blocks travel: tcp, shm (one host), nixl; auto: the best at both ends."
        ),
        click.option(
            "--kv-transfer-timeout", type=float, help="Seconds of a pull, after which the prompt is computed here: 30."
        ),
        click.option(
            "--kv-transfer-hold", type=float, help="Seconds for which a computed prompt waits for a peer: 60."
        ),
        click.option(
            "--kv-peer-secret-file",
            type=click.Path(dir_okay=False, path_type=Path),
            help="File with the secret that all peers share; or INFLIGHT_KV_PEER_SECRET.",
        ),
    ),
    grouped(
        "Keys and tenants",
        click.option(
            "--api-key", multiple=True, envvar="INFLIGHT_API_KEY", help="Key that clients must send; several times."
        ),
        click.option(
            "--api-keys-file",
            type=click.Path(dir_okay=False, path_type=Path),
            help="TOML file of tenants, each with a key, a weight and limits.",
        ),
        click.option(
            "--isolate-tenants/--share-prefixes",
            default=None,
            help="Share cached prefixes and drafts within a tenant only, or among all; isolated by itself where there "
            "are several tenants.",
        ),
    ),
    grouped(
        "Files and batch jobs",
        click.option(
            "--data-dir",
            type=click.Path(file_okay=False, path_type=Path),
            help="Folder of files, batch jobs and stored responses; without it there are none.",
        ),
        click.option(
            "--lora-dir",
            type=click.Path(path_type=Path),
            help="Folder from which an operator may load adapters while the server runs.",
        ),
        click.option("--batch-concurrency", type=int, help="Lines of batch jobs under way at once; 64 unless set."),
        click.option("--max-file-mb", type=float, help="Most MiB of an uploaded file; 512 unless set."),
        click.option("--max-stored-mb", type=float, help="Most MiB of files that a tenant keeps; 10240 unless set."),
        click.option("--max-stored-files", type=int, help="Most files that a tenant keeps; 10000 unless set."),
    ),
    grouped(
        "Stored responses",
        click.option(
            "--store-responses", is_flag=True, help="Store those of /v1/responses, in --data-dir; else none are."
        ),
        click.option(
            "--max-responses-mb", type=float, help="Most MiB that a tenant keeps; then its oldest go; 1024 unless set."
        ),
        click.option("--response-days", type=float, help="Days that a response is kept; 30 unless set."),
    ),
    grouped(
        "Limits of calls",
        click.option("--max-n", type=int, default=128, show_default=True, help="Most samples of one prompt."),
        click.option("--max-prompts", type=int, default=256, show_default=True, help="Most prompts of one call."),
        click.option("--max-streams", type=int, default=2048, show_default=True, help="Most calls under way at once."),
        click.option("--request-timeout", type=float, default=600, show_default=True, help="Most seconds of one call."),
        click.option(
            "--drain-timeout", type=float, default=30, show_default=True, help="Seconds to finish after SIGTERM."
        ),
        click.option("--keep-alive", type=float, default=10, show_default=True, help="Seconds between signs of life."),
    ),
    grouped(
        "Connections",
        click.option("--max-body-mb", type=float, default=8, show_default=True, help="Most MiB of any other body."),
        click.option(
            "--body-budget-mb", type=float, default=32, show_default=True, help="Most MiB of all bodies at once."
        ),
        click.option(
            "--body-timeout", type=float, default=30, show_default=True, help="Most seconds of a body's arrival."
        ),
        click.option(
            "--upload-timeout", type=float, default=3600, show_default=True, help="The same for uploaded files."
        ),
        click.option("--header-timeout", type=float, default=20, show_default=True, help="The same for headers."),
        click.option(
            "--http-keep-alive",
            type=float,
            default=75,
            show_default=True,
            help="Seconds that a connection may be idle.",
        ),
        click.option("--max-connections", type=int, default=4096, show_default=True, help="Most connections at once."),
        click.option("--max-connections-per-address", type=int, help="Most of one address; half of all unless set."),
        click.option(
            "--trusted-proxies",
            multiple=True,
            help="Address or network whose X-Forwarded-For is believed; several times.",
        ),
        click.option(
            "--allowed-hosts", multiple=True, help="Name by which the server may be called; several times, *.NAME too."
        ),
        click.option("--cors-origin", multiple=True, help="Origin whose pages may call the server; several times."),
        click.option(
            "--ssl-certfile",
            type=click.Path(dir_okay=False, path_type=Path),
            help="Certificate chain (PEM): serve TLS.",
        ),
        click.option(
            "--ssl-keyfile", type=click.Path(dir_okay=False, path_type=Path), help="Its key, if it is in another file."
        ),
        click.option("--ssl-keyfile-password", envvar="INFLIGHT_SSL_KEYFILE_PASSWORD", help="The key's password."),
    ),
    grouped(
        "Log and traces",
        click.option("--log-format", type=click.Choice(["auto", "text", "json"]), default="auto", show_default=True),
        click.option(
            "--log-level",
            type=click.Choice(["debug", "info", "warning", "error"]),
            default="info",
            show_default=True,
            help="info has a line for every request.",
        ),
        click.option(
            "--otlp-traces-endpoint",
            help="URL at which an OpenTelemetry collector takes spans of requests, by OTLP over HTTP.",
        ),
    ),
)
