"""Steps whose episodes several processes play are the steps of one; threads stand for processes."""

import threading

import pytest
from rollout.threads import together
from training.parity_tasks import Parity

from sepo_jax.forest import equal
from sepo_jax.rollout import Share
from sepo_jax.training import read_settings, reward_stage, sepo_stage
from sepo_jax.training.setup import make_domain, make_policy

pytestmark = pytest.mark.usefixtures("compile_fast")


def check_shared(monkeypatch, module, stage_of, params):
    """A step of two threads is that of this one, and each played its part."""
    alone = stage_of().data(1, params)
    own, counts = threading.local(), {}

    class Counted(Share):
        def played(self, requests, play):
            counts[self.index] = len(self.places(requests))
            counts["all"] = len(requests)
            return super().played(requests, play)

    monkeypatch.setattr(module, "rollout_share", lambda: own.share)

    def step(share):
        own.share = Counted(share.index, share.count, share.gather)
        return stage_of().data(1, params)

    for data in together(2, step):
        assert equal(data.forest, alone.forest)
        assert data.metrics == alone.metrics
        assert data.samples == alone.samples
    assert counts[0] + counts[1] == counts["all"] and min(counts.values()) >= 4
    return alone


def test_a_step_of_tasks(monkeypatch, small_config):
    small_config["sepo"]["steps"] = 0
    small_config["rl"] = {"steps": 3, "tasks_per_step": 3, "rollouts_per_task": 4}
    small_config["rollout"] |= {"prefill_widths": (32,), "capacity": 64}
    settings = read_settings(small_config)
    policy, params = make_policy(settings, Parity())

    def stage_of():
        return reward_stage.RewardStage(settings, policy, Parity())

    alone = check_shared(monkeypatch, reward_stage, stage_of, params)
    assert int(alone.forest.is_action.sum()) == 12


def test_a_step_of_a_game(monkeypatch, small_config):
    settings = read_settings(small_config)
    domain = make_domain(settings.domain)
    policy, params = make_policy(settings, domain)

    def stage_of():
        return sepo_stage.SepoStage(settings, policy, domain)

    alone = check_shared(monkeypatch, sepo_stage, stage_of, params)
    assert int(alone.forest.is_action.sum()) >= 16
