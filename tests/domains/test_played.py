"""The record of a finished episode: read back it is the episode, wherever such are read."""

import copy
import json
import math

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from sepo_jax.domains import EpisodeFinished, Kuhn, Played
from sepo_jax.sepo import from_episodes

FIELDS = ("seed", "opponent_name", "done")


def finished(seed=3, replies=("BET", "no idea", "CALL"), on_invalid="fallback", hands=3):
    episode = Kuhn(hands=hands, on_invalid=on_invalid).new_episode("LooseAggressive", seed)
    while not episode.done:
        episode.step(replies[len(episode.decisions) % len(replies)])
    return episode


@settings(deadline=None)
@given(
    seed=st.integers(0, 2**63 - 1),
    # Any text, lone surrogates too, beside replies that are legal somewhere.
    replies=st.lists(
        st.sampled_from(["PASS", "BET", "FOLD", "CALL"]) | st.text(st.characters(), max_size=9),
        min_size=1,
        max_size=5,
    ),
    on_invalid=st.sampled_from(["fallback", "forfeit"]),
)
def test_a_record_gives_back_the_episode(seed, replies, on_invalid):
    episode = finished(seed, replies, on_invalid)
    record = episode.record()
    through_json = json.loads(json.dumps(record, allow_nan=False))
    assert through_json == record
    for given_record in (record, through_json):
        played = Played.from_record(given_record)
        assert played.decisions == tuple(episode.decisions)
        assert played.rounds == tuple(episode.rounds)
        assert [getattr(played, f) for f in FIELDS] == [getattr(episode, f) for f in FIELDS]


@pytest.mark.parametrize("unit", ["round", "decision"])
def test_played_episodes_serve_where_episodes_are_read(unit):
    episodes = [finished(seed) for seed in range(4)]
    played = [Played.from_record(episode.record()) for episode in episodes]
    pools = ["train", "train", "exploiter", "collusive"]
    expected, arrays = (from_episodes(each, pools, unit=unit) for each in (episodes, played))
    for name in ("own", "opponent", "harmful", "externality", "mask", "invalid", "decisions"):
        np.testing.assert_array_equal(getattr(arrays, name), getattr(expected, name))
    assert arrays.opponent_names == expected.opponent_names


def test_a_record_shares_nothing_with_its_episode():
    episode = finished()
    before = copy.deepcopy(episode.decisions)
    record = episode.record()
    record["decisions"][0]["messages"][0]["content"] = "changed"
    record["decisions"][0]["text"] = "changed"
    record["rounds"][0]["own"] = 9.0
    assert episode.decisions == before and episode.rounds[0].own != 9.0


def test_an_episode_that_is_not_over_has_no_record():
    episode = Kuhn().new_episode("NashApprox", seed=4)
    with pytest.raises(ValueError, match=r"seed 4\) is not over"):
        episode.record()
    episode.reset(4)
    while not episode.done:
        episode.step("PASS")
    assert episode.record()["seed"] == 4
    with pytest.raises(EpisodeFinished):
        episode.step("PASS")


def test_a_failed_episode_has_no_record():
    class Rude:
        def reset(self, rng):
            pass

        def act(self, view):
            raise KeyError("lost")

    episode = Kuhn().new_episode(Rude(), seed=0, seat=0)
    with pytest.raises(KeyError):
        episode.step("PASS")
    with pytest.raises(ValueError, match=r"failed with KeyError\('lost'\), so it leaves no record"):
        episode.record()


@pytest.mark.parametrize(
    ("path", "value", "named"),
    [
        (("seed",), -1, "seed = -1"),
        (("seed",), True, "seed = True"),
        (("opponent_name",), None, "opponent_name = None"),
        (("decisions",), {}, "decisions = {}"),
        (("decisions", 0), "PASS", "decision 0 of a played episode must have the fields"),
        (("decisions", 1, "turn"), 0, "decision 1: turn = 0"),
        (("decisions", 0, "round"), -1, "decision 0: round = -1"),
        (("decisions", 0, "round"), 0.0, "decision 0: round = 0.0"),
        (("decisions", 0, "action"), "PASS", "decision 0: action = 'PASS'"),
        (("decisions", 0, "valid"), 1, "decision 0: valid = 1"),
        (("decisions", 0, "text"), None, "decision 0: text = None"),
        (("decisions", 0, "observation"), 3, "decision 0: observation = 3"),
        (("decisions", 0, "messages"), [{"role": "user"}], "decision 0: messages = "),
        (("decisions", 0, "messages", 0, "content"), 1, "decision 0: messages = "),
        (("rounds", 1, "own"), math.nan, "round 1: own = nan"),
        (("rounds", 1, "own"), "1", "round 1: own = '1'"),
        (("rounds", 1, "harmful"), False, "round 1: harmful = False"),
        (("rounds", 0, "bonus"), 1.0, "round 0 of a played episode must have the fields"),
        (("reward",), 1.0, "the record of a played episode must have the fields"),
    ],
)
def test_what_is_no_record_is_refused_by_name(path, value, named):
    record = json.loads(json.dumps(finished().record()))
    inner = record
    for key in path[:-1]:
        inner = inner[key]
    inner[path[-1]] = value
    with pytest.raises(ValueError, match=named):
        Played.from_record(record)


@pytest.mark.parametrize("record", [None, [], {}, {"seed": 1}])
def test_a_record_lacks_no_field(record):
    with pytest.raises(ValueError, match=r"must have the fields \['seed', 'opponent_name'"):
        Played.from_record(record)
