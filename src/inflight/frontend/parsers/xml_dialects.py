"""Define the marks of formats with one pair of marks for each argument: Qwen3-Coder, Seed-OSS, MiniMax, GLM."""

from __future__ import annotations

from msgspec import Struct


class Dialect(Struct, frozen=True):
    """The marks of one format.

    Attributes:
        opens: Before calls.
        closes: After calls.
        call: Before one call.
        name_ends: After a call's name; the first one is forced.
        call_end: After one call.
        parameter: Before a parameter.
        key_end: After a parameter's name.
        value: Before its value.
        value_end: After its value.
        edge: Written around a value within its marks; a newline there is not part of the value in any dialect.
        around_all: Whether `opens` and `closes` are around all calls of an answer, not around each.
    """

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
