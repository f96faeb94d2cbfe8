"""The benchmark of rollouts runs with a small model; speed is the machine's and is not tested."""

import re
import statistics
import subprocess
import sys
from pathlib import Path
from types import SimpleNamespace

import numpy as np
import pytest
from script_modules import script_module

from sepo_jax.evaluation.results import load_result
from sepo_jax.policy import ModelConfig, Policy
from sepo_jax.rollout.play import ChatCodec
from sepo_jax.sandbox.episodes import EpisodeRequest, StopRules
from sepo_jax.sandbox.exchange import ExchangeShape, no_report
from sepo_jax.sandbox.in_process import InProcessPool
from sepo_jax.sandbox.protocol import Answer, Call, Failure, Turn

SCRIPT = Path(__file__).parents[2] / "experiments" / "benchmark_rollouts.py"
RESULT = SCRIPT.parent / "results" / "benchmark_rollouts.json"
WATCHDOG = 900  # seconds, on a busy machine


environment = script_module("rollout_environment")
lock_step = script_module("rollout_lock_step")
sides = script_module("rollout_sides")
plan = script_module("rollout_plan")


def run(*flags):
    command = [sys.executable, str(SCRIPT), *flags]
    return subprocess.run(command, capture_output=True, text=True, check=False, timeout=WATCHDOG)


@pytest.mark.slow
def test_quick_run_samples_the_same_on_both_sides_and_computes_a_shared_prompt_once():
    before = RESULT.read_bytes() if RESULT.exists() else None
    done = run("--quick")
    assert done.returncode == 0, done.stderr
    heading, *rows = (re.split(r"\s{2,}", line) for line in done.stdout.strip().splitlines())
    assert heading == plan.COLUMNS
    found = [dict(zip(heading, row, strict=True)) for row in rows]
    assert [(row["side"], row["sandbox ms"]) for row in found] == [
        ("engine", "0"), ("lock-step", "0"), ("engine", "20"), ("lock-step", "20"),
        ("host loop", "0"), ("in jit", "0"),
    ]  # fmt: skip
    # Two prompts for two groups of eight, one prompt where decoding alone is measured.
    names = ["prompt 0 0", "prompt 0 1"]
    prompts = [environment.random_tokens(name, environment.PROMPT_TOKENS, 64) for name in names]
    lengths = [len(prompt) - 1 for prompt in prompts]
    assert {row["prompt tokens prefilled"] for row in found[:4]} == {str(sum(lengths))}
    assert {row["prompt tokens prefilled"] for row in found[4:]} == {str(lengths[0])}
    for row in found:
        assert float(row["tokens/s"].replace(",", "")) > 0
        assert 0 < float(row["share decoding"]) <= 1
        assert 0 < float(row["share of slots with work"]) <= 1
    assert (RESULT.read_bytes() if RESULT.exists() else None) == before


def test_a_quick_run_is_not_written():
    done = run("--quick", "--write")
    assert done.returncode == 2
    assert "--quick" in done.stderr


def played(*tokens):
    actions = [SimpleNamespace(tokens=np.array(each, np.int32)) for each in tokens]
    return sides.Played(1.0, {}, [SimpleNamespace(actions=actions)])


def test_sides_that_sample_otherwise_are_named():
    sides.check_same([("engine", played([1, 2], [3])), ("lock-step", played([1, 2], [3]))])
    with pytest.raises(RuntimeError, match=r"episode 0.*lock-step.*engine"):
        sides.check_same([("engine", played([1, 2], [3])), ("lock-step", played([1, 2], [4]))])


def test_prompt_tokens_leave_out_what_follows_an_action():
    first = [SimpleNamespace(given=np.arange(5)), SimpleNamespace(given=np.arange(3))]
    second = [SimpleNamespace(given=np.arange(5))]
    results = [SimpleNamespace(actions=actions) for actions in (first, second)]
    once = sides.Played(2.0, {"prefilled_tokens": 4 + 3, "sampled_tokens": 10}, results)
    assert once.prompt_tokens == 4
    assert once.rate == 5.0


def test_latencies_have_their_mean_and_their_outliers():
    drawn = [environment.latency(seed, turn, 0.2) for seed in range(5000) for turn in range(4)]
    slow = [seconds for seconds in drawn if seconds == environment.OUTLIER_SECONDS]
    assert len(slow) / len(drawn) == pytest.approx(environment.OUTLIERS, rel=0.3)
    usual = [seconds for seconds in drawn if seconds != environment.OUTLIER_SECONDS]
    assert statistics.mean(usual) == pytest.approx(0.2, rel=0.02)
    assert statistics.stdev(map(np.log, usual)) == pytest.approx(environment.SPREAD, rel=0.05)
    assert environment.latency(3, 1, 0.2) == environment.latency(3, 1, 0.2)
    assert {environment.latency(seed, 0, 0.0) for seed in range(500)} == {0.0}


def test_an_episode_of_the_environment(tmp_path):
    task = {"prompt": "0 1", "turns": 2, "vocabulary": 9, "latency": 0.0}
    one, other = environment.SlowEnvironment(tmp_path), environment.SlowEnvironment(tmp_path)
    first, same_prompt = one.reset(task, 5), other.reset(task, 6)
    assert first == same_prompt  # equal for the group
    between = environment.PROMPT_TOKENS
    assert between[0] <= len(first.prompts[0].tokens) <= between[1]
    second, other_second = one.step({0: ""}), other.step({0: ""})
    assert second.prompts[0].continues and second != other_second
    assert max(second.prompts[0].tokens) < 9
    assert one.step({0: ""}) == Turn(done=True)


def test_actions_are_as_long_as_their_keys_say():
    def first_limits(seed):
        task = {"prompt": "0", "turns": 1, "vocabulary": 9, "latency": 0.0}
        shape = ExchangeShape(slots=8, widths=(16, 128))
        with InProcessPool(environment.SlowEnvironment) as pool:
            queue = sides.DrawnLengths(
                pool,
                [EpisodeRequest(task, index, member=index) for index in range(8)],
                [ChatCodec(Policy(ModelConfig(vocab_size=9)))],
                shape,
                StopRules(24, 300),
                seed=seed,
                least_and_most=(8, 24),
            )
            (commands,) = queue.exchange(0, (no_report(shape),))
        assert commands.start.all()
        return commands.limit.tolist()

    drawn = first_limits(0) + first_limits(1)
    assert drawn[:8] == first_limits(0) and drawn[:8] != drawn[8:]
    assert min(drawn) >= 8 and max(drawn) <= 24 and len(set(drawn)) > 4


class Recorder:
    """A pool that answers when the test says so."""

    def __init__(self):
        self.counters, self.asked, self.ready = {}, [], []

    def submit(self, call):
        if call.kind != "close":
            self.asked.append(call)

    def answer(self, *episodes, failure=None):
        for episode in episodes:
            call = next(call for call in self.asked if call.episode == episode)
            self.asked.remove(call)
            turn = None if failure else Turn(done=True)
            self.ready.append(Answer(call.number, episode, turn=turn, failure=failure))

    def take(self):
        ready, self.ready = self.ready, []
        return ready

    def wait(self, seconds):
        return bool(self.ready)


def episodes_of(calls):
    return sorted(call.episode for call in calls)


def test_lock_step_turns_begin_and_end_together():
    inner = Recorder()
    pool = lock_step.LockStepPool(inner, episodes=3, batch=2)
    pool.submit(Call(1, 1, "reset"))
    assert not inner.asked
    pool.submit(Call(2, 2, "reset"))
    assert episodes_of(inner.asked) == [1, 2]
    inner.answer(2)
    assert pool.take() == [] and not pool.wait(0.01)
    inner.answer(1)
    assert pool.wait(0.01) and episodes_of(pool.take()) == [1, 2]
    assert not pool.wait(0)

    pool.submit(Call(3, 2, "step", {0: ""}))
    assert not inner.asked  # episode 1 has not acted
    pool.submit(Call(4, 1, "step", {0: ""}))
    assert episodes_of(inner.asked) == [1, 2]
    inner.answer(1, 2)
    assert episodes_of(pool.take()) == [1, 2]

    pool.submit(Call(5, 1, "close"))
    pool.submit(Call(6, 3, "reset"))
    assert not inner.asked  # the first batch still plays
    pool.submit(Call(7, 2, "close"))
    assert episodes_of(inner.asked) == [3]  # the last batch is smaller


def test_lock_step_goes_on_without_a_failed_episode():
    inner = Recorder()
    pool = lock_step.LockStepPool(inner, episodes=2, batch=2)
    for episode in (1, 2):
        pool.submit(Call(episode, episode, "reset"))
    inner.answer(1, failure=Failure("timeout", "slow"))
    inner.answer(2)
    assert episodes_of(pool.take()) == [1, 2]
    pool.submit(Call(3, 2, "step", {0: ""}))
    assert not inner.asked
    pool.submit(Call(4, 1, "close"))
    assert episodes_of(inner.asked) == [2]


def test_a_written_table_reads_back(tmp_path, monkeypatch):
    monkeypatch.setattr(plan, "RESULT", tmp_path / "table.json")
    (contest,) = plan.against_lock_step(16, 8, [0.02], 1, "in_jit")
    figures = {"sampled_tokens": 30, "prefilled_tokens": 7, "decoding_share": 0.5}
    figures["busy_share"] = 0.25
    plays = {
        name: sides.Played(seconds, figures, [])
        for name, seconds in ((plan.ENGINE, 2.0), (plan.LOCK_STEP, 6.0))
    }
    rows = plan.table_rows("tiny", contest, plays)
    work = "tiny: 16 episodes, 8 slots"
    assert rows == [
        [work, 20, "engine", 15.0, 0.5, 0.25, 7, 2.0, 3.0],
        [work, 20, "lock-step", 5.0, 0.5, 0.25, 7, 6.0, 1.0],
    ]
    written = load_result(plan.write_table(rows, "random weights", "in_jit", 4))
    assert written["rows"] == rows and written["seeds"] == [4]
    assert "random weights" in written["notes"] and "{" not in written["notes"]
    assert "--driver=in_jit --seed=4" in written["command"]


def test_decoding_alone_has_no_lock_step():
    contest = plan.decoding(8, 24, 1)
    figures = {"sampled_tokens": 30, "prefilled_tokens": 7, "decoding_share": 1, "busy_share": 1}
    rows = plan.table_rows("tiny", contest, {"in jit": sides.Played(2.0, figures, [])})
    assert rows[0][-1] is None


def test_published_result_is_complete():
    if not RESULT.exists():
        pytest.skip("not measured yet")
    assert load_result(RESULT)["columns"] == plan.COLUMNS
