"""What a user may set about the server itself. Knows names, defaults and limits; the engine has settings of its own."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from typing import Literal

from inflight.config import SettingsError, option

LOOPBACK = ("127.0.0.1", "::1", "localhost")


@dataclass(frozen=True, slots=True, kw_only=True)
class ServerSettings:
    """Seconds, mebibytes, counts.

    served_model_name: names by which requests may call the model, the first is the one in answers.
    max_n: most samples of one prompt. max_prompts: most prompts of one call. max_streams: most calls under way at once.
    request_timeout: a call that takes longer is ended. drain_timeout: what runs may go on so long after SIGTERM.
    keep_alive: an event stream that has said nothing for so long says that it is alive.
    isolate_tenants: cached prefixes are shared within a tenant only, so that timing tells nobody of another's prompts.
    data_dir: where files and batch jobs are kept; without it there are none. batch_concurrency: lines of jobs under way
    at once (64). max_file_mb: most of an uploaded file (512). max_stored_mb, max_stored_files: what each tenant may
    keep (10,240; 10,000).
    """

    host: str = "127.0.0.1"
    port: int = 8000
    served_model_name: tuple[str, ...] = ()
    max_n: int = 128
    max_prompts: int = 256
    max_streams: int = 2048
    max_body_mb: float = 32.0
    request_timeout: float = 600.0
    drain_timeout: float = 30.0
    keep_alive: float = 10.0
    isolate_tenants: bool = False
    metrics_names: Literal["inflight", "vllm"] = "inflight"
    data_dir: Path | None = None
    batch_concurrency: int | None = None
    max_file_mb: float | None = None
    max_stored_mb: float | None = None
    max_stored_files: int | None = None

    def __post_init__(self) -> None:
        if not 0 <= self.port < 65536:
            raise SettingsError(f"--port is {self.port}; give a number from 1 to 65535, or 0 for a free one.")
        for name in ("max_n", "max_prompts", "max_streams", "max_body_mb", "request_timeout", "keep_alive"):
            value = getattr(self, name)
            if not 0 < value < 2**31:
                raise SettingsError(f"{option(name)} is {value}; give a number above 0.")
        for name in ("batch_concurrency", "max_file_mb", "max_stored_mb", "max_stored_files"):
            value = getattr(self, name)
            if value is not None and self.data_dir is None:
                raise SettingsError(f"{option(name)} has no effect without --data-dir, which says where jobs are kept.")
            if value is not None and not 0 < value < 2**31:
                raise SettingsError(f"{option(name)} is {value}; give a number above 0.")
        if not 0 <= self.drain_timeout < 2**31:
            raise SettingsError(f"--drain-timeout is {self.drain_timeout}; give seconds, 0 to end at once.")
        if self.metrics_names not in ("inflight", "vllm"):
            raise SettingsError(f"--metrics-names is {self.metrics_names!r}; known are inflight and vllm.")
        if any(not name for name in self.served_model_name):
            raise SettingsError("--served-model-name is empty; give a name, or leave it out.")
