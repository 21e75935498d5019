"""Formats in which a call's arguments stand between marks one by one, as text: which marks each has, as data.

Knows Qwen3-Coder's, Seed-OSS', MiniMax' and GLM's; not how they are read, or forced.
"""

from __future__ import annotations

from msgspec import Struct


class Dialect(Struct, frozen=True):
    """opens, closes: around calls. call, name_ends, call_end: around one and its name, of whose ends the first is
    written. parameter, key_end, value, value_end: around a parameter, its name and its value. edge: what is written
    around a value within its marks; a newline there is no part of it in any dialect. around_all: one pair of marks
    stands around all calls of an answer."""

    opens: str
    closes: str
    call: str
    name_ends: tuple[str, ...]
    call_end: str
    parameter: str
    key_end: str
    value: str
    value_end: str
    edge: str = ""
    around_all: bool = False


QWEN3_CODER = Dialect(
    opens="<tool_call>",
    closes="</tool_call>",
    call="<function=",
    name_ends=(">",),
    call_end="</function>",
    parameter="<parameter=",
    key_end=">",
    value="",
    value_end="</parameter>",
    edge="\n",
)
SEED_OSS = Dialect(
    opens="<seed:tool_call>",
    closes="</seed:tool_call>",
    call="<function=",
    name_ends=(">",),
    call_end="</function>",
    parameter="<parameter=",
    key_end=">",
    value="",
    value_end="</parameter>",
)
MINIMAX_M2 = Dialect(
    opens="<minimax:tool_call>",
    closes="</minimax:tool_call>",
    call='<invoke name="',
    name_ends=('">',),
    call_end="</invoke>",
    parameter='<parameter name="',
    key_end='">',
    value="",
    value_end="</parameter>",
    around_all=True,
)
GLM45 = Dialect(
    opens="<tool_call>",
    closes="</tool_call>",
    call="",
    name_ends=("\n", "<arg_key>", "</tool_call>"),
    call_end="",
    parameter="<arg_key>",
    key_end="</arg_key>",
    value="<arg_value>",
    value_end="</arg_value>",
)
