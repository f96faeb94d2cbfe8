"""A script in the place of the rollouts of training."""

import numpy as np

from sepo_jax.rollout import Rollout
from sepo_jax.sandbox.episodes import Action, EpisodeResult
from sepo_jax.sandbox.protocol import Failure
from sepo_jax.training import sepo_stage


def scripted(monkeypatch, reply, lost=()):
    """Puts a player in the place of `rollout.play`, which answers by `reply(request)`, or with the
    first legal action; episodes at the `lost` places of a call fail. Returns its calls, a list of
    requests each."""
    calls = []

    def play(policy, params, requests, environments, options, *, seed, step, share, progress):
        calls.append(list(requests))
        environment, results = environments(None), []
        for place, request in enumerate(requests):
            turn, actions = environment.reset(request.task, request.seed), []
            while not turn.done:
                prompt = turn.prompts[0]
                text = reply(request) or prompt.legal_actions[0]
                ids, zeros = np.array([7, 1], np.int32), np.zeros(2, np.float32)
                given = np.frombuffer(prompt.observation.encode(), np.uint8).astype(np.int32)
                actions.append(
                    Action(0, len(actions), len(actions), given, ids, zeros, zeros, text, prompt,
                           truncated=False)
                )  # fmt: skip
                turn = environment.step({0: text})
            result = EpisodeResult(request, "finished", tuple(actions), (), turn.record)
            if place in lost:
                failure = Failure("timeout", "no answer in 1 s")
                result = EpisodeResult(request, "failed", tuple(actions), (), None, failure)
            results.append(result)
        return Rollout(results, {"blocked_seconds": 0.5})

    monkeypatch.setattr(sepo_stage, "play", play)
    return calls
