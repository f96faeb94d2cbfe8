"""HTML pieces of a report: escaping, numbers, tables, and the style sheet.

Everything that enters a page passes `escape`, except the strings made here and the SVG of `plots`.
The class `Html` marks what is already HTML, so that text from a run cannot be mistaken for it.
"""

import html
import json
import math
from collections.abc import Iterable, Sequence
from typing import Any


class Html(str):
    """Text that is HTML already."""

    __slots__ = ()


STYLE = """
:root{color-scheme:light}
*{box-sizing:border-box}
body{margin:0;background:#f5f6f8;color:#1f2933;line-height:1.5;
 font:15px/1.5 system-ui,-apple-system,"Segoe UI",Roboto,"Helvetica Neue",Arial,sans-serif}
main{max-width:1240px;margin:0 auto;padding:28px 24px 64px}
header h1{font-size:25px;margin:0 0 2px;font-weight:650}
header p{margin:0;color:#52606d}
nav{margin:14px 0 20px;font-size:14px}
nav a{color:#1f5fa8;text-decoration:none;margin-right:16px}
nav a:hover{text-decoration:underline}
section{background:#fff;border:1px solid #e4e7eb;border-radius:8px;padding:18px 22px 20px;
 margin:0 0 18px}
h2{font-size:18px;margin:0 0 4px;font-weight:650}
h3{font-size:15px;margin:18px 0 6px;font-weight:650}
p.lead{margin:0 0 12px;color:#52606d;max-width:86ch}
.tiles{display:flex;flex-wrap:wrap;gap:12px;margin:14px 0 8px}
.tile{flex:1 1 130px;border:1px solid #e4e7eb;border-radius:8px;padding:10px 14px;
 background:#fbfbfc}
.tile b{display:block;font-size:24px;font-weight:650;font-variant-numeric:tabular-nums}
.tile span{color:#52606d;font-size:13px}
.tile.main{border-color:#1f5fa8;background:#eef4fb}
.scroll{overflow-x:auto}
table{border-collapse:collapse;width:100%;font-size:14px;font-variant-numeric:tabular-nums}
th,td{padding:5px 10px;text-align:left;vertical-align:top;border-bottom:1px solid #e4e7eb}
thead th{color:#52606d;font-weight:600;border-bottom:2px solid #cbd2d9;
 vertical-align:bottom}
td.n,th.n{text-align:right}
td.n{white-space:nowrap}
td.w{white-space:nowrap}
td.why{color:#52606d;font-size:13px;min-width:300px}
tr.main td{background:#eef4fb;font-weight:600}
tr.main td.why{font-weight:400}
.interval{color:#7b8794;font-size:12px;font-weight:400}
.inline .interval{display:inline-block;margin-left:7px}
.off{color:#b3261e;font-weight:600}
.ok{color:#2e7d4f}
.muted{color:#7b8794}
.grid{display:grid;grid-template-columns:repeat(auto-fill,minmax(310px,1fr));gap:16px 18px}
figure{margin:0}
figure svg{width:100%;height:auto;display:block}
svg *{stroke-linejoin:round;stroke-linecap:butt}
figcaption{color:#52606d;font-size:13px;margin-top:2px}
details{margin:10px 0 0}
summary{cursor:pointer;color:#1f5fa8;font-size:14px}
pre{white-space:pre-wrap;overflow-wrap:anywhere;background:#f5f6f8;border-radius:6px;margin:4px 0;
 padding:7px 10px;font:12.5px/1.45 ui-monospace,SFMono-Regular,Menlo,Consolas,monospace}
.sample{border:1px solid #e4e7eb;border-radius:8px;padding:8px 12px;margin:8px 0}
.turn{display:grid;grid-template-columns:84px 1fr;gap:8px;align-items:start;margin-top:4px}
.turn>span{font-size:12.5px;color:#7b8794;padding-top:9px;text-align:right}
.turn details{margin:6px 0 0}
.tag{display:inline-block;border-radius:4px;background:#eef1f4;padding:0 7px;margin-right:5px;
 font-size:12.5px}
.tag.bad{background:#fdecea;color:#b3261e}
ul.notes{margin:6px 0 0;padding-left:20px}
.legend{display:flex;flex-wrap:wrap;gap:4px 18px;margin:0 0 10px;font-size:13px;color:#52606d}
.legend i{display:inline-block;width:22px;height:0;vertical-align:middle;margin-right:6px;
 border-top:3px solid}
"""


def escape(value: Any) -> Html:
    """`value` as text that is safe inside an element and inside a quoted attribute."""
    if isinstance(value, Html):
        return value
    # A lone surrogate is legal in a Python string and in JSON but not in UTF-8.
    text = str(value).encode("utf-8", "replace").decode("utf-8")
    return Html(html.escape(text, quote=True))


def join(parts: Iterable[Any]) -> Html:
    """The parts one after another, each escaped unless it is HTML."""
    return Html("".join(escape(part) for part in parts))


def tag(name: str, *content: Any, **attributes: str) -> Html:
    """An element; `class_` stands for the attribute class."""
    listed = "".join(
        f' {key.rstrip("_")}="{escape(value)}"' for key, value in attributes.items() if value
    )
    return Html(f"<{name}{listed}>{join(content)}</{name}>")


def breakable(key: str) -> Html:
    """A long key that may be broken over lines after its slashes and underscores."""
    return Html(escape(key).replace("/", "/<wbr>").replace("_", "_<wbr>"))


def number(value: Any, digits: int = 4) -> Html:
    """A number to `digits` decimals (fewer when large), NaN, infinities and integers beyond
    the range of floats in red, else text."""
    if isinstance(value, bool) or not isinstance(value, int | float):
        return escape(value)
    try:
        finite = math.isfinite(value)
    except OverflowError:
        digits = str(abs(value))
        return tag("span", f"{digits[:6]}... ({len(digits)} digits)", class_="off")
    if not finite:
        return tag("span", str(value).replace("nan", "NaN"), class_="off")
    if abs(value) < 1e-12:
        value = 0.0 if isinstance(value, float) else value  # rounding residue of an exact zero
    if isinstance(value, int):
        return escape(f"{value:,}" if abs(value) >= 10_000 else value)
    if value != 0 and (abs(value) >= 1e6 or abs(value) < 10.0**-digits / 2):
        return escape(f"{value:.3g}")
    return escape(f"{value:.{digits}f}" if abs(value) < 1000 else f"{value:,.1f}")


def table(
    headers: Sequence[Any],
    rows: Iterable[Sequence[Any]],
    *,
    classes: Sequence[str] = (),
    main_rows: Iterable[int] = (),
) -> Html:
    """A table; `classes` gives one CSS class a column, `main_rows` the rows to stand out."""
    columns = [*classes, *[""] * (len(headers) - len(classes))]
    head = join(
        tag("th", h, class_=c if c == "n" else "") for h, c in zip(headers, columns, strict=True)
    )
    marked = set(main_rows)
    body = join(
        tag(
            "tr",
            *(tag("td", cell, class_=c) for cell, c in zip(row, columns, strict=True)),
            class_="main" if index in marked else "",
        )
        for index, row in enumerate(rows)
    )
    whole = tag("table", tag("thead", tag("tr", head)), tag("tbody", body))
    return tag("div", whole, class_="scroll")


def section(identity: str, title: str, lead: Any, *content: Any) -> Html:
    """A card of the page with its heading and a sentence on what it shows."""
    return tag("section", tag("h2", title), tag("p", lead, class_="lead"), *content, id=identity)


def figure(svg: str, caption: Any) -> Html:
    """A chart with its sentence."""
    return tag("figure", Html(svg), tag("figcaption", caption))


def legend(entries: Iterable[tuple[str, str, bool]]) -> Html:
    """Names of the lines of charts, from (name, colour, whether it is dashed)."""
    parts = []
    for name, color, dashed in entries:
        style = f"border-top-color:{color};border-top-style:{'dashed' if dashed else 'solid'}"
        parts.append(tag("span", tag("i", style=style), name))
    return tag("div", *parts, class_="legend")


def details(title: str, *content: Any) -> Html:
    """A part that is folded until clicked."""
    return tag("details", tag("summary", title), *content)


def code(value: Any, limit: int = 4000) -> Html:
    """Text, or JSON of anything else, in a box; cut after `limit` characters."""
    text = value if isinstance(value, str) else json.dumps(value, indent=1, default=str)
    if len(text) > limit:
        text = f"{text[:limit]}\n... ({len(text) - limit} more characters)"
    return tag("pre", text)


def document(title: str, header: Any, sections: Sequence[tuple[str, str, Html]]) -> str:
    """The whole page from (identity, short title, HTML) parts, with links between them."""
    links = tag("nav", *(tag("a", short, href=f"#{name}") for name, short, _ in sections))
    body = tag("main", header, links, *(content for _, _, content in sections))
    text = (
        '<!DOCTYPE html>\n<html lang="en">\n<head>\n<meta charset="utf-8">\n'
        '<meta name="viewport" content="width=device-width, initial-scale=1">\n'
        f"<title>{escape(title)}</title>\n<style>{STYLE}</style>\n</head>\n"
        f"<body>\n{body}\n</body>\n</html>\n"
    )
    # Charts bring names of their own; see `escape` for lone surrogates.
    return text.encode("utf-8", "replace").decode("utf-8")
