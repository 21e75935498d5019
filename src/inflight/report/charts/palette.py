"""Colours, as CSS variables: light, dark, print. Distinct with any colour vision (blue, vermilion, green, purple and
mustard after Okabe and Ito, darkened until they have 3 : 1 on the page), and never alone: lines have dashes and marks,
areas have patterns.
"""

from __future__ import annotations

SERIES = 7

_LIGHT = {
    "page": "#ffffff", "card": "#f6f7f9", "ink": "#1a1d21", "soft": "#59616b", "rule": "#d5d9de", "grid": "#e6e9ec",
    "s1": "#0b66ad", "s2": "#c9500a", "s3": "#04805c", "s4": "#a3468b", "s5": "#8a6c00", "s6": "#4747a8",
    "s7": "#69727d", "prefill": "#e07b1a", "recomputed": "#a3468b", "decode": "#2f7fc1", "padding": "#9aa3ad",
    "waiting": "#a08411", "idle": "#bcd7ee", "free": "#eef0f2", "good": "#04704f", "bad": "#b0380c",
}  # fmt: skip
_DARK = {
    "page": "#14171a", "card": "#1d2125", "ink": "#e8eaed", "soft": "#a3abb5", "rule": "#3a4148", "grid": "#2a3036",
    "s1": "#56a8ee", "s2": "#ff8b4d", "s3": "#35c498", "s4": "#e08fc9", "s5": "#d8b93f", "s6": "#a3a3f5",
    "s7": "#a0a9b4", "prefill": "#f0964a", "recomputed": "#e08fc9", "decode": "#4a9be0", "padding": "#76808b",
    "waiting": "#c2ab3d", "idle": "#2d4e6b", "free": "#24292e", "good": "#46cfa3", "bad": "#ff9468",
}  # fmt: skip

# Dashes of lines, as CSS and canvases take them: "" is unbroken.
DASHES = ("", "6 3", "2 2", "9 3 2 3", "12 4", "4 2 1 2", "1 3")

_RULES = """
svg.chart text{font:12.5px/1 system-ui,-apple-system,"Segoe UI",Roboto,"Noto Sans",Arial,sans-serif;fill:var(--ink)}
svg.chart text.tick{fill:var(--soft);font-size:11.5px}
svg.chart text.label{fill:var(--soft)}
svg.chart text.title{font-size:15px;font-weight:600}
svg.chart text.subtitle{font-size:13px;font-weight:600}
svg.chart .grid{stroke:var(--grid);stroke-width:1;fill:none;shape-rendering:crispEdges}
svg.chart .axis{stroke:var(--soft);stroke-width:1;fill:none;shape-rendering:crispEdges}
svg.chart .line{fill:none;stroke-width:2;stroke-linejoin:round}
svg.chart .steps{stroke:var(--page);stroke-width:.7;stroke-opacity:.75;fill:none}
svg.chart .limit{stroke:var(--bad);stroke-width:1.2;stroke-dasharray:5 3;fill:none}
"""


def _variables(colours: dict[str, str]) -> str:
    return "".join(f"--{name}:{colour};" for name, colour in colours.items())


def _series_rules() -> str:
    rules = []
    for index, dash in enumerate(DASHES, 1):
        rules.append(f"svg.chart .s{index}{{stroke:var(--s{index});fill:var(--s{index})}}")
        rules.append(f"svg.chart .line.s{index}{{fill:none;stroke-dasharray:{dash or 'none'}}}")
        rules.append(f"svg.chart .area.s{index}{{stroke:none}}")
    rules += [f"svg.chart .{name}{{fill:var(--{name})}}" for name in ("prefill", "decode", "idle", "free")]
    patterned = ("recomputed", "padding", "waiting", "cached", "shared")
    rules += [f"svg.chart .{name}{{fill:url(#{name})}}" for name in patterned]
    rules.append("svg.chart .area.edge{stroke:var(--page);stroke-width:.6}svg.chart .pale{fill-opacity:.5}")
    return "\n".join(rules)


CHART_RULES = _RULES + _series_rules()
PAGE_VARIABLES = (
    f":root{{color-scheme:light dark;{_variables(_LIGHT)}}}"
    f"@media screen and (prefers-color-scheme:dark){{:root:not([data-theme=light]){{{_variables(_DARK)}}}}}"
    f"@media screen{{:root[data-theme=dark]{{{_variables(_DARK)}}}}}"
)
# A page of its own background reads on a light and on a dark page alike.
STANDALONE_RULES = f"svg.chart{{{_variables(_LIGHT)}}}" + CHART_RULES


def _pattern(name: str, size: int, ground: str, ink: str, turn: int = 0) -> str:
    turned = f' patternTransform="rotate({turn})"' if turn else ""
    return (
        f'<pattern id="{name}" width="{size}" height="{size}" patternUnits="userSpaceOnUse"{turned}>'
        f'<rect width="{size}" height="{size}" style="fill:var(--{ground})"/>{ink}</pattern>'
    )


PATTERNS = (
    "<defs>"
    + _pattern("padding", 6, "free", '<rect width="2.4" height="6" style="fill:var(--padding)"/>', 45)
    + _pattern("recomputed", 5, "recomputed", '<rect width="1.4" height="5" style="fill:var(--page)"/>', -45)
    + _pattern("waiting", 5, "free", '<circle cx="2.5" cy="2.5" r="1.6" style="fill:var(--waiting)"/>')
    + _pattern("cached", 6, "free", '<rect width="1.4" height="6" style="fill:var(--s7)"/>', -45)
    + _pattern("shared", 6, "s7", '<path d="M0 3h6M3 0v6" style="stroke:var(--page);stroke-width:1"/>')
    + "</defs>"
)
