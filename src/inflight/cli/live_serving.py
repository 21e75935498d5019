"""What the live page says of an engine beside its frames: capacity, and the settings in force with their reasons."""

from __future__ import annotations

from typing import TYPE_CHECKING

from inflight.live.frames import Hello, Setting

if TYPE_CHECKING:
    from inflight.build import Engine


def about_engine(engine: Engine, title: str, has_record: bool) -> Hello:
    capacity = engine.capacity
    return Hello(
        source="live",
        title=title,
        num_blocks=capacity.num_blocks,
        block_size=capacity.block_size,
        max_rows=capacity.max_rows,
        host_blocks=capacity.host_blocks,
        sees_all=True,
        has_record=has_record,
        settings=[Setting(name, text_of(entry.value), entry.reason) for name, entry in engine.settings.items()],
    )


def text_of(value: object) -> str:
    if isinstance(value, list | tuple):
        return ", ".join(map(str, value))
    return "" if value is None else str(value)
