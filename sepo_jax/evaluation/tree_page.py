"""One self-contained page on the trees of branching rollouts, from the records of `tree_record`.

The drawing is made here; `tree_page.js` shows what a segment holds when it is pointed at, clicked
or reached by the keyboard. The page fetches nothing, and forbids itself to.
"""

import json
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from .page import Html, escape, join, tag
from .tree_layout import Box, Layout, children_of, lay_out
from .tree_words import facts, legend, plain, share, signed

_HERE = Path(__file__).parent
_POLICY = "default-src 'none'; style-src 'unsafe-inline'; script-src 'unsafe-inline'"
_LABEL = 60  # characters of an action that its box holds at most


def render_trees(records: Sequence[Mapping[str, Any]], title: str) -> str:
    """The page as text, with the last record shown first; equal records give equal pages.

    Args:
      records: of `tree_record`, each of them also with its "stage" and "step".
      title: heading of the page.

    Raises:
      ValueError: no record.
    """
    if not records:
        raise ValueError("a page of trees needs at least one record")
    views, kept = [], []
    for record in records:
        try:
            json.dumps(record, allow_nan=False)
            views.append(_view(record, len(kept), shown=len(kept) + 1 == len(records)))
            kept.append(record)
        except Exception as error:  # whatever a file of a run holds, the other trees are shown
            what = f"This record cannot be drawn: {type(error).__name__}: {error}"
            shown = "" if len(kept) + 1 == len(records) else "hidden"
            views.append(tag("section", tag("p", what), class_="view", hidden=shown))
            kept.append({"segments": [], "leaves": []})
    head = tag(
        "header",
        tag("h1", title),
        tag("div", _chooser(records), _theme(), class_="controls"),
    )
    dock = tag(
        "aside",
        tag("p", "Point at a segment, or click it.", class_="muted"),
        id="detail",
        class_="dock",
        tabindex="0",
        **{"aria-label": "The chosen segment"},
    )
    body = join([tag("main", head, *views, dock), _data(kept), _script()])
    text = (
        '<!DOCTYPE html>\n<html lang="en">\n<head>\n<meta charset="utf-8">\n'
        f'<meta http-equiv="Content-Security-Policy" content="{_POLICY}">\n'
        '<meta name="viewport" content="width=device-width, initial-scale=1">\n'
        f"<title>{escape(title)}</title>\n<style>{_read('tree_page.css')}</style>\n</head>\n"
        f"<body>\n{body}\n</body>\n</html>\n"
    )
    return text.encode("utf-8", "replace").decode("utf-8")


def _read(name: str) -> str:
    return (_HERE / name).read_text(encoding="utf-8")


def _data(records: Sequence[Mapping[str, Any]]) -> Html:
    """The records for the script; no text in them can end the element."""
    text = json.dumps(records, separators=(",", ":")).replace("<", "\\u003c")
    return Html(f'<script type="application/json" id="records">{text}</script>')


def _script() -> Html:
    return Html(f"<script>{_read('tree_page.js')}</script>")


def _chooser(records: Sequence[Mapping[str, Any]]) -> Html:
    """A choice among several records by stage and step."""
    if len(records) == 1:
        return tag("span", _name(records[0]), class_="muted")
    options = [
        tag("option", _name(r), value=str(n), selected="" if n + 1 < len(records) else "selected")
        for n, r in enumerate(records)
    ]
    return tag("label", "Tree of ", tag("select", *options, id="chooser"))


def _name(record: Mapping[str, Any]) -> str:
    return f"{record.get('stage', '')} step {record.get('step', '?')}".strip()


def _theme() -> Html:
    return tag("button", "Dark / light", type="button", id="theme", class_="plain")


def _view(record: Mapping[str, Any], number: int, shown: bool) -> Html:
    """One record: figures, tree, leaves, legend."""
    segments = record["segments"]
    layout = lay_out(segments)
    children = children_of(segments)
    sizes = [abs(s["advantage"] or 0) for s in segments if s["kind"] == "action"]
    most = max(sizes, default=0) or 1
    drawing = tag(
        "div",
        _edges(segments, layout, record),
        *_headers(record, layout, children),
        *(
            _node(segments, layout, n, children[n], most)
            for n in _reading_order(children, segments)
        ),
        class_="canvas",
        style=f"width:{layout.width:.0f}px;height:{layout.height:.0f}px",
    )
    pane = tag("div", drawing, class_="pane", tabindex="0", **{"aria-label": "The tree"})
    tree = tag("div", pane, _leaves(record, layout), class_="tree")
    return tag(
        "section",
        facts(record, children),
        tree,
        legend(record),
        class_="view compact" if layout.compact else "view",
        hidden="" if shown else "hidden",
        **{"data-record": str(number), "data-first": str(_first(children))},
    )


def _first(children: Sequence[Sequence[int]]) -> int:
    """The segment that is shown to begin with: the trunk's at the first branch point, else 0."""
    return next((below[0] for below in children if len(below) > 1), 0)


def _reading_order(children, segments) -> list[int]:
    """Segments along the trunk, then those of each fork: the order of the keyboard."""
    order, pending = [], [n for n, s in enumerate(segments) if s["parent"] < 0][::-1]
    while pending:
        order.append(pending.pop())
        pending += children[order[-1]][::-1]
    return order


def _edges(segments, layout: Layout, record: Mapping[str, Any]) -> Html:
    """Lines from parents to children, as wide as many leaves pass, and on to the leaves' column."""
    paths = []
    for number, segment in enumerate(segments):
        if segment["parent"] >= 0:
            line = _elbow(layout.boxes[segment["parent"]], layout.boxes[number])
            wide = min(1.5 + 0.5 * (segment["leaves"] - 1), 6)
            named = {"data-edge": str(number)}
            paths.append(tag("path", d=line, style=f"stroke-width:{wide:g}", **named))
    for leaf in record["leaves"]:
        box = layout.boxes[leaf["segment"]]
        line = f"M{box.x + box.width:g} {box.middle:g}H{layout.width:g}"
        paths.append(tag("path", d=line, class_="leader"))
    size = {"width": f"{layout.width:.0f}", "height": f"{layout.height:.0f}"}
    return tag("svg", *paths, **size, **{"aria-hidden": "true"})


def _elbow(above: Box, below: Box) -> str:
    start, end = above.x + above.width, below.x
    if above.row == below.row:
        return f"M{start:g} {above.middle:g}H{end:g}"
    # Down under the box itself: what leaves a branch point leaves it at one place.
    turn, bend = above.x + above.width - 12, 8
    return (
        f"M{turn:g} {above.y + above.height:g}V{below.middle - bend:g}"
        f"Q{turn:g} {below.middle:g} {turn + bend:g} {below.middle:g}H{end:g}"
    )


def _headers(record, layout: Layout, children) -> list[Html]:
    """A name for each turn, and the entropy of the first trunk's decision there as a bar."""
    entropy, segments = {}, record["segments"]
    number = next(iter(n for n, s in enumerate(segments) if s["parent"] < 0), None)
    while number is not None:
        if segments[number]["kind"] == "action":
            entropy[len(entropy)] = segments[number]["entropy"] or 0.0
        number = children[number][0] if children[number] else None
    most = max(entropy.values(), default=0.0) or 1.0
    heads = []
    for turn, (x, width) in enumerate(layout.turns):
        if not width:
            continue
        bar = Html("")
        if turn in entropy:
            bar = tag("i", style=f"--part:{entropy[turn] / most:.3f}")
        words = f"turn {turn + 1}" + (f" · H {plain(entropy[turn])}" if turn in entropy else "")
        place = f"left:{x:g}px;width:{width:g}px"
        heads.append(tag("div", tag("span", words), bar, class_="turn", style=place))
    return heads


def _node(segments, layout: Layout, number: int, children: Sequence[int], most: float) -> Html:
    """A segment as a button; what it says in full is its label for a screen reader.

    The colour of an action says how large its advantage is beside the greatest, `most`.
    """
    segment, box = segments[number], layout.boxes[number]
    place = f"left:{box.x:g}px;top:{box.y:g}px;width:{box.width:g}px;height:{box.height:g}px"
    named = {"data-segment": str(number), "type": "button"}
    if segment["kind"] == "action":
        content, words, class_ = _action(segment, layout.compact)
        strength = abs(segment["advantage"] or 0) / most
        place += f";--strength:{strength:.3f}"
    else:
        content, words, class_ = _given(segments, segment, children)
    shared = f", shared by {segment['leaves']} leaves" if segment["leaves"] > 1 else ""
    named["aria-label"] = f"{words}{shared}"
    return tag("button", *content, class_=f"node {class_}", style=place, **named)


def _action(segment, compact: bool) -> tuple[list[Html], str, str]:
    """An action: what it says, advantage, weight, and how many leaves share it."""
    text = " ".join(segment["text"].split()) or "(nothing)"
    advantage = tag("b", signed(segment["advantage"]))
    words = (
        f"Action of turn {segment['turn'] + 1}: {text[:_LABEL]}, advantage "
        f"{signed(segment['advantage'])}, weight {share(segment['weight'])}"
    )
    sign = "none"
    if segment["weight"] and segment["advantage"]:
        sign = "up" if segment["advantage"] > 0 else "down"
    class_ = f"action {sign}" + (" shared" if segment["leaves"] > 1 else "")
    said = tag("span", text[:_LABEL], class_="said")
    if compact:
        return [said, advantage], words, class_
    weight = tag("span", f"w\u00a0{share(segment['weight'])}")
    shared = tag("span", f"×{segment['leaves']}") if segment["leaves"] > 1 else ""
    lines = [(said, shared), (advantage, weight)]
    return [tag("span", *line, class_="line") for line in lines], words, class_


def _given(segments, segment, children: Sequence[int]) -> tuple[list[Html], str, str]:
    """What was given: at a branch point its entropy and return, else its number of tokens."""
    if len(children) > 1:
        below = [segments[n] for n in children if segments[n]["kind"] == "action"]
        entropy = plain(below[0]["entropy"] if below else None)
        value = plain(segment["return"])
        words = f"Branch point: {len(children)} continuations, entropy {entropy}, return {value}"
        return [tag("span", f"H\u00a0{entropy}"), tag("b", f"R\u00a0{value}")], words, "point"
    words = f"Given: {segment['tokens']} tokens"
    kind = "prompt" if segment["parent"] < 0 else ""
    return [tag("span", f"{segment['tokens']}\u00a0t")], words, f"given {kind}".strip()


def _leaves(record: Mapping[str, Any], layout: Layout) -> Html:
    """Return and weight of every leaf, in the rows of the tree."""
    earned = [leaf["return"] for leaf in record["leaves"] if leaf["return"] is not None]
    low, high = min(earned, default=0), max(earned, default=0)
    low, high = min(low, 0), max(high, 0)
    entries = []
    for leaf in sorted(record["leaves"], key=lambda leaf: layout.boxes[leaf["segment"]].row):
        value = leaf["return"]
        part = ((value if value is not None else low) - low) / ((high - low) or 1)
        kind = "trunk" if leaf["trunk"] else "fork"
        cut = "" if leaf["status"] == "finished" else leaf["status"].replace("_", " ")
        words = f"Leaf of a {kind}: return {plain(value)}, weight {share(leaf['weight'])}" + (
            f", {cut}" if cut else ""
        )
        entries.append(
            tag(
                "button",
                tag("span", kind, class_=f"kind {kind}"),
                tag("i", style=f"--part:{part:.3f}"),
                tag("b", plain(value)),
                tag("span", f"w\u00a0{share(leaf['weight'])}"),
                tag("span", "cut", class_="cut", title=cut) if cut else "",
                type="button",
                class_="leaf",
                style=f"height:{layout.row:g}px",
                **{"data-leaf": str(leaf["segment"]), "aria-label": words},
            )
        )
    head = tag("div", "leaf: return R, weight w", class_="head", style=f"height:{layout.header}px")
    return tag("div", head, *entries, class_="leaves")
