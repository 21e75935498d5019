"""HTML as text, and the page's style sheet: measures and type; colours are the charts' palette.

Knows escaping and how things look; what is passed as content is HTML already.
"""

from __future__ import annotations

from html import escape

from inflight.report.charts.palette import CHART_RULES, PAGE_VARIABLES
from inflight.report.charts.quantity import shortened
from inflight.report.charts.svg import Drawing, tag


def words(text: str) -> str:
    return escape(text)


def element(name: str, *content: str, **attributes: object) -> str:
    """Always with an end tag, which HTML wants of all but void elements."""
    opened = tag(name, "\0", **attributes)
    return opened.replace("\0", "".join(content))


def identifier(name: str) -> str:
    """A name, short where it is long; whoever unfolds it can read and copy all of it."""
    short = shortened(name)
    if short == name:
        return words(name)
    return element("details", element("summary", words(short)), words(name), class_="id")


def section(place: str, title: str, *content: str) -> str:
    return element("section", element("h2", words(title)), *content, id=place)


def fold(title: str, *content: str, opened: bool = False) -> str:
    """A part that is read by those who open it; printed all the same."""
    return element("details", element("summary", words(title)), *content, open="open" if opened else None)


def figure(drawing: Drawing) -> str:
    """A picture with its title and what it shows. Wide ones scroll inside of their box."""
    kind = "wide" if drawing.wide else "normal"
    style = f"min-width:{drawing.width * 0.9:.0f}px" if drawing.wide else ""
    box = (
        element("div", element("div", drawing.inline(), style=style), class_="scroll")
        if drawing.wide
        else drawing.inline()
    )
    caption = element("figcaption", element("b", words(drawing.title)))
    return element("figure", caption, box, element("p", words(drawing.description), class_="about"), class_=kind)


def grid(*content: str) -> str:
    return element("div", *content, class_="grid-of")


def table(head: list[str], rows: list[list[str]], class_: str = "") -> str:
    """Cells are HTML; the first column names its row."""
    first = element("tr", *(element("th", cell, scope="col") for cell in head))
    body = [
        element("tr", element("th", row[0], scope="row"), *(element("td", cell) for cell in row[1:])) for row in rows
    ]
    whole = element("table", element("thead", first), element("tbody", *body), class_=class_)
    return element("div", whole, class_="scroll", tabindex="0")


_RULES = """
*{box-sizing:border-box}
html{-webkit-text-size-adjust:100%}
body{margin:0;background:var(--page);color:var(--ink);
font:16px/1.5 system-ui,-apple-system,"Segoe UI",Roboto,"Noto Sans",Arial,sans-serif}
main,header,footer{max-width:1200px;margin:0 auto;padding:0 24px}
header{padding-top:36px}
h1{font-size:28px;line-height:1.2;margin:0 0 8px;letter-spacing:-.01em}
h2{font-size:21px;margin:44px 0 12px;padding-top:14px;border-top:2px solid var(--ink)}
h3{font-size:17px;margin:28px 0 8px}
p{margin:6px 0;max-width:80ch}
.soft,.about,footer{color:var(--soft)}
.about{font-size:13px;line-height:1.4;margin:6px 2px 0}section>.about{margin-bottom:12px}
nav{display:flex;flex-wrap:wrap;gap:4px 18px;margin:16px 0 0;font-size:15px}
a{color:var(--s1);text-underline-offset:2px}
.note{border:1px solid var(--bad);border-left-width:5px;border-radius:4px;padding:8px 14px;margin:12px 0;max-width:none}
.grid-of{display:grid;grid-template-columns:repeat(auto-fill,minmax(min(100%,350px),1fr));gap:20px;align-items:start}
figure{margin:0;min-width:0;background:var(--card);border-radius:8px;padding:14px 16px 12px}
figure.wide{margin:20px 0}.figures.wide{grid-column:1/-1}
figcaption{margin:0 0 8px;font-size:15px}
svg.chart{display:block;width:100%;height:auto}
.scroll{overflow-x:auto;max-width:100%}
table{border-collapse:collapse;font-size:14px;font-variant-numeric:tabular-nums;width:100%}
th,td{padding:5px 12px 5px 0;text-align:right;vertical-align:baseline;border-bottom:1px solid var(--rule)}
th[scope=row],thead th:first-child{text-align:left;font-weight:400}
thead th{font-weight:600;white-space:nowrap;border-bottom:1.5px solid var(--soft)}
th[scope=row] small{display:block;color:var(--soft);font-size:12px;line-height:1.3}
td{white-space:nowrap}
td small{display:block;color:var(--soft);font-size:12px;line-height:1.3}
td small span{display:inline-block;white-space:nowrap}td small span+span{margin-left:.35em}
td .good{color:var(--good)}td .bad{color:var(--bad)}
thead th:first-child,th[scope=row]{min-width:150px}
table.several th[scope=row]{position:sticky;left:0;background:var(--card);min-width:190px}
table.requests th{white-space:normal}
table.requests th[scope=row]{position:sticky;left:0;background:var(--page);min-width:110px;overflow-wrap:anywhere}
table.words td,table.words th{text-align:left;white-space:normal}
table.words td:last-child{color:var(--soft)}
table.words th[scope=row]{white-space:nowrap}
.figures{background:var(--card);border-radius:8px;padding:12px 16px 14px;min-width:0}
.figures h3{margin:0 0 6px}
.tiles{display:grid;grid-template-columns:repeat(auto-fit,minmax(138px,1fr));gap:12px;margin:18px 0 22px}
.tile{background:var(--card);border-radius:8px;padding:10px 14px}
.tile b{display:block;font-size:21px;line-height:1.25;font-weight:650;letter-spacing:-.01em;white-space:nowrap}
.tile span{font-size:13px;color:var(--soft);line-height:1.3;display:block}
.finding{border-left:4px solid var(--s2);padding:2px 0 2px 14px;margin:16px 0}
.finding.w1{border-color:var(--s7)}.finding.w3{border-color:var(--bad)}
.finding h4{margin:0;font-size:16px}
.finding p{margin:3px 0}
.finding code,td code,p code{font:13px/1.3 ui-monospace,SFMono-Regular,Menlo,Consolas,monospace;
background:var(--card);padding:1px 4px;border-radius:3px;white-space:nowrap}
details{margin:14px 0}
summary{cursor:pointer;font-weight:600;padding:4px 0}
details.id,details.id summary{margin:0;padding:0;font-weight:400;white-space:nowrap}details.id[open]{white-space:normal}
footer{font-size:13px;margin-top:56px;padding-bottom:36px}
.defs{position:absolute;width:0;height:0}
@media (max-width:600px){main,header,footer{padding:0 14px}header{padding-top:22px}h1{font-size:23px}
.grid-of{gap:14px}figure{padding:12px 10px}.figures{padding:10px 12px}th[scope=row] small{display:none}
th,td{padding-right:6px}td small{white-space:normal}
th[scope=row],thead th:first-child{min-width:64px}
table.several th[scope=row],table.requests th[scope=row]{min-width:110px}
.tile b{font-size:20px}}
@media print{@page{margin:14mm}body{font-size:10.5pt}main,header,footer{max-width:none;padding:0}nav{display:none}
h2{break-after:avoid;margin-top:26px}figure,.figures,.tile{break-inside:avoid;background:none;
border:1px solid var(--rule)}
.finding{break-inside:avoid}.grid-of{grid-template-columns:1fr 1fr}.scroll{overflow:visible}
figure .scroll>div{min-width:0!important}
table{font-size:8.5pt}td,td small{white-space:normal}
th,td{padding:3px 6px 3px 0}table th[scope=row],table.several th[scope=row]{min-width:0;background:none}
details::details-content{content-visibility:visible;display:block;height:auto}*{print-color-adjust:exact;-webkit-print-color-adjust:exact}}
"""

STYLE = PAGE_VARIABLES + _RULES + CHART_RULES
