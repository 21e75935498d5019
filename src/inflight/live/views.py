"""Reduce frames to a tenant's view: its own requests, and anonymous ones of other tenants.

Other tenants' requests keep their numbers, so that the picture is complete, and lose their names, prompts' lengths and
accounts.
"""

from __future__ import annotations

import msgspec

from inflight.live.frames import Ended, Frame, Hello, RequestInfo


def hello_for(hello: Hello, tenant: str) -> Hello:
    """Return a hello without settings and records, which only the operator may see."""
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
