"""Bars: one for each value, their heights in proportion, names that fit."""

import re

import pytest

from sepo_jax.evaluation.plots import COLORS, bar_chart


def heights(svg):
    """Of the bars, in the units of the drawing."""
    paths = re.findall(rf'<path d="([^"]*)"[^>]*fill: {COLORS[0]}', svg)
    found = []
    for path in paths:
        ys = [float(y) for _, y in re.findall(r"[ML] (\S+) (\S+)", path)]
        found.append(max(ys) - min(ys))
    return found


def test_heights_are_in_proportion():
    values = [1, 4, 0, 2]
    drawn = heights(bar_chart(list("abcd"), values, title="counts"))
    assert len(drawn) == 4 and drawn[2] == 0
    assert [height / drawn[0] for height in drawn] == pytest.approx(values, abs=1e-3)


@pytest.mark.parametrize(("count", "named"), [(1, 1), (9, 9), (10, 5), (24, 8)])
def test_few_bars_are_all_named_and_many_in_part(count, named):
    svg = bar_chart([f"n{i}" for i in range(count)], [1] * count, title="bars", label="axis")
    assert len(re.findall(r">n\d+<", svg)) == named
    assert ">axis<" in svg and 'aria-label="bars"' in svg


def test_text_is_plain():
    svg = bar_chart(["<b>"], [3], title='a "b" <c>')
    assert "<b>" not in svg and "http" not in svg
    assert svg == bar_chart(["<b>"], [3], title='a "b" <c>')
