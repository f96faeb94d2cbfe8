"""Where the time went, as the page of a run shows it."""

import json
import re

import pytest
from report_pages import checked_page

LINES = [
    {"stage": "sepo", "step": 1, "generate": 1.0, "update": 2.0, "compile": 5.0, "snapshots": 0.25,
     "compiled/update": 1, "loaded/decode": 2, "peak_host_bytes": 2_000_000_000},
    {"stage": "sepo", "step": 2, "generate": 3.0, "update": 2.0, "compile": 0.0, "save": 7.0},
    {"stage": "sepo", "step": 3, "generate": 2.0, "update": 2.0, "compile": 1.0,
     "compiled/update": 1, "compiled/<lambda>": 1},
]  # fmt: skip


def cells_of(text, first, second):
    """The cells of the row of a table that begins with these two."""
    rows = [re.findall(r"<td[^>]*>(.*?)</td>", row) for row in re.findall(r"<tr>(.*?)</tr>", text)]
    rows = [[re.sub("<[^>]*>", "", cell) for cell in row] for row in rows]
    (found,) = [row[2:] for row in rows if row[:2] == [first, second]]
    return found


@pytest.fixture
def timed_page(small_run):
    (small_run / "timings.jsonl").write_text("".join(json.dumps(x) + "\n" for x in LINES))
    source, _ = checked_page(small_run)
    return source[source.index('id="time"') : source.index('id="settings"')]


def test_phases_have_median_mean_sum_and_share(timed_page):
    assert cells_of(timed_page, "sepo", "generate") == ["2.000", "2.000", "6.0", "24.0%", "3"]
    assert cells_of(timed_page, "sepo", "compile") == ["1.000", "2.000", "6.0", "24.0%", "3"]
    assert cells_of(timed_page, "sepo", "save") == ["7.000", "7.000", "7.0", "28.0%", "1"]
    # What goes on beside the phases is no part of the whole.
    assert cells_of(timed_page, "sepo", "snapshots")[3] == ""
    order = [timed_page.index(f"<td>{name}</td>") for name in ("generate", "update", "compile")]
    assert order == sorted(order)


def test_compilations_are_listed_by_function(timed_page):
    folded = timed_page[timed_page.index("<details") : timed_page.index("</details>")]
    assert cells_of(folded, "sepo", "update") == ["2", "0"]
    assert "3 programs compiled, 2 loaded from the cache" in timed_page
    assert cells_of(timed_page, "sepo", "&lt;lambda&gt;") == ["1", "0"]
    assert cells_of(timed_page, "sepo", "decode") == ["0", "2"]
    assert cells_of(timed_page, "sepo", "peak_host") == ["2.000"]


def test_the_chart_names_each_phase_once(timed_page):
    chart = timed_page[timed_page.index("<svg") : timed_page.index("</svg>")]
    for name in ("generate", "update", "compile", "save"):
        assert chart.count(f">{name}<") == 1, name
    assert ">judge<" not in chart
