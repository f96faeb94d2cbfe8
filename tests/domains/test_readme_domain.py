"""The own game of the README is a domain like the package's own."""

import importlib
import json
import pickle
import re
import sys
from pathlib import Path

import pytest

from sepo_jax.domains import Played
from sepo_jax.domains.traces import opponent_names

README = Path(__file__).parents[2] / "README.md"


@pytest.fixture
def game(tmp_path, monkeypatch):
    """The README's domain, imported from a file as its reader imports it."""
    text = README.read_text(encoding="utf-8")
    section = text[text.index("## An own game") : text.index("## What is where")]
    (block,) = re.findall(r"```python\n(.*?)```", section, flags=re.DOTALL)
    assert block.startswith("# stag_hunt.py\n") and block.count("\n") <= 40
    assert "domain=StagHunt()" in section and "--config.domain.name=stag_hunt:StagHunt" in section
    (tmp_path / "stag_hunt.py").write_text(block, encoding="utf-8")
    monkeypatch.syspath_prepend(str(tmp_path))
    yield importlib.import_module("stag_hunt").StagHunt()
    sys.modules.pop("stag_hunt")


def play(game, opponent, replies, seed=0):
    """A finished episode answered with `replies` in turn."""
    episode = game.new_episode(opponent, seed)
    for reply in replies:
        episode.step(reply)
    assert episode.done
    return episode


# Moves against moves by hand: (own, opponent, harmful, externality). A pair that takes 8 together
# loses nothing, one that takes 3 or 4 loses 5/8 or 1/2.
@pytest.mark.parametrize(
    ("opponent", "reply", "expected"),
    [
        ("Hunt", "STAG", (4, 4, 0, 0)),
        ("Hunt", "My partner is lonely.\nHARE", (3, 0, 1, 0.625)),
        ("Trap", "STAG", (0, 3, 0, 0.625)),
        ("Trap", "hare", (2, 2, 1, 0.5)),
        ("Trap", "HARE or STAG", (2, 2, 1, 0.5)),
    ],
)
def test_rounds_pay_as_the_rules_say(game, opponent, reply, expected):
    episode = play(game, opponent, [reply] * 5)
    assert [tuple(vars(result).values()) for result in episode.rounds] == [expected] * 5


def test_the_follower_trusts_until_it_is_let_down(game):
    firsts = []
    for seed in range(300):
        episode = play(game, "Follow", ["HARE", "HARE", "STAG", "HARE", "HARE"], seed)
        own = [result.own for result in episode.rounds]
        firsts.append(own[0])
        # After a HARE it answers HARE; after a STAG it may hunt again: 3 for the HARE, or 2.
        assert own[1:3] == [2, 0] and own[3] in (2, 3) and own[4] == 2
    # 270 of 300 open with STAG, give or take sqrt(300 * 0.9 * 0.1) = 5.2: five of them.
    assert abs(firsts.count(3) - 270) < 26


@pytest.mark.parametrize("on_invalid", ["fallback", "forfeit"])
def test_episodes_against_every_opponent_of_every_pool(game, on_invalid):
    game = type(game)(on_invalid=on_invalid)
    assert set(game.pools) == {"train", "exploiter", "collusive"} and all(game.pools.values())
    for seed, opponent in enumerate(opponent_names(game)):
        answers = ["STAG", "no idea", "HARE", "STAG", "HARE"]
        episode = play(game, opponent, answers, seed)
        assert [decision.valid for decision in episode.decisions] == [True, False, True, True, True]
        prompts = [str(decision.messages) for decision in episode.decisions]
        assert len(set(prompts)) == 5 and max(map(len, prompts)) < 650
        played = Played.from_record(json.loads(json.dumps(episode.record())))
        assert list(played.rounds) == episode.rounds
        again = pickle.loads(pickle.dumps(game.new_episode(opponent, seed)))
        for answer in answers:
            again.step(answer)
        assert again.rounds == episode.rounds


def test_expert_traces_of_the_game(game):
    assert sum(weight for weight, _ in game.experts.values()) == pytest.approx(1)
    traces = game.expert_traces(300, seed=1, rationale=True)
    words = [reply.split("\n")[-1] for _, reply in traces]
    assert set(words) == {"STAG", "HARE"}
    for (messages, reply), word in zip(traces, words, strict=True):
        assert game.parse(reply, ("HARE", "STAG")) == ("HARE", "STAG").index(word)
        assert "Choose HARE or STAG." in messages[1]["content"]
