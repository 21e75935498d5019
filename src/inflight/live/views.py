"""What a tenant may see of a frame: its own requests, and that there are others.

Knows names of tenants. What is another's keeps its number, so that the picture is whole, and loses everything that
tells who it is or what it asks.
"""

from __future__ import annotations

import msgspec

from inflight.live.frames import Ended, Frame, Hello, RequestInfo


def hello_for(hello: Hello, tenant: str) -> Hello:
    """Without settings and records, which are the operator's."""
    return msgspec.structs.replace(
        hello,
        sees_all=False,
        tenant=tenant,
        has_record=False,
        settings=[],
        requests=[info_for(one, tenant) for one in hello.requests],
    )


def frame_for(frame: Frame, tenant: str) -> Frame:
    return msgspec.structs.replace(
        frame,
        requests=[info_for(one, tenant) for one in frame.requests],
        ended=[ended_for(one, tenant) for one in frame.ended],
    )


def info_for(info: RequestInfo, tenant: str) -> RequestInfo:
    if info.tenant == tenant:
        return info
    return RequestInfo(info.number, lane=info.lane, arrival=info.arrival, mine=False)


def ended_for(ended: Ended, tenant: str) -> Ended:
    if ended.info.tenant == tenant:
        return ended
    return Ended(info_for(ended.info, tenant), "", ended.at)
