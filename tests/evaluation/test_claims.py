"""Verdicts follow from intervals; rows are merged without losing those of other claims."""

import json
import math
from concurrent.futures import ThreadPoolExecutor

import pytest
from hypothesis import given
from hypothesis import strategies as st

from sepo_jax.evaluation.claims import (
    COLUMNS,
    FAILS,
    HOLDS,
    NOT_COMPARABLE,
    UNDECIDED,
    Finding,
    claim_row,
    merge_rows,
    select_claims,
    verdict,
)
from sepo_jax.evaluation.results import load_result, render_result
from sepo_jax.evaluation.statistics import Interval, seed_interval

HEADING = {"title": "Claims.", "command": "python all", "versions": {"jax": "1"}, "notes": "n"}
CLAIMS = {"sepo/one": 1, "sepo/two": 2, "bpo/one": 3}


def between(low, high):
    return Interval((low + high) / 2, low, high, (high - low) / 4, 3, 0.95, "student")


def row(name, *, commit="abc", seeds=(0,), seconds=1.0, low=1.0):
    found = [Finding("gap", between(low, low + 1), "above")]
    return claim_row(
        name, "said", found, seeds=seeds, command="run", commit=commit, seconds=seconds
    )


@pytest.mark.parametrize(
    ("low", "high", "side", "expected"),
    [
        (0.1, 0.5, "above", HOLDS),
        (-0.1, 0.5, "above", UNDECIDED),
        (0.0, 0.5, "above", UNDECIDED),  # the interval must exclude its bound to hold
        (-0.5, 0.0, "above", FAILS),
        (0.0, 0.0, "above", FAILS),  # exactly at the bound is not above it
        (0.0, 0.0, "below", FAILS),
        (-0.5, -0.1, "below", HOLDS),
        (-0.5, 0.1, "below", UNDECIDED),
        (0.1, 0.5, "below", FAILS),
        (-0.5, -0.1, "above", FAILS),
    ],
)
def test_the_whole_interval_decides(low, high, side, expected):
    assert verdict([Finding("it", between(low, high), side)]) == expected
    assert verdict([Finding("it", between(low + 7, high + 7), side, 7.0)]) == expected


def test_one_unmet_finding_fails_a_claim_and_shown_ones_do_not_count():
    good, bad = (Finding("g", between(1, 2), side) for side in ("above", "below"))
    shown = Finding("s", between(-9, -8))
    assert verdict([good, shown]) == HOLDS
    assert verdict([good, bad, shown]) == FAILS
    crossing = Finding("c", between(-1, 2), "above")
    assert verdict([good, crossing]) == UNDECIDED
    assert verdict([crossing, bad]) == FAILS
    with pytest.raises(ValueError, match="no finding of this claim decides"):
        verdict([shown])


def test_without_an_interval_there_is_nothing_to_compare():
    single = Finding("one seed", seed_interval([3.0]), "above")
    assert not single.known and verdict([single]) == NOT_COMPARABLE
    assert verdict([Finding("g", between(1, 2), "above"), single]) == NOT_COMPARABLE
    assert verdict([Finding("g", between(1, 2), "above"), Finding("s", single.found)]) == HOLDS
    assert verdict([], "missing: a file") == NOT_COMPARABLE


# Student's t with two degrees of freedom: 4.303 / sqrt(3) standard deviations on each side.
@pytest.mark.parametrize(("spread", "found"), [(0.39, HOLDS), (0.41, UNDECIDED)])
def test_three_seeds_hold_while_the_mean_exceeds_the_margin(spread, found):
    values = [1 - spread, 1.0, 1 + spread]
    assert 4.302653 / math.sqrt(3) * 0.4 == pytest.approx(0.99366, abs=1e-4)
    assert verdict([Finding("gap", seed_interval(values), "above")]) == found


@given(st.lists(st.floats(-10, 10), min_size=2, max_size=5))
def test_a_claim_and_its_opposite_never_both_hold(values):
    verdicts = {
        side: verdict([Finding("gap", seed_interval(values), side)]) for side in ("above", "below")
    }
    if verdicts["above"] == HOLDS:
        assert verdicts["below"] == FAILS
    if verdicts["below"] == HOLDS:
        assert verdicts["above"] == FAILS
    mirrored = verdict([Finding("gap", seed_interval([-v for v in values]), "below")])
    assert mirrored == verdicts["above"]


def test_findings_as_text():
    assert str(Finding("e", between(1, 2), "above", 0.5)) == "e 1.5 [1, 2] (> 0.5: yes)"
    assert str(Finding("e", between(1, 2), "below", 0.5)) == "e 1.5 [1, 2] (< 0.5: no)"
    assert str(Finding("e", between(-1, 2), "below")) == "e 0.5 [-1, 2] (< 0: open)"
    assert str(Finding("e", between(2, 2))) == "e 2"
    assert str(Finding("e", seed_interval([2.0]), "above")) == "e 2 (no interval) (> 0: unknown)"


def test_an_unknown_side_is_refused():
    with pytest.raises(ValueError, match=r"unknown side of a finding 'abov'.*'above'"):
        verdict([Finding("e", between(1, 2), "abov")])


def test_claims_by_name():
    assert select_claims("sepo/two", CLAIMS) == ["sepo/two"]
    assert select_claims("sepo/all", CLAIMS) == ["sepo/one", "sepo/two"]
    assert select_claims("bpo/all", CLAIMS) == ["bpo/one"]
    for wanted, near in (("sepo/tow", "sepo/two"), ("spo/all", "sepo/all"), ("sepo", "sepo/")):
        with pytest.raises(ValueError, match=f"unknown claim '{wanted}'. Did you mean '{near}"):
            select_claims(wanted, CLAIMS)
    with pytest.raises(ValueError, match=r"unknown claim ''\. Allowed: sepo/one"):
        select_claims("", CLAIMS)


def test_rows_are_merged_by_claim_in_the_order_of_the_claims(tmp_path):
    path = tmp_path / "new" / "claims_sepo.json"
    merge_rows(path, [row("sepo/two", seeds=(0, 1, 2))], HEADING, list(CLAIMS))
    merge_rows(path, [row("sepo/one", low=-3.0)], HEADING, list(CLAIMS))
    result = load_result(path)
    assert result["columns"] == list(COLUMNS)
    assert [cells[0] for cells in result["rows"]] == ["sepo/one", "sepo/two"]
    assert [cells[4] for cells in result["rows"]] == [FAILS, HOLDS]
    assert result["seeds"] == [0, 1, 2] and result["commit"] == "abc"
    merge_rows(path, [row("sepo/one", commit="def", seconds=2.04)], HEADING, list(CLAIMS))
    result = load_result(path)
    assert [cells[4] for cells in result["rows"]] == [HOLDS, HOLDS]
    assert result["commit"] == "several" and result["rows"][0][7] == 2.0
    assert "| sepo/one | said | gap 1.5 [1, 2] (> 0: yes) | 0 | holds |" in render_result(result)
    merge_rows(path, [], HEADING, ["sepo/two"])
    assert [cells[0] for cells in load_result(path)["rows"]] == ["sepo/two"]
    assert [file.name for file in path.parent.iterdir()] == [path.name]


def test_writers_side_by_side_lose_no_row(tmp_path):
    names = [f"sepo/{number}" for number in range(24)]
    path = tmp_path / "claims_sepo.json"
    with ThreadPoolExecutor(8) as pool:
        list(pool.map(lambda name: merge_rows(path, [row(name)], HEADING, names), names))
    assert [cells[0] for cells in load_result(path)["rows"]] == names


def test_another_file_is_not_overwritten(tmp_path):
    path = tmp_path / "sepo_kuhn.json"
    other = HEADING | {"seeds": [], "commit": "", "columns": ["seed"], "rows": [[1]]}
    path.write_text(json.dumps(other), encoding="utf-8")
    with pytest.raises(ValueError, match=r"has the columns \['seed'\], not \['claim'"):
        merge_rows(path, [row("sepo/one")], HEADING, list(CLAIMS))
    assert json.loads(path.read_text(encoding="utf-8")) == other
