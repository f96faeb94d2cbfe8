"""The mean row of a sweep."""

from script_modules import script_module


def test_the_mean_row_has_students_interval():
    # Seed column and minutes are left out; 1, 2, 3 have s = 1 and t(0.975, 2) / sqrt(3) = 2.484.
    rows = [[0, 1.0, 5.0, 1.2], [1, 2.0, 5.0, 1.3], [2, 3.0, 5.0, None]]
    assert script_module("sweep").mean_row(rows) == ["mean", "2 ± 2.5", "5 ± 0", None]
