"""Settings of the server itself; the engine and scheduling have settings of their own."""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import dataclass, replace
from functools import partial
from pathlib import Path
from typing import Any, Literal

from inflight.config.kv_events import read_kv_events
from inflight.config.parsers import ParserSettings
from inflight.config.setting import Bound, SettingsError, check_settings, option, read_json_object, setting
from inflight.core.types.kv_transfer import KVTransferOptions, Role, Transport
from inflight.core.types.sampling import InvalidSampling, SamplingParams
from inflight.engine.kv_events import KVEventOptions
from inflight.frontend.defaults import overridden
from inflight.server.common.bodies import UnknownFieldPolicy
from inflight.server.ingress.addresses import Networks, is_loopback

_ORIGIN = re.compile(r"https?://[^/?#@\s]+")
_OF_ROLES = (
    *("kv_transfer_host", "kv_transfer_port", "kv_transport", "kv_transfer_timeout", "kv_transfer_hold"),
    "kv_peer_secret_file",
)
_POSITIVE = Bound(0, 2**31, "a number above 0", above=True, below=True)
_TRANSFER_SECONDS = Bound(0, 3600, "seconds above 0, up to 3,600", above=True)
_COLLECTOR = re.compile(r"https?://[^/?#\s]+(?<!:4317)(/\S*)?")
_ROOT_PATH = re.compile(r"(/[A-Za-z0-9._~-]+)*")
_HOST = re.compile(r"(\*\.)?[A-Za-z0-9_.:\[\]-]+")


@dataclass(frozen=True, slots=True, kw_only=True)
class ServerSettings(ParserSettings):
    """Settings of the server; None: not set."""

    host: str = setting("127.0.0.1", "Address to listen on.", "Server")
    port: int = setting(
        8000,
        "Port to listen on; 0 takes a free one.",
        bound=Bound(0, 65535, "a number from 1 to 65535, or 0 for a free one"),
    )
    uds: Path | None = setting(
        None, "Unix socket to listen on, for its owner and group, instead of --host and --port.", metavar="PATH"
    )
    root_path: str = setting(
        "", "Path under which a proxy shows the server, such as /llm; requests may have it or not.", metavar="PATH"
    )
    api_processes: int = setting(
        1, "Processes for HTTP and streams, beside the engine's.", bound=Bound(1, 64, "a number from 1 to 64")
    )
    served_model_name: tuple[str, ...] = setting(
        (), "Name of the model in requests, the first in answers; several times."
    )
    generation_config: str = setting(
        "auto",
        "Sampling settings of requests that name none: auto: of the model's files; vllm: of neither; or a folder with "
        "generation_config.json.",
        metavar="FROM",
    )
    override_generation_config: Mapping[str, Any] | None = setting(
        None,
        'Some of them, such as {"temperature": 0.5}.',
        metavar="JSON",
        text=partial(read_json_object, "--override-generation-config"),
    )
    parse_control_tokens: bool = setting(False, "Let messages contain control tokens; without it they are plain text.")
    unknown_fields: UnknownFieldPolicy = setting(
        "warn",
        "Unknown fields of bodies: warn (serve, and name them in a header and the log), ignore, or refuse (400).",
    )
    ui: bool = setting(True, "Serve no live page at / and no playground.", flags=("--no-ui",))
    metrics_names: Literal["inflight", "vllm"] = setting("inflight", "Names on /metrics: inflight, or vllm for both.")
    kv_events_config: KVEventOptions | None = setting(
        None,
        'Publish KV cache events for routers, as vLLM does: {"enable_kv_cache_events": true, ...}.',
        metavar="JSON",
        text=read_kv_events,
    )
    role: Role | None = setting(
        None,
        "prefill: send the keys and values of prompts to other engines; decode: receive them; both.",
        "Disaggregated prefill and decode",
    )
    kv_transfer_host: str | None = setting(
        None, "Address by which peers reach a prefill engine; 127.0.0.1 if not given."
    )
    kv_transfer_port: int | None = setting(
        None,
        "Port at which peers connect; a free one if not given.",
        bound=Bound(0, 65535, "a number from 1 to 65535, or 0 for a free one"),
    )
    kv_transport: Transport | None = setting(
        None, "Transport of blocks: tcp or nixl; auto: NIXL where both ends have it, else tcp."
    )
    kv_transfer_timeout: float | None = setting(
        None, "Seconds of a pull, after which the prompt is computed here: 30.", bound=_TRANSFER_SECONDS
    )
    kv_transfer_hold: float | None = setting(
        None, "Seconds for which a computed prompt waits for a peer: 60.", bound=_TRANSFER_SECONDS
    )
    kv_peer_secret_file: Path | None = setting(
        None, "File with the secret that all peers share; or INFLIGHT_KV_PEER_SECRET.", path="file"
    )
    isolate_tenants: bool | None = setting(
        None,
        "Share cached prefixes and drafts within a tenant only, or among all; isolated by itself where there are "
        "several tenants.",
        "Keys and tenants",
        flags=("--isolate-tenants/--share-prefixes",),
    )
    data_dir: Path | None = setting(
        None,
        "Folder of files, batch jobs and stored responses; without it there are none.",
        "Files and batch jobs",
        path="folder",
    )
    lora_dir: Path | None = setting(None, "Folder from which an operator may load adapters while the server runs.")
    batch_concurrency: int | None = setting(
        None, "Maximum lines of batch jobs in flight; 64 unless set.", bound=_POSITIVE
    )
    max_file_mb: float | None = setting(None, "Maximum MiB of an uploaded file; 512 unless set.", bound=_POSITIVE)
    max_stored_mb: float | None = setting(
        None, "Maximum MiB of files that a tenant stores; 10240 unless set.", bound=_POSITIVE
    )
    max_stored_files: int | None = setting(
        None, "Maximum files that a tenant stores; 10000 unless set.", bound=_POSITIVE
    )
    store_responses: bool = setting(False, "Store responses of /v1/responses in --data-dir.", "Stored responses")
    max_responses_mb: float | None = setting(
        None, "Maximum MiB of responses of a tenant, the oldest are deleted; 1024 unless set.", bound=_POSITIVE
    )
    response_days: float | None = setting(None, "Days for which a response is stored; 30 unless set.", bound=_POSITIVE)
    max_n: int = setting(128, "Maximum samples of one prompt.", "Limits of calls", bound=_POSITIVE)
    max_prompts: int = setting(256, "Maximum prompts of one call.", bound=_POSITIVE)
    max_streams: int = setting(2048, "Maximum calls in flight.", bound=_POSITIVE)
    request_timeout: float = setting(600.0, "Maximum seconds of one call.", bound=_POSITIVE)
    drain_timeout: float = setting(
        30.0,
        "Seconds to finish after SIGTERM.",
        bound=Bound(0, 2**31, "seconds, 0 to end at once", below=True),
    )
    keep_alive: float = setting(10.0, "Seconds between comments on a silent event stream.", bound=_POSITIVE)
    max_body_mb: float = setting(8.0, "Maximum MiB of any body but an upload's.", "Connections", bound=_POSITIVE)
    body_budget_mb: float = setting(32.0, "Maximum MiB of all bodies in memory.", bound=_POSITIVE)
    body_timeout: float = setting(30.0, "Maximum seconds until a body has arrived.", bound=_POSITIVE)
    upload_timeout: float = setting(3600.0, "The same for uploaded files.", bound=_POSITIVE)
    header_timeout: float = setting(20.0, "The same for headers, from their first byte.", bound=_POSITIVE)
    http_keep_alive: float = setting(75.0, "Seconds that a connection may be idle.", bound=_POSITIVE)
    max_connections: int = setting(4096, "Maximum open connections.", bound=_POSITIVE)
    max_connections_per_address: int | None = setting(None, "Maximum of one address; half of all unless set.")
    trusted_proxies: tuple[str, ...] = setting(
        (), "Address or network whose X-Forwarded-For is believed; several times."
    )
    allowed_hosts: tuple[str, ...] = setting((), "Host name of requests that are allowed; several times, *.NAME too.")
    cors_origin: tuple[str, ...] = setting((), "Origin of web pages that may call the server; several times.")
    ssl_certfile: Path | None = setting(None, "Certificate chain (PEM): serve TLS.", path="file")
    ssl_keyfile: Path | None = setting(None, "Its key, if it is in another file.", path="file")
    ssl_keyfile_password: str | None = setting(None, "The key's password.", is_secret=True)
    otlp_traces_endpoint: str | None = setting(
        None,
        "URL at which an OpenTelemetry collector takes spans of requests, by OTLP over HTTP.",
        "Log and traces",
    )

    @property
    def kv_transfer(self) -> KVTransferOptions | None:
        """Options of KV transfer with peers; None: it is off."""
        if self.role is None:
            return None
        usual = KVTransferOptions(role=self.role)
        return KVTransferOptions(
            role=self.role,
            host=self.kv_transfer_host or usual.host,
            port=self.kv_transfer_port or usual.port,
            transport=self.kv_transport or usual.transport,
            timeout=self.kv_transfer_timeout or usual.timeout,
            hold=self.kv_transfer_hold or usual.hold,
        )

    def for_tenants(self, number: int) -> ServerSettings:
        """Return the settings in force for so many tenants."""
        return replace(self, isolate_tenants=number > 1) if self.isolate_tenants is None else self

    @property
    def is_loopback(self) -> bool:
        """Return whether only this machine can connect."""
        return self.uds is not None or is_loopback(self.host)

    def connections_of_one(self, connections: int) -> int:
        """Return the maximum of one address. connections: of all. Clients of a Unix socket have no address."""
        return self.max_connections_per_address or max(1, connections if self.uds else connections // 2)

    def __post_init__(self) -> None:
        ParserSettings.__post_init__(self)
        check_settings(self)
        self._check_store()
        if any(not name for name in self.served_model_name):
            raise SettingsError("--served-model-name is empty; give a name, or leave it out.")
        if self.lora_dir is not None and not self.lora_dir.is_dir():
            raise SettingsError(f"--lora-dir is {self.lora_dir}, which is no folder; give one that holds adapters.")
        endpoint = self.otlp_traces_endpoint
        if endpoint is not None and not _COLLECTOR.fullmatch(endpoint):
            raise SettingsError(
                f"--otlp-traces-endpoint is {endpoint!r}; give the URL at which the collector takes OTLP over HTTP, "
                "such as http://localhost:4318/v1/traces (gRPC, at port 4317, is not spoken)."
            )
        self._check_kv_transfer()
        self._check_ingress()
        self._check_generation()

    def _check_generation(self) -> None:
        try:
            overridden(SamplingParams(), self.override_generation_config or {})
        except InvalidSampling as error:
            raise SettingsError(f"--override-generation-config: {error}") from None
        folder = self.generation_config
        if folder not in ("auto", "vllm") and not (Path(folder).expanduser() / "generation_config.json").is_file():
            raise SettingsError(
                f"--generation-config is {folder!r}; give auto, vllm, or a folder that holds generation_config.json."
            )

    def _check_kv_transfer(self) -> None:
        if self.role is None:
            given = (name for name in _OF_ROLES if getattr(self, name) is not None)
            if (name := next(given, None)) is not None:
                raise SettingsError(f"{option(name)} has no effect without --role.")
            return
        if self.kv_transfer_host in ("", "0.0.0.0", "::", "*"):
            raise SettingsError(
                f"--kv-transfer-host is {self.kv_transfer_host!r}, which is no address of one machine; give the "
                "address of this machine that peers reach."
            )
        if self.role == "decode":
            for name in ("kv_transfer_host", "kv_transfer_port", "kv_transfer_hold"):
                if getattr(self, name) is not None:
                    raise SettingsError(f"{option(name)} has no effect with --role decode, to which no peer connects.")

    def _check_store(self) -> None:
        if self.store_responses and self.data_dir is None:
            raise SettingsError("--store-responses needs --data-dir, which says where responses are stored.")
        of_jobs = ("batch_concurrency", "max_file_mb", "max_stored_mb", "max_stored_files")
        for name in (*of_jobs, "max_responses_mb", "response_days"):
            value = getattr(self, name)
            if value is not None and name in of_jobs and self.data_dir is None:
                raise SettingsError(f"{option(name)} has no effect without --data-dir, which says where jobs are kept.")
            if value is not None and name not in of_jobs and not self.store_responses:
                raise SettingsError(f"{option(name)} has no effect without --store-responses.")

    def _check_ingress(self) -> None:
        own = self.max_connections_per_address
        if own is not None and not 0 < own <= self.max_connections:
            raise SettingsError(
                f"--max-connections-per-address is {own}; give a number from 1 to --max-connections "
                f"({self.max_connections})."
            )
        if self.body_budget_mb < self.max_body_mb:
            raise SettingsError(
                f"--body-budget-mb is {self.body_budget_mb:g} and --max-body-mb {self.max_body_mb:g}: the largest body "
                "would never fit; raise the budget or lower the other."
            )
        Networks(self.trusted_proxies)
        if not _ROOT_PATH.fullmatch(self.root_path):
            raise SettingsError(f"--root-path is {self.root_path!r}; give a path without a slash at its end, as /llm.")
        for origin in self.cors_origin:
            if origin != "*" and not _ORIGIN.fullmatch(origin):
                raise SettingsError(
                    f"--cors-origin is {origin!r}; give scheme, host and port as browsers do, such as "
                    "https://chat.example.com or http://localhost:3000, or * for every page."
                )
        for host in self.allowed_hosts:
            if host != "*" and not _HOST.fullmatch(host):
                raise SettingsError(
                    f"--allowed-hosts is {host!r}; give a name without scheme and port, such as llm.example.com or "
                    "*.example.com, or * for any."
                )
        if self.ssl_certfile is None and (self.ssl_keyfile is not None or self.ssl_keyfile_password is not None):
            given = "--ssl-keyfile" if self.ssl_keyfile is not None else "--ssl-keyfile-password"
            raise SettingsError(
                f"{given} has no effect without --ssl-certfile, the certificate that clients are shown."
            )
