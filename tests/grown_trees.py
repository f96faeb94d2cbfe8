"""Trees of episodes as a branching rollout leaves them, with replies from a script."""

import copy

import numpy as np

from sepo_jax.sandbox.episodes import Action, EpisodeRequest, EpisodeResult, Past
from sepo_jax.sandbox.protocol import Prompt

END = 256  # token that ends a reply; the others are bytes


def decode(tokens):
    """Text of token ids, as a byte-level tokenizer gives it."""
    text = bytes(token for token in tokens if token != END).decode("utf-8", "replace")
    return text + "<end>" * (END in tokens)


def grow(domain, task, reply, points, continuations, *, trunks=1, group=0):
    """Results of one prompt: each trunk, then its forks in order of their branch points.

    Args:
      reply: (episode, numpy generator) -> text.
      points: turns of a trunk that are branch points. continuations: K of each.
    """
    rng, results = np.random.default_rng(group), []
    for trunk in range(trunks):
        request = EpisodeRequest(task, seed=group, group=group, member=trunk)
        states = []
        first = _play(request, domain.new_episode(task, group), reply, rng, states)
        results.append(first)
        for turn in points:
            for _ in range(continuations - 1):
                taken = tuple(action for action in first.actions if action.turn <= turn)
                past = Past(turn, taken, first.rewards[: turn + 1])
                fork = EpisodeRequest(
                    task, seed=group, group=group, member=len(results), state=b"kept", past=past
                )
                results.append(_play(fork, copy.deepcopy(states[turn]), reply, rng, []))
    return results


def _play(request, episode, reply, rng, states):
    """Plays to the end; `states` collects the episode as it was before each turn."""
    past = request.past
    actions = list(past.taken) if past else []
    rewards = list(past.rewards) if past else [{}]
    while not episode.done:
        states.append(copy.deepcopy(episode))
        turn = len(actions)
        prompt = Prompt(tuple(episode.messages()), observation=episode.observation)
        if past and turn == past.turn:  # the very prompt that the trunk was asked
            prompt, given = past.asked[0].prompt, past.asked[0].given
        else:
            given = _bytes("".join(message["content"] for message in prompt.messages))
        text = reply(episode, rng)
        tokens = np.append(_bytes(text), np.int32(END))
        entropy = rng.uniform(0.1, 1.0, len(tokens)).astype(np.float32)
        logp = -rng.uniform(0.1, 2.0, len(tokens)).astype(np.float32)
        actions.append(Action(0, turn, 0, given, tokens, logp, entropy, text, prompt, False))
        rewards.append({0: episode.step(text)})
    return EpisodeResult(request, "finished", tuple(actions), tuple(rewards), episode.record())


def _bytes(text):
    return np.frombuffer(text.encode(), np.uint8).astype(np.int32)
