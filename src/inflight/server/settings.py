"""What a user may set about the server itself. Knows names, defaults and limits; the engine has settings of its own."""

from __future__ import annotations

import re
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Literal, get_args

from inflight.config.setting import SettingsError, option
from inflight.core.types.kv_transfer import KVExchangeOptions, Role, Way
from inflight.engine.kv_events import KVEventOptions
from inflight.server.common.values import UnknownFieldPolicy
from inflight.server.ingress.addresses import Networks, is_loopback

_ABOVE_ZERO = (
    *("max_n", "max_prompts", "max_streams", "request_timeout", "keep_alive", "max_body_mb", "body_budget_mb"),
    *("body_timeout", "upload_timeout", "header_timeout", "http_keep_alive", "max_connections"),
)
_ORIGIN = re.compile(r"https?://[^/?#@\s]+")
_OF_ROLES = (
    *("kv_transfer_host", "kv_transfer_port", "kv_transport", "kv_transfer_timeout", "kv_transfer_hold"),
    "kv_peer_secret_file",
)
_COLLECTOR = re.compile(r"https?://[^/?#\s]+(?<!:4317)(/\S*)?")
_HOST = re.compile(r"(\*\.)?[A-Za-z0-9_.:\[\]-]+")


@dataclass(frozen=True, slots=True, kw_only=True)
class ServerSettings:
    """Seconds, mebibytes, counts.

    api_processes: that run HTTP, preprocessing and streams.
    served_model_name: names by which requests may call the model, the first is the one in answers.
    max_n: most samples of one prompt. max_prompts: most prompts of one call. max_streams: most calls under way at once.
    request_timeout: a call that takes longer is ended. drain_timeout: what runs may go on so long after SIGTERM.
    keep_alive: an event stream that has said nothing for so long says that it is alive.
    isolate_tenants: cached prefixes and drafts are shared within a tenant only, so that neither `cached_tokens` nor
    timing reveals others' text. None: where there are several tenants.
    parse_control_tokens: what messages spell as a control token is one, as other servers have it.
    unknown_fields: of bodies: warn serves the request, and the answer's header and the log name them; ignore says
    nothing; refuse is a 400.
    tool_parser, reasoning_parser: of the model's answers: names, "none", or "auto" for what its template says.
    data_dir: where files and batch jobs are kept; without it there are none. batch_concurrency: lines of jobs under way
    at once (64). max_file_mb: most of an uploaded file (512). max_stored_mb, max_stored_files: what each tenant may
    keep (10,240; 10,000). store_responses: those of /v1/responses are stored there, and conversations go on from them;
    max_responses_mb: most of each tenant's (1,024), beyond which its oldest go. response_days: that each is kept (30).
    ui: the server shows its live page at /.
    lora_dir: the folder from which adapters may be loaded while the server runs.
    otlp_traces_endpoint: the collector's URL, to which spans of requests are sent; None: none are made.
    kv_events_config: where routers are told what the prefix cache holds; None: nowhere.
    role: keys and values of prompts are handed over to other engines, taken over, or both; None: neither. The others
    say how: kv_transfer_host, kv_transfer_port: where peers connect; kv_transport: the way; kv_transfer_timeout: of a
    pull; kv_transfer_hold: for which a prompt waits for who takes it. kv_peer_secret_file: the secret that peers share;
    None: it is in the environment.

    Of the ingress: max_body_mb: most of any body but an upload's. body_budget_mb: most of all those bodies in memory.
    body_timeout, upload_timeout: a body, an uploaded file must have come by then. header_timeout: a request's headers,
    once they have begun. http_keep_alive: an idle connection is closed after so long (keep_alive is of event streams).
    max_connections: open at once. max_connections_per_address: of one address, where half of them is the most that is
    sensible (None). trusted_proxies: addresses and networks whose X-Forwarded-For is believed. allowed_hosts: names by
    which the server may be called, besides those it knows of itself; without any, a server that others can reach is
    called by every name. cors_origin: origins whose pages may call it.
    ssl_certfile, ssl_keyfile, ssl_keyfile_password: TLS.
    """

    host: str = "127.0.0.1"
    port: int = 8000
    api_processes: int = 1
    served_model_name: tuple[str, ...] = ()
    max_n: int = 128
    max_prompts: int = 256
    max_streams: int = 2048
    max_body_mb: float = 8.0
    body_budget_mb: float = 32.0
    body_timeout: float = 30.0
    upload_timeout: float = 3600.0
    header_timeout: float = 20.0
    http_keep_alive: float = 75.0
    max_connections: int = 4096
    max_connections_per_address: int | None = None
    trusted_proxies: tuple[str, ...] = ()
    allowed_hosts: tuple[str, ...] = ()
    cors_origin: tuple[str, ...] = ()
    ssl_certfile: Path | None = None
    ssl_keyfile: Path | None = None
    ssl_keyfile_password: str | None = field(default=None, repr=False)
    request_timeout: float = 600.0
    drain_timeout: float = 30.0
    keep_alive: float = 10.0
    isolate_tenants: bool | None = None
    parse_control_tokens: bool = False
    unknown_fields: UnknownFieldPolicy = "warn"
    tool_parser: str = "auto"
    reasoning_parser: str = "auto"
    metrics_names: Literal["inflight", "vllm"] = "inflight"
    data_dir: Path | None = None
    batch_concurrency: int | None = None
    max_file_mb: float | None = None
    max_stored_mb: float | None = None
    max_stored_files: int | None = None
    store_responses: bool = False
    max_responses_mb: float | None = None
    response_days: float | None = None
    ui: bool = True
    lora_dir: Path | None = None
    otlp_traces_endpoint: str | None = None
    kv_events_config: KVEventOptions | None = None
    role: Role | None = None
    kv_transfer_host: str | None = None
    kv_transfer_port: int | None = None
    kv_transport: Way | None = None
    kv_transfer_timeout: float | None = None
    kv_transfer_hold: float | None = None
    kv_peer_secret_file: Path | None = None

    @property
    def kv_exchange(self) -> KVExchangeOptions | None:
        """None: with nobody."""
        if self.role is None:
            return None
        usual = KVExchangeOptions(role=self.role)
        return KVExchangeOptions(
            role=self.role,
            host=self.kv_transfer_host or usual.host,
            port=self.kv_transfer_port or usual.port,
            way=self.kv_transport or usual.way,
            timeout=self.kv_transfer_timeout or usual.timeout,
            hold=self.kv_transfer_hold or usual.hold,
        )

    def for_tenants(self, number: int) -> ServerSettings:
        """Return the settings in force for so many tenants."""
        return replace(self, isolate_tenants=number > 1) if self.isolate_tenants is None else self

    @property
    def is_loopback(self) -> bool:
        """Return whether only this machine can connect."""
        return is_loopback(self.host)

    def connections_of_one(self, connections: int) -> int:
        """Of one address, and so many requests under way of one that a proxy names. connections: of all."""
        return self.max_connections_per_address or max(1, connections // 2)

    def __post_init__(self) -> None:
        if not 0 <= self.port < 65536:
            raise SettingsError(f"--port is {self.port}; give a number from 1 to 65535, or 0 for a free one.")
        if not 1 <= self.api_processes <= 64:
            raise SettingsError(f"--api-processes is {self.api_processes}; give a number from 1 to 64.")
        for name in _ABOVE_ZERO:
            value = getattr(self, name)
            if not 0 < value < 2**31:
                raise SettingsError(f"{option(name)} is {value}; give a number above 0.")
        self._check_store()
        if not 0 <= self.drain_timeout < 2**31:
            raise SettingsError(f"--drain-timeout is {self.drain_timeout}; give seconds, 0 to end at once.")
        if self.metrics_names not in ("inflight", "vllm"):
            raise SettingsError(f"--metrics-names is {self.metrics_names!r}; known are inflight and vllm.")
        if self.unknown_fields not in get_args(UnknownFieldPolicy):
            raise SettingsError(f"--unknown-fields is {self.unknown_fields!r}; known are warn, ignore and refuse.")
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
        self._check_kv_exchange()
        self._check_ingress()

    def _check_kv_exchange(self) -> None:
        if self.role is None:
            given = (name for name in _OF_ROLES if getattr(self, name) is not None)
            if (name := next(given, None)) is not None:
                raise SettingsError(f"{option(name)} has no effect without --role.")
            return
        if self.role not in get_args(Role):
            raise SettingsError(f"--role is {self.role!r}; known are prefill, decode and both.")
        if self.kv_transport is not None and self.kv_transport not in get_args(Way):
            raise SettingsError(f"--kv-transport is {self.kv_transport!r}; known are auto, tcp, shm and nixl.")
        if self.kv_transfer_host in ("", "0.0.0.0", "::", "*"):
            raise SettingsError(
                f"--kv-transfer-host is {self.kv_transfer_host!r}, by which nobody can be called; give the address of "
                "this machine that peers reach."
            )
        if not 0 <= (self.kv_transfer_port or 0) < 65536:
            raise SettingsError(
                f"--kv-transfer-port is {self.kv_transfer_port}; give a number from 1 to 65535, or 0 for a free one."
            )
        for name in ("kv_transfer_timeout", "kv_transfer_hold"):
            value = getattr(self, name)
            if value is not None and not 0 < value <= 3600:
                raise SettingsError(f"{option(name)} is {value:g}; give seconds above 0, up to 3,600.")
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
            if value is not None and not 0 < value < 2**31:
                raise SettingsError(f"{option(name)} is {value}; give a number above 0.")

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
