"""Dry runs: what fits, what to change, and whole reports of CPU devices."""

import dataclasses
import functools
import importlib.util
import subprocess
import sys
from pathlib import Path

import jax
import jax.numpy as jnp
import pytest

from sepo_jax.evaluation.results import load_result
from sepo_jax.rollout import engine
from sepo_jax.training import chips, read_settings
from sepo_jax.training.chips import CHIPS, GIB, Chip, describe_topology, devices_for
from sepo_jax.training.dry_run import batch_shapes, compile_row, dry_run, memory_of_error
from sepo_jax.training.dry_run_report import KINDS, Report, Row, least_times
from sepo_jax.training.dry_run_results import write_row
from sepo_jax.training.dry_run_shapes import bytes_per_chip, shape_policy
from sepo_jax.training.dry_run_sizes import Sizes, default_sizes
from sepo_jax.training.dry_run_tables import render
from sepo_jax.training.hlo import Collective, Work
from sepo_jax.training.sepo_stage import SepoStage
from sepo_jax.training.setup import make_domain

ROOT = Path(__file__).resolve().parents[2]
CHIP = Chip("test chip", memory=100.0, flops=10.0, bandwidth=5.0, links=2.0)
TINY = Sizes(rows=4, row_length=16, actions=4, segments=3, capacity=16)


def report_of(*rows, settings=None, sizes=TINY, chip=CHIP, kind="pmap", **fields):
    settings = read_settings(settings or {})
    defaults = {"num_chips": 4, "num_parameters": 1, "state_bytes": 12}
    return Report(rows, chip, kind=kind, settings=settings, sizes=sizes, **{**defaults, **fields})


def test_fit_counts_everything_that_lives_at_once():
    row = Row(
        "update", 1, resident=10, arguments=40, outputs=40, aliased=35, temporaries=40, code=5
    )
    assert row.total == 100
    assert row.fits(CHIP)
    assert not dataclasses.replace(row, code=6).fits(CHIP)
    assert not Row("update", 1, arguments=1, error="RESOURCE_EXHAUSTED").fits(CHIP)
    assert Row("update", 1, resident=1, arguments=5, error="refused", needed=7).total == 8
    assert report_of(row).fits is True
    assert report_of(row, Row("decode", 1, arguments=101)).fits is False
    # An unknown device has no verdict.
    assert report_of(row, chip=None).fits is None


def test_advice_names_fields_of_the_config_that_help():
    refused = Row("update", 4, arguments=90, error="RESOURCE_EXHAUSTED: x")
    # 16 bytes for each of 10 parameters do not fit 100 bytes; halves of four chips do.
    (line,) = report_of(refused, num_parameters=10, state_bytes=120).advice()
    assert "parallel.kind=mesh parallel.fsdp=4" in line
    assert "policy.remat=layer" in line and "policy.compute_dtype=bfloat16" in line
    (line,) = report_of(refused, num_parameters=1000, state_bytes=12000).advice()
    assert "a slice of 512 chips" in line
    # The state fits, the activations do not: smaller micro-batches as long as there are rows.
    settings = {"policy": {"remat": "layer", "compute_dtype": "bfloat16"}}
    sizes = dataclasses.replace(TINY, rows=16)
    (line,) = report_of(refused, settings=settings, sizes=sizes).advice()
    assert line == "update: optimizer.micro_batches=2: 4 rows at a time on each chip"
    (line,) = report_of(Row("decode", 1, arguments=101)).advice()
    assert "rollout.slots=64" in line
    assert report_of(Row("update", 1)).advice() == []


def test_kinds_add_up_to_the_total():
    row = Row(
        "update", 1, resident=10, arguments=40, outputs=40, aliased=35, temporaries=40, code=5,
        kinds={"parameters": 30, "optimizer": 20},
    )  # fmt: skip
    assert row.by_kind == {
        "parameters": 30, "optimizer": 20, "cache": 0, "batch": 0, "activations": 40, "other": 10,
    }  # fmt: skip
    # Of a refused one all that is not known is the compiler's.
    refused = dataclasses.replace(row, error="RESOURCE_EXHAUSTED", needed=200)
    assert refused.by_kind["activations"] == 210 - 50 and refused.by_kind["other"] == 0
    assert tuple(row.by_kind) == KINDS and sum(row.by_kind.values()) == row.total


def test_a_step_takes_each_function_as_often_as_it_runs():
    def row(name, seconds):
        return Row(name, 1, work=Work(0.0, 0.0, seconds * CHIP.bandwidth, {}, 0))

    rollout = {"slots": 4, "prefill_rows": 2, "prefill_widths": (8,), "capacity": 16}
    settings = {"rollout": rollout, "optimizer": {"updates_per_batch": 3}}
    # 10 tokens in 4 slots are 3 steps; 40 tokens 16 at a time are 3 calls.
    sizes = dataclasses.replace(TINY, sampled=10, given=40)
    rows = [row("update", 1.0), row("score", 0.5), row("fuse", 0.25), row("prefill", 2.0)]
    rows += [row("decode", 4.0)]
    found = report_of(*rows, settings=settings, sizes=sizes)
    assert found.step_times() == {"generate": 0.25 + 3 * 2 + 3 * 4, "score": 0.5, "update": 3.0}
    assert "least time of a step: 21.8 s (generate 18.2" in render(found)
    # Of two hosts each plays a half: 5 tokens in 4 slots, and 20 tokens, are 2 calls each.
    halves = dataclasses.replace(found, num_hosts=2).step_times()
    assert halves["generate"] == 0.25 + 2 * 2 + 2 * 4 and halves["update"] == 3.0
    # Supervised steps play nothing, and what was refused or is not known has no time.
    assert report_of(*rows, settings=settings).step_times()["generate"] == 0
    assert report_of(*rows, settings=settings, sizes=sizes, chip=None).step_times() is None
    part = report_of(rows[0], settings=settings, sizes=sizes, parts=("update",))
    assert part.step_times() is None and "verdict: fits, of update alone" in render(part)
    rows[0] = Row("update", 1, error="RESOURCE_EXHAUSTED")
    assert report_of(*rows, settings=settings, sizes=sizes).step_times() is None


def test_least_times_divide_work_by_the_peaks():
    collectives = {"all-reduce": Collective(1, 4), "all-gather": Collective(1, 2)}
    times = least_times(Work(10.0, 20.0, 30.0, collectives, 0), CHIP)
    assert times == (2.0, 6.0, 5.0)  # an all-reduce crosses twice
    assert times.least == 6.0


def test_memory_that_a_refusal_names():
    text = "RESOURCE_EXHAUSTED: the total memory required (31.5G) exceeds available HBM (15.75G)."
    assert memory_of_error(text) == 31.5 * GIB
    assert memory_of_error("Used 2.5M of 1.0M hbm") == 2.5 * 2**20
    assert memory_of_error("something else") is None


def test_refusals_for_memory_become_rows_and_others_stay_errors():
    class Refusing:
        def __init__(self, message):
            self.message = message

        def lower(self, *shapes):
            raise jax.errors.JaxRuntimeError(self.message)

    shapes = (jax.ShapeDtypeStruct((3, 5), jnp.float32),)
    refusal = Refusing("RESOURCE_EXHAUSTED: (1K) exceeds available HBM")
    row, program = compile_row("update", 2, refusal, shapes, resident=7)
    assert (row.arguments, row.total, program) == (60, 7 + 1024, None)
    assert "does not fit" in render(report_of(row, state_bytes=7))
    with pytest.raises(jax.errors.JaxRuntimeError, match="INTERNAL"):
        compile_row("update", 2, Refusing("INTERNAL: broken"), shapes)


def test_sizes_of_a_config(small_config):
    settings = read_settings(small_config)
    sizes = default_sizes(settings)
    # Two groups for each opponent, two replies of four tokens in each.
    opponents = sizes.rows // 2
    assert sizes == Sizes(2 * opponents, 256, 8, 3, 256, sizes.sampled, sizes.given)
    # Each of four episodes an opponent of four tokens at most, in a slot of 256.
    assert (sizes.sampled, sizes.given) == (4 * opponents * 4, 4 * opponents * 252)
    assert default_sizes(settings, rows=5, row_length=32, actions=7).rows == 5
    supervised = read_settings({**small_config, "sepo": {"steps": 0}})
    assert default_sizes(supervised).rows == 8
    tasks = {**small_config, "sepo": {"steps": 0}, "rl": {"steps": 1, "tasks_per_step": 5}}
    # Eight episodes of each task, one a row of 256; 128 tokens of replies of four.
    halves = {"sampled": 40 * 128, "given": 40 * 128}
    assert default_sizes(read_settings(tasks)) == Sizes(40, 256, 128, 65, 256, **halves)
    assert default_sizes(read_settings(tasks), row_length=512).rows == 20
    # A team opens a context for every output: three solvers, verifier, selector, reviser.
    team = read_settings({**tasks, "domain": {"name": "math"}})
    assert default_sizes(team).rows == 6 * 40
    # Where decisions of a round are compared each is a context of its own, two in a row of 512.
    rounds = {"sepo": {**small_config["sepo"], "group_by": "round", "credit": "per_rollout"}}
    rounds |= {"domain": {"name": "ipd"}, "rollout": {**small_config["rollout"], "row_length": 512}}
    game = read_settings(
        {**small_config, **rounds, "sepo": {**rounds["sepo"], "exploiter_pool": ()}}
    )
    plan = SepoStage(game, None, make_domain(game.domain)).plan
    (pools,) = plan.pools
    trained = 4 * len(pools["train"])
    others = trained * (len(pools["exploiter"]) + len(pools.get("collusive", ())))
    found = default_sizes(game)
    assert found.rows == 8 * trained // 2 and found.actions == 2 * 4 and found.segments == 4
    assert found.sampled == 8 * (trained + others) * 4
    with pytest.raises(ValueError, match="no room for 32 action tokens"):
        default_sizes(settings, row_length=32, actions=32)
    with pytest.raises(ValueError, match="rows must be at least 1, got 0"):
        default_sizes(settings, rows=0)
    batch = batch_shapes(dataclasses.replace(TINY, rows=10), (2, 3), None)
    assert batch.tokens.shape == (2, 3, 2, 16) and batch.path.shape == (2, 3, 2, 3, 2)


@pytest.mark.parametrize("kind", ["pmap", "mesh"])
def test_report_of_local_devices(small_config, kind):
    small_config["parallel"] = {"kind": kind, "devices": 2, "fsdp": 2 if kind == "mesh" else 1}
    small_config["algorithm"] = {"name": "grpo", "overrides": {"kl_weight": 0.1}}
    small_config["rollout"] |= {"slots": 4, "exchange_interval": 2}
    settings = read_settings(small_config)
    report = dry_run(settings, jax.devices(), TINY, chip=CHIPS["TPU v5 lite"])
    rows = {row.name: row for row in report.rows}
    assert tuple(rows) == ("update", "score", "fuse", "prefill", "decode") and report.fits is True
    assert {rows[name].chips for name in ("score", "fuse", "prefill", "decode")} == {
        1 if kind == "pmap" else 2
    }
    update = rows["update"]
    assert update.error is None and update.chips == 2 and report.num_chips == 2
    # Gradients are summed over the devices: at least 4 bytes a parameter cross.
    reduced = update.work.collectives["all-reduce"].num_bytes
    assert reduced >= 4 * report.num_parameters * (1 if kind == "pmap" else 0.4)
    # A chip holds parameters, two moments and the reference policy: whole, or about half of them.
    held = 16 * report.num_parameters * (1 if kind == "pmap" else 0.5)
    assert report.state_bytes == pytest.approx(held, rel=0.05)
    assert update.arguments + update.resident >= report.state_bytes
    # Generation has the parameters whole beside them, or on a mesh those that lie there.
    whole, part = 4 * report.num_parameters, 1 if kind == "pmap" else 0.5
    copied = whole if kind == "pmap" else 0
    assert rows["decode"].resident == report.state_bytes + copied
    assert rows["fuse"].resident == rows["score"].resident
    beside = report.state_bytes + copied - rows["fuse"].resident
    assert beside == pytest.approx(part * whole, rel=0.05)
    # Their decoding form and the slots: whole, or about half of them.
    policy = shape_policy(settings.policy)
    slots = jax.eval_shape(functools.partial(engine.init_slots, policy, 4, TINY.capacity))
    assert rows["decode"].kinds["cache"] == pytest.approx(part * bytes_per_chip(slots), rel=0.05)
    formed = rows["decode"].arguments - rows["decode"].kinds["cache"]
    assert formed == pytest.approx(part * whole, rel=0.05)
    # The loops over tokens and calls are counted once.
    assert rows["decode"].work.flops > 0 and rows["decode"].work.unknown_loops == 1
    assert rows["prefill"].work.flops > 0 and rows["prefill"].work.unknown_loops == 1
    text = render(report)
    for part in ("all-reduce", "temporaries", "verdict: fits", f"parallel.kind={kind}"):
        assert part in text


def test_frozen_parameters_have_no_gradient_and_no_moments(small_config):
    small_config["policy"] |= {"lora_rank": 2, "param_dtype": "bfloat16"}
    small_config["algorithm"] = {"name": "grpo", "overrides": {"kl_weight": 0.1}}
    small_config["rollout"] |= {"slots": 4, "exchange_interval": 2}
    report = dry_run(read_settings(small_config), jax.devices()[:1], TINY, chip=CHIP)
    rows = {row.name: row for row in report.rows}
    # Four projections of width 16 (queries and outputs) and 8 (keys and values), rank 2.
    assert report.num_trained == 2 * (2 * (16 + 16) + 2 * (16 + 8))
    assert report.frozen_bytes == 2 * (report.num_parameters - report.num_trained)
    # Two moments, the adapter and two or three counters in four bytes each; the reference is the
    # frozen part itself.
    assert 0 <= report.state_bytes - report.frozen_bytes - 12 * report.num_trained <= 16
    # Generation reads the parameters where they lie.
    assert rows["decode"].resident == report.state_bytes
    assert "of which 0.0 M are trained" in render(report)


def test_nothing_is_materialised(small_config):
    # 7 billion parameters of shapes: the sizes are known in seconds, without memory for them.
    small_config["policy"] |= {
        "vocab_size": 32000, "hidden_size": 4096, "num_layers": 32, "num_heads": 32,
        "num_kv_heads": 32, "intermediate_size": 11008,
    }  # fmt: skip
    policy = shape_policy(read_settings(small_config).policy)
    params = jax.eval_shape(policy.init, jax.random.key(0))
    # Llama 2 7B (6,738,415,616) less its separate output projection of 32000 * 4096.
    assert sum(leaf.size for leaf in jax.tree.leaves(params)) == 6_738_415_616 - 32000 * 4096


def test_a_recurrent_policy_takes_a_context_a_row(small_config):
    small_config["policy"] = {"source": "qwen3.5-4b"}
    small_config["rollout"] |= {"row_length": 2048, "capacity": 512}
    tasks = {"sepo": {"steps": 0}, "rl": {"steps": 1, "tasks_per_step": 5}}
    sizes = default_sizes(read_settings({**small_config, **tasks}))
    assert (sizes.rows, sizes.row_length) == (40, 512)
    small_config["policy"] = {"source": "qwen3-4b"}
    sizes = default_sizes(read_settings({**small_config, **tasks}))
    assert (sizes.rows, sizes.row_length) == (10, 2048)


def test_figures_go_into_a_results_file(tmp_path):
    refused = Row("decode", 1, arguments=GIB, error="RESOURCE_EXHAUSTED", needed=2 * GIB)
    update = Row(
        "update", 4, arguments=3 * GIB, temporaries=GIB, seconds=1.6,
        work=Work(2e12, 2e12, 1.0, {"all-gather": Collective(1, 5 * 10**9)}, 0),
        kinds={"parameters": 2 * GIB, "optimizer": GIB},
    )  # fmt: skip
    chip = CHIP._replace(memory=8.0 * GIB)
    report = report_of(update, refused, chip=chip, num_parameters=7 * 10**9)
    path = tmp_path / "dry_run.json"
    for target in ("v5p:2x2x4", "v5e:4x4", "v5p:2x2x4"):
        write_row(report, "configs/a.py", target, path)
    result = load_result(path)
    assert [row[1] for row in result["rows"]] == ["v5e:4x4", "v5p:2x2x4"]
    row = dict(zip(result["columns"], result["rows"][0], strict=True))
    assert (row["parameters, 10^9"], row["parameters"], row["optimizer"]) == (7.0, 2.0, 1.0)
    assert (row["activations"], row["update"], row["of"]) == (1.0, 4.0, 8.0)
    assert row["generate"] == "> 2.0" and row["fits"] is False and row["score"] is None
    assert (row["update, TFLOP"], row["update, links GB"]) == (2.0, 5.0)
    assert row["compiled in, CPU s"] == 2
    write_row(dataclasses.replace(report, parts=("update",)), "configs/b.py", "v5e:4x4", path)
    assert "no, update alone" in load_result(path)["rows"][-1]
    estimated = dataclasses.replace(report, estimated=True)
    write_row(estimated, "configs/a.py", "h100x8", path)
    assert load_result(path)["rows"][0][1] == "h100x8, estimate"


def test_devices_are_those_named_or_those_meant():
    meant = read_settings({"parallel": {"topology": "v5p:2by2"}}).parallel
    with pytest.raises(ValueError, match="'v5p:2by2' is not of the form"):
        devices_for(meant)
    with pytest.raises(ValueError, match="'v5e' is not of the form"):
        devices_for(meant, "v5e")
    assert devices_for(meant, "local") == devices_for(read_settings({}).parallel) == jax.devices()


def test_topologies_that_cannot_be_described(monkeypatch):
    with pytest.raises(ValueError, match=r"not of the form.*v5e:2x2"):
        describe_topology("v5e")
    with pytest.raises(ValueError, match="v5e"):
        describe_topology("v5f:2x2")
    monkeypatch.setitem(sys.modules, "libtpu", None)
    with pytest.raises(ModuleNotFoundError, match=r"pip install sepo_jax\[tpu\]"):
        describe_topology("v5e:2x2")
    assert chips.chip_of(jax.devices()[0]) is None


def test_main_tells_what_is_missing():
    program = [sys.executable, "experiments/dry_run.py", "--config=configs/sepo/kuhn.py"]
    topology = "v5e:2x2" if importlib.util.find_spec("libtpu") is None else "v5e:2by2"
    run = subprocess.run(
        [*program, f"--topology={topology}"], cwd=ROOT, capture_output=True, text=True
    )
    assert run.returncode == 2
    assert len(run.stderr.strip().splitlines()) == 1
    assert "libtpu" in run.stderr or "not of the form" in run.stderr


@pytest.mark.parametrize(
    ("given", "message"),
    [
        (["--gpu=h100x8", "--topology=v5e:2x2"], "give one"),
        (["--write", "--topology=local"], "--write is of a slice or of GPUs"),
    ],
)
def test_flags_that_do_not_go_together(given, message):
    program = [sys.executable, "experiments/dry_run.py", "--config=configs/sepo/kuhn.py"]
    run = subprocess.run([*program, *given], cwd=ROOT, capture_output=True, text=True)
    assert run.returncode == 2 and message in run.stderr


def test_update_and_generation_compile_for_a_slice(small_config):
    pytest.importorskip("libtpu")
    with pytest.raises(ValueError, match=r"refused by libtpu.*3x5"):
        describe_topology("v5e:3x5")
    small_config["parallel"] = {"kind": "mesh", "fsdp": 2}
    report = dry_run(read_settings(small_config), describe_topology("v5e:2x2"), TINY)
    assert report.chip.name == "TPU v5e" and report.num_chips == 4 and report.fits is True
    assert report.rows[0].work.collectives
