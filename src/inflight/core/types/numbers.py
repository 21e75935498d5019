"""Types of numbers in records and messages, with limits: a damaged number leaves no float and asks for no memory."""

from __future__ import annotations

from typing import Annotated

from msgspec import Meta

Count = Annotated[int, Meta(ge=0, le=2**53)]
Positive = Annotated[int, Meta(ge=1, le=2**53)]
Amount = Annotated[float, Meta(ge=0, le=1e18)]
Seconds = Annotated[float, Meta(ge=0, le=1e12)]
Time = Annotated[float, Meta(ge=-1e12, le=1e12)]  # on a clock that began anywhere
TransferId = Annotated[int, Meta(ge=-(2**53), le=2**53)]  # from 1 up; of masks that draws wait for from -1 down
# Limits of an engine. A scheduler keeps a list entry for each block, row and slot.
Blocks = Annotated[int, Meta(ge=0, le=1 << 24)]
Rows = Annotated[int, Meta(ge=1, le=1 << 20)]
Slots = Annotated[int, Meta(ge=0, le=1 << 20)]
Windows = Annotated[tuple[Annotated[int, Meta(ge=0)], ...], Meta(min_length=1, max_length=64)]
