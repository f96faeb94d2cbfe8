"""Rollouts: what is sampled depends on (seed, step, group, member, token) and on nothing else."""

import dataclasses
import gc
import threading

import numpy as np
import pytest

from sepo_jax.domains import Kuhn, Played
from sepo_jax.forest import equal, pack
from sepo_jax.policy import ModelConfig, Policy, Sampling, TemplateNotExtending
from sepo_jax.rollout import (
    ChatCodec,
    EngineOptions,
    complete,
    decision_segments,
    driver,
    members,
    play,
)
from sepo_jax.rollout.generate import _scores
from sepo_jax.sandbox.base import BaseEnvironment, ask, finish
from sepo_jax.sandbox.environments import domain_environments
from sepo_jax.sandbox.episodes import EpisodeRequest
from sepo_jax.sandbox.in_process import InProcessPool
from sepo_jax.sandbox.protocol import Prompt, TooManyFailures, Turn

pytestmark = pytest.mark.usefixtures("compile_fast")
OPTIONS = EngineOptions(slots=4, capacity=256, prefill_widths=(64,))
KUHN = domain_environments(Kuhn(hands=2))


def requests(count=6, groups=None):
    """Members of a group meet the same deals."""
    groups = [index // 2 for index in range(count)] if groups is None else groups
    return [
        EpisodeRequest({"opponent": "NashApprox"}, seed=group, group=group, member=member)
        for group, member in zip(groups, members(groups), strict=True)
    ]


def rollout(agent, asked=None, environments=KUHN, seed=3, step=0, **options):
    options = dataclasses.replace(OPTIONS, **options)
    asked = requests() if asked is None else asked
    return play(*agent, asked, environments, options, seed=seed, step=step)


@pytest.fixture(scope="module")
def base(agent):
    return rollout(agent)


def check_same(one, other, exact):
    np.testing.assert_array_equal(one.tokens, other.tokens)
    np.testing.assert_array_equal(one.parent, other.parent)
    for name in ("behavior_logp", "entropy"):
        left, right = getattr(one, name), getattr(other, name)
        np.testing.assert_allclose(left, right, rtol=0, atol=0 if exact else 1e-5)


def test_one_action_segment_for_each_decision_with_the_sampled_tokens(agent, base):
    policy, _ = agent
    played = [Played.from_record(result.record) for result in base.results]
    decisions = [d for episode in played for d in episode.decisions]
    forest = base.forest()
    segments = decision_segments(forest)
    assert len(segments) == len(decisions) > len(played)
    for segment, decision in zip(segments, decisions, strict=True):
        tokens = forest.segment_tokens(segment)
        assert policy.tokenizer.decode(tokens, skip_special_tokens=True) == decision.text
        assert forest.turn[segment] == decision.turn
    assert [result.status for result in base.results] == ["finished"] * 6
    assert base.statistics["sampled_tokens"] == forest.lengths()[segments].sum()
    # An episode pays its own payoffs.
    for index, episode in enumerate(played):
        paid = forest.reward[forest.episode == index].sum()
        assert paid == sum(result.own for result in episode.rounds)


@pytest.mark.parametrize(
    ("options", "exact"),
    [
        ({"slots": 1}, False),
        ({"slots": 64}, False),
        ({"exchange_interval": 1}, True),
        ({"exchange_interval": 7}, True),
        ({"driver": "in_jit"}, True),
        ({"devices": 3}, True),
        ({"prefill_widths": (16, 32)}, False),
    ],
)
def test_sizes_and_drivers_change_no_token(agent, base, options, exact):
    check_same(base.forest(), rollout(agent, **options).forest(), exact)


def test_the_same_seed_repeats_bit_for_bit(agent, base):
    assert equal(rollout(agent).forest(), base.forest())


def test_seed_and_step_change_the_samples(agent, base):  # C10
    for options in ({"seed": 4}, {"step": 1}):
        other = rollout(agent, **options).forest()
        assert not np.array_equal(base.forest().tokens, other.tokens)


class Talk(BaseEnvironment):
    """Three turns in one context; pays the number of the turn."""

    def start(self, task, seed):
        self.state = 0
        return ask(f"Choose a card for {task}.")

    def play(self, actions):
        self.state += 1
        if self.state == 3:
            return finish(reward=3.0, record=actions[0])
        return ask(f"You said {actions[0]!r}. Go on.", reward=float(self.state), continues=True)


@pytest.mark.parametrize("temperature", [1.0, 0.6])
def test_recorded_log_probabilities_are_the_trainers(agent, temperature):  # A10, A11
    policy, params = agent
    for environments, asked in ((KUHN, requests()), (Talk, [EpisodeRequest("me", 0)] * 2)):
        sampling = Sampling(temperature=temperature)
        forest = rollout(agent, asked, environments, sampling=sampling).forest()
        batch = pack(forest, row_length=512)
        scores = _scores(policy, params, batch, temperature)
        real = np.asarray(batch.action_mask)
        ratio = np.exp(np.asarray(scores.logp) - np.asarray(batch.behavior_logp))[real]
        np.testing.assert_allclose(ratio, 1.0, atol=1e-5)
        entropy = np.asarray(scores.entropy)[real]
        np.testing.assert_allclose(entropy, forest.entropy[batch.token_index[real]], atol=1e-4)


def test_shared_prompts_change_no_action(base):
    shared, apart = base.forest(), base.forest(share_prompts=False)
    left = [shared.segment_tokens(s) for s in decision_segments(shared)]
    right = [apart.segment_tokens(s) for s in decision_segments(apart)]
    assert all(np.array_equal(a, b) for a, b in zip(left, right, strict=True))
    assert shared.num_tokens < apart.num_tokens


def test_an_action_stops_at_its_first_end_token_or_at_the_limit(agent):  # B01
    policy = dataclasses.replace(agent[0], end_ids=tuple(range(5, 105)))  # a third of all ids
    asked = requests(40, range(40))
    forest = rollout((policy, agent[1]), asked, max_action_tokens=3, seed=11).forest()
    ends = 0
    for segment in decision_segments(forest):
        tokens = list(forest.segment_tokens(segment))
        ended = tokens[-1] in policy.end_ids
        assert forest.truncated[segment] == (not ended)
        assert not any(token in policy.end_ids for token in tokens[:-1])
        assert ended or len(tokens) == 3
        ends += ended
    assert 0 < ends < len(decision_segments(forest))


def test_a_context_that_goes_on_is_one_path(agent):
    policy, _ = agent
    asked = [EpisodeRequest("you", 0, member=member) for member in range(3)]
    played = rollout(agent, asked, Talk)
    forest = played.forest()
    assert list(forest.reward[forest.is_action]) == [1.0, 2.0, 3.0] * 3
    for leaf, result in zip(forest.leaves(), played.results, strict=True):
        path = forest.path(int(leaf))
        assert list(forest.is_action[path]) == [False, True] * 3
        assert list(forest.turn[path][1::2]) == [0, 1, 2]
        texts = [policy.tokenizer.decode(forest.segment_tokens(segment)) for segment in path]
        for number, text in enumerate(texts[2::2]):
            said = result.actions[number].text
            end = "" if texts[1::2][number].endswith("<|end|>") else "<|end|>"
            assert text == f"{end}<|user|>You said {said!r}. Go on.<|end|><|assistant|>"
    # One root for the three; a root each without sharing, and the same paths.
    assert (forest.parent == -1).sum() == 1
    apart = played.forest(share_prompts=False)
    assert (apart.parent == -1).sum() == 3
    for one, other in zip(forest.leaves(), apart.leaves(), strict=True):
        tokens = [
            np.concatenate([each.segment_tokens(s) for s in each.path(int(leaf))])
            for each, leaf in ((forest, one), (apart, other))
        ]
        np.testing.assert_array_equal(*tokens)


class Numbers(BaseEnvironment):
    """Two turns of token ids in one context; odd seeds go on with an id that does not exist."""

    def start(self, task, seed):
        self.state = [7, 320][seed % 2]
        return Turn({0: Prompt(tokens=(5, 6))})

    def play(self, actions):
        if self.state is None:
            return finish()
        tokens, self.state = (self.state,), None
        return Turn({0: Prompt(tokens=tokens, continues=True)})


def test_contexts_of_tokens_need_no_text_and_wrong_ids_cost_their_episode(agent):
    policy, params = agent
    asked = [EpisodeRequest(None, seed, member=seed) for seed in range(3)]
    bare = Policy(policy.config, end_ids=policy.end_ids)
    played = play(bare, params, asked, Numbers, OPTIONS, seed=0)
    assert [result.status for result in played.results] == ["finished", "failed", "finished"]
    assert played.results[1].failure.kind == "bad_answer"
    assert "token id 320" in played.results[1].failure.message
    forest = played.forest()
    for leaf in forest.leaves():
        given = [forest.segment_tokens(s).tolist() for s in forest.path(int(leaf))[::2]]
        assert given == [[5, 6], [7]]


class Flaky(Talk):
    """Fails in the second turn of odd seeds."""

    def start(self, task, seed):
        self.odd = seed % 2
        return super().start(task, seed)

    def play(self, actions):
        if self.odd:
            raise RuntimeError("no more cards")
        return super().play(actions)


def test_episodes_that_fail_leave_the_others_as_they_are(agent):
    asked = [EpisodeRequest("me", seed, member=seed) for seed in range(5)]
    played = rollout(agent, asked, Flaky)
    assert [result.status for result in played.results] == ["finished", "failed"] * 2 + ["finished"]
    assert "RuntimeError: no more cards" in played.results[1].failure.message
    assert played.statistics["failed_raised"] == 2
    forest, whole = played.forest(), rollout(agent, asked[::2], Talk).forest()
    np.testing.assert_array_equal(forest.tokens, whole.tokens)
    assert set(forest.episode[forest.is_action]) == {0, 2, 4}
    with pytest.raises(TooManyFailures, match=r"2 of 5 .* allowed share of 0\.2.*no more cards"):
        rollout(agent, asked, Flaky, max_failed_fraction=0.2)


def test_limits_cut_episodes(agent):
    asked = [EpisodeRequest("me", 0)]
    (result,) = rollout(agent, asked, Talk, max_turns=2).results
    assert result.status == "turn_limit" and len(result.actions) == 2 and result.record is None
    (result,) = rollout(agent, asked, Talk, max_episode_tokens=2).results
    assert result.status == "token_limit" and result.actions[-1].truncated
    assert sum(len(action.tokens) for action in result.actions) <= 2


def test_environments_are_made_once_for_many_episodes(agent):  # H04, C04
    with InProcessPool(KUHN) as pool:
        for step in range(2):
            rollout(agent, requests(64), pool, step=step, slots=8)
        assert pool.counters["constructed"] <= 8 + 2  # those of the slots and two ahead
    with pytest.raises(Exception, match="closed"):
        rollout(agent, requests(2), pool)
    # A pool that play made does not outlive it, whatever ends it.
    before = threading.active_count()
    with pytest.raises(TooManyFailures):
        rollout(agent, requests(1), domain_environments(object()))
    gc.collect()
    assert threading.active_count() <= before


def test_a_pool_serves_one_rollout_at_a_time(agent):
    entered, go_on, first = threading.Event(), threading.Event(), []

    class Waits(Talk):
        def start(self, task, seed):
            entered.set()
            assert go_on.wait(60)
            return super().start(task, seed)

    with InProcessPool(Waits) as pool:
        thread = threading.Thread(target=lambda: first.append(rollout(agent, None, pool)))
        thread.start()
        assert entered.wait(60)
        with pytest.raises(ValueError, match="serves another rollout"):
            rollout(agent, requests(2), pool)
        go_on.set()
        thread.join(60)
        # It can be had again, after an error too.
        for _ in range(2):
            with pytest.raises(ValueError, match="a context holds 8"):
                rollout(agent, requests(2), pool, capacity=8)
        again = rollout(agent, None, pool)
    assert equal(first[0].forest(), again.forest())


def test_compilations_are_bounded_by_the_widths(agent):  # H01
    policy, params = agent
    options = EngineOptions(slots=2, capacity=64, max_action_tokens=2, prefill_widths=(16, 32, 64))

    def compiled():
        return driver._prefill._cache_size(), driver._decode._cache_size()

    before = compiled()
    for length in (*range(1, 51), *range(1, 51)):
        complete(policy, params, [range(1, length + 1)], options, seed=0)
    assert compiled()[0] - before[0] <= 3 and compiled()[1] - before[1] == 1


def test_bad_input(agent):
    policy, params = agent
    with pytest.raises(ValueError, match="1 parameters for 2 policies"):
        play([policy, policy], [params], requests(), KUHN, OPTIONS, seed=0)
    with pytest.raises(ValueError, match=r"seats \(1,\) must name policies from 0 to 0"):
        play(policy, params, requests(), KUHN, OPTIONS, seed=0, seats=(1,))
    with pytest.raises(ValueError, match="slots must be a whole number from 1"):
        rollout(agent, slots=0)
    for name in ("seed", "step"):
        with pytest.raises(ValueError, match=f"{name} is -1, .* from 0 to"):
            rollout(agent, **{name: -1})
    for member in (2**31, 0.5, "0", None):
        with pytest.raises(ValueError, match=f"member is {member!r}, .* whole number from 0"):
            rollout(agent, [EpisodeRequest({}, 0, member=member)])
    for asked in (EpisodeRequest({}, 0), iter(requests())):
        with pytest.raises(ValueError, match="requests is a list of EpisodeRequest"):
            rollout(agent, asked)
    with pytest.raises(ValueError, match="'task', which is no EpisodeRequest"):
        rollout(agent, ["task"])
    with pytest.raises(ValueError, match=r"has \d+ tokens and a context holds 100"):
        rollout(agent, capacity=100)
    small = Policy(
        ModelConfig(vocab_size=320, hidden_size=16, num_heads=2, max_positions=16),
        policy.tokenizer,
    )
    with pytest.raises(ValueError, match="exceeds the policy's 16 positions"):
        play(small, params, requests(), KUHN, OPTIONS, seed=0)
    with pytest.raises(ValueError, match="no tokenizer"):
        play(Policy(policy.config), params, requests(), KUHN, OPTIONS, seed=0)


def test_prompts_of_other_tokens_and_templates_that_rewrite_are_refused(agent):
    policy, _ = agent
    codec = ChatCodec(policy)
    for call in (codec.start, lambda prompt: codec.follow([], prompt, True)):
        with pytest.raises(Exception, match=r"token id 320; .* ids 0 to 319"):
            call(Prompt(tokens=(1, 320)))
    forgetful = type("T", (), {"chat_template": "{{ messages[-1].content }}"})()
    forgetful.apply_chat_template = lambda messages, **_: messages[-1]["content"]
    codec = ChatCodec(Policy(policy.config, end_ids=(1,)))
    codec._tokenizer = forgetful
    talk = [{"role": "user", "content": "a"}, {"role": "assistant", "content": "b"}]
    with pytest.raises(TemplateNotExtending, match="separate contexts"):
        codec.follow(talk, Prompt(({"role": "user", "content": "c"},), continues=True), True)


def test_no_request_gives_an_empty_forest(agent):
    played = rollout(agent, [])
    assert played.forest().num_segments == 0 and played.results == ()
