"""The benchmark of scaling runs with a small model; speed is the machine's and is not tested."""

import os
import re
import subprocess
import sys
from pathlib import Path

import pytest
from script_modules import script_module

from sepo_jax.evaluation.results import load_result
from sepo_jax.rollout import Branching

SCRIPT = Path(__file__).parents[2] / "experiments" / "benchmark_scaling.py"
RESULTS = SCRIPT.parent / "results"
WATCHDOG = 900  # seconds, on a busy machine
WRITTEN = ("benchmark_scaling.json", "benchmark_scaling_devices.json")


work = script_module("scaling_work")
growth = script_module("scaling_growth")
devices = script_module("scaling_devices")
tables = script_module("scaling_tables")


def run(*flags):
    command = [sys.executable, str(SCRIPT), *flags]
    # Compiling is most of the time, and nothing here is measured.
    variables = {**os.environ, "JAX_DISABLE_MOST_OPTIMIZATIONS": "1"}
    return subprocess.run(
        command, capture_output=True, text=True, check=False, timeout=WATCHDOG, env=variables
    )


def rows_of(done):
    """Rows that were printed, by their columns; numbers as such, None where there is none."""
    assert done.returncode == 0, done.stderr
    lines = [line for line in done.stdout.splitlines() if line.strip()]
    heading, *rows = (re.split(r"\s{2,}", line.strip()) for line in lines)
    return [dict(zip(heading, map(value_of, row), strict=True)) for row in rows]


def value_of(cell):
    try:
        return None if cell == "–" else float(cell.replace(",", ""))
    except ValueError:
        return cell


@pytest.mark.slow
def test_what_is_shared_grows_by_new_tokens_only():
    before = {name: (RESULTS / name).exists() for name in WRITTEN}
    rows = rows_of(run("--quick", "--part=growth", "--repetitions=1"))

    def counts(growing, size, side):
        (row,) = (
            row
            for row in rows
            if (row["growing"], row["size"], row["side"]) == (growing, size, side)
        )
        return [row[name] for name in growth.COUNTS]

    # Replies of 4 to prompts of 16; the last token of a prompt is computed when its reply begins.
    samples = "samples of a prompt"
    assert counts(samples, 2, "shared") == [2 * 4, 15, 16 + 2 * 4]
    assert counts(samples, "2 to 4", "shared") == [2 * 4, 0, 2 * 4]
    assert counts(samples, "2 to 4", "separate") == [2 * 4, 2 * 15, 2 * (16 + 4)]
    prompts = "tokens of a prompt"
    assert counts(prompts, "16 to 24", "shared") == [0, 8, 8]
    assert counts(prompts, "16 to 24", "separate") == [0, 2 * 8, 2 * 8]
    # Four turns of 2 tokens, observations of 2 between them; from the trunk fork the last three,
    # the last two and the last one of its turns.
    leaves, path, forks = "leaves of a tree", 16 + 4 * 2 + 3 * 2, 6 * 2 + 3 * 2
    assert counts(leaves, 4, "shared") == [10 * 2, 15 + 6 + 6, path + forks]
    assert counts(leaves, 4, "separate") == [4 * 4 * 2, 4 * (15 + 6), 4 * path]
    slots = "slots of the engine"
    for side in ("shared", "separate"):
        assert counts(slots, 2, side) == counts(slots, 4, side)
    assert all(row["step s"] > 0 for row in rows if row["side"] in ("shared", "separate")
               and isinstance(row["size"], float))  # fmt: skip
    assert {name: (RESULTS / name).exists() for name in WRITTEN} == before


@pytest.mark.slow
def test_every_layout_of_devices_does_the_same_work():
    rows = rows_of(run("--quick", "--part=devices", "--repetitions=1"))
    assert [(row["devices"], row["side"]) for row in rows] == [
        (2, "one device"), (2, "pmap"), (2, "mesh")
    ]  # fmt: skip
    # One group of two replies of 4 to a prompt of 16, for each of two devices.
    assert {row["tokens in the update"] for row in rows} == {2 * (16 + 2 * 4)}
    assert [row["tokens sampled"] for row in rows] == [2 * 2 * 4, 2 * 2 * 4, None]
    for row in rows:
        assert row["update s"] > 0
        assert row["update s a device"] == pytest.approx(row["update s"] / 2, rel=1e-2)
    assert rows[0]["update times one"] == rows[0]["generate times one"] == 1


@pytest.mark.parametrize("flag", ["--quick", "--part=growth"])
def test_less_than_a_full_run_is_not_written(flag):
    done = run(flag, "--write")
    assert done.returncode == 2
    assert "leave out --quick and --part" in done.stderr


def test_episodes_are_as_long_as_they_are_asked_to_be(tmp_path):
    shape = work.Shape(2, prompt=7, reply=3, observation=4, turns=2)
    assert shape.path == 7 + 2 * 3 + 4
    first, second = shape.requests(work.SEPARATE, vocabulary=50)
    turns = []
    for request in (first, second):
        environment = work.TokenEnvironment(tmp_path)
        turns.append(environment.reset(request.task, request.seed).prompts[0])
        more = environment.step({0: "x"})
        assert len(turns[-1].tokens) == 7 and len(more.prompts[0].tokens) == 4
        assert more.prompts[0].continues and not more.done
        assert environment.step({0: "x"}).done
    assert turns[0].tokens[0] != turns[1].tokens[0]
    one, other = shape.requests(work.SHARED, vocabulary=50)
    assert one.task == other.task and (one.member, other.member) == (0, 1)


def test_a_tree_begins_with_its_trunk():
    shape = work.tree(3, 4, prompt=7, reply=3, turns=4)
    assert shape.group == 1 + 3 * 3 and shape.branching == Branching(3, 4)
    (trunk,) = shape.requests(work.SHARED, vocabulary=50)
    assert trunk.keep_snapshots
    assert len(shape.requests(work.SEPARATE, vocabulary=50)) == 10
    assert shape.options().slots == 10 and shape.options().capacity == shape.path


@pytest.mark.parametrize("quick", [True, False])
def test_sizes_ascend_and_name_their_shapes(quick):
    axes = work.axes(quick)
    assert [axis.name for axis in axes] == [
        "samples of a prompt", "tokens of a prompt", "leaves of a tree", "slots of the engine"
    ]  # fmt: skip
    for axis in axes:
        assert list(axis.shapes) == sorted(axis.shapes)
    samples, prompts, leaves, slots = (axis.shapes for axis in axes)
    assert all(shape.group == size for size, shape in [*samples.items(), *leaves.items()])
    assert all(shape.prompt == size for size, shape in prompts.items())
    assert all(shape.options().slots == size for size, shape in slots.items())


def measured(counts, seconds):
    return growth.Measured(counts, seconds)


def test_medians_refuse_other_work():
    steps = [measured((8, 15, 24), (second, 1.0, None)) for second in (3.0, 1.0, 2.0)]
    assert growth.medians(steps) == measured((8, 15, 24), (2.0, 1.0, None))
    assert steps[0].cells == [8, 15, 24, 3.0, 1.0, None, 4.0]
    with pytest.raises(RuntimeError, match="other numbers of tokens"):
        growth.medians([*steps, measured((8, 16, 24), (1.0, 1.0, None))])


def test_rows_of_growth_end_with_what_the_largest_takes_beyond_the_smallest():
    found = {
        2: {"shared": measured((8, 15, 24), (1.0, 2.0, 3.0)),
            "separate": measured((8, 30, 40), (2.0, 2.0, 6.0))},
        4: {"shared": measured((16, 15, 32), (1.5, 3.0, 4.0)),
            "separate": measured((16, 60, 80), (4.0, 4.0, 12.0))},
    }  # fmt: skip
    rows = growth.growth_rows(work.Axis("samples", {}), found)
    assert rows[2] == ["samples", 2, "times less", 1, 2, 40 / 24, 2, 1, 2, 10 / 6]
    assert rows[6:] == [
        ["samples", "2 to 4", "shared", 8, 0, 8, 0.5, 1.0, 1.0, 2.5],
        ["samples", "2 to 4", "separate", 8, 30, 40, 2.0, 2.0, 6.0, 10.0],
        ["samples", "2 to 4", "times less", 1, None, 5, 4, 2, 6, 4],
    ]
    assert all(len(row) == len(growth.COLUMNS) for row in rows)
    assert growth.growth_rows(work.Axis("samples", {}, adds=False), found) == rows[:6]


def answers(generate, update):
    return [
        {"generate": g, "update": u, "sampled": None if g is None else 16, "computed": 48}
        for g, u in zip(generate, update, strict=True)
    ]


def device_rows():
    return devices.device_rows(
        2,
        {
            "one device": answers([4.0, 2.0, 3.0], [1.0, 1.0, 9.0]),
            "mesh": answers([None] * 3, [5.0, 2.0, 1.0]),
        },
    )


def test_layouts_are_compared_with_one_device_that_does_all():
    assert device_rows() == [
        [2, "one device", 16, 48, 3.0, 1.5, 1.0, 1.0, 0.5, 1.0],
        [2, "mesh", None, 48, None, None, None, 2.0, 1.0, 2.0],
    ]
    assert all(len(row) == len(devices.COLUMNS) for row in device_rows())


def test_work_grows_with_the_devices_and_one_does_the_work_of_all():
    for count in (1, 4):
        loads = devices.loads(False, count, seed=3)
        assert {load.prompts for load in loads.values()} == {2 * count}
        assert [load.devices for load in loads.values()] == [1, count, count]


def test_written_tables_read_back_and_draw_the_same_figure(tmp_path):
    shared, separate = measured((8, 15, 24), (1.0, 2.0, 3.0)), measured((8, 30, 40), (2.0,) * 3)
    found = {size: {"shared": shared, "separate": separate} for size in (2, 4)}
    rows = {"growth": growth.growth_rows(work.Axis("samples of a prompt", {}), found)}
    rows["devices"] = device_rows()
    paths = tables.write_tables(rows, 3, 4, tmp_path)
    assert [path.name for path in paths] == [*WRITTEN, "benchmark_scaling.svg"]
    for path, part in zip(paths, rows, strict=False):
        written = load_result(path)
        assert written["rows"] == rows[part] and written["columns"] == tables.COLUMNS[part]
        assert "{" not in written["notes"] and "edians of 3" in written["notes"]
        assert written["command"].endswith("--repetitions=3 --seed=4 --write")
    figure = paths[-1].read_bytes()
    for label in (b"samples of a prompt", b"equal work for each: update", b"one device, all the"):
        assert label in figure
    assert tables.write_tables(rows, 3, 4, tmp_path)[-1].read_bytes() == figure


@pytest.mark.parametrize(("name", "part"), [*zip(WRITTEN, ("growth", "devices"), strict=True)])
def test_published_result_is_complete(name, part):
    if not (RESULTS / name).exists():
        pytest.skip("not measured yet")
    assert load_result(RESULTS / name)["columns"] == tables.COLUMNS[part]
    assert (RESULTS / "figures" / "benchmark_scaling.svg").exists()
