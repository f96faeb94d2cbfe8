"""Rules and episodes of text Kuhn poker."""

import copy
import os
import subprocess
import sys

import pytest

from sepo_jax.domains import EpisodeFinished, Kuhn, TablePolicy
from sepo_jax.domains import kuhn as rules
from sepo_jax.domains.base import Decision
from sepo_jax.domains.kuhn_players import INFOSETS, opponent_tables
from sepo_jax.domains.seeds import derive_seed
from sepo_jax.games.kuhn import KUHN, KuhnState

# First mover's net chips, written out from the rules: a fold costs the folder 1, a showdown 1 or 2.
PAYOFFS = {
    "JQ": {"pp": -1, "bp": 1, "bb": -2, "pbp": -1, "pbb": -2},
    "JK": {"pp": -1, "bp": 1, "bb": -2, "pbp": -1, "pbb": -2},
    "QJ": {"pp": 1, "bp": 1, "bb": 2, "pbp": -1, "pbb": 2},
    "QK": {"pp": -1, "bp": 1, "bb": -2, "pbp": -1, "pbb": -2},
    "KJ": {"pp": 1, "bp": 1, "bb": 2, "pbp": -1, "pbb": 2},
    "KQ": {"pp": 1, "bp": 1, "bb": 2, "pbp": -1, "pbb": 2},
}


def scripted(history: str) -> TablePolicy:
    """A player that follows `history` at every decision of it."""
    rows = {}
    for card in "JQK":
        for index, letter in enumerate(history):
            rows[card + history[:index]] = (1.0, 0.0) if letter == "p" else (0.0, 1.0)
    return TablePolicy(rows, "scripted")


def play(episode, choose):
    """Plays to the end; `choose` maps legal words to a reply."""
    while not episode.done:
        episode.step(choose(episode.legal_actions()))
    return episode


def trace(episode) -> list:
    """Everything visible of an episode played with the second action throughout."""
    play(episode, lambda legal: legal[1])
    return [(d.messages, d.observation, d.action) for d in episode.decisions] + episode.rounds


# C13, B07
@pytest.mark.parametrize("seat", [0, 1])
@pytest.mark.parametrize("deal", list(PAYOFFS))
@pytest.mark.parametrize("history", ["pp", "bp", "bb", "pbp", "pbb"])
def test_every_history_pays_by_the_rules_and_ends(deal, history, seat):
    episode = Kuhn().new_episode(scripted(history), seed=0, seat=seat, deal=deal)
    for letter in history[seat::2]:
        assert not episode.done
        episode.step(episode.legal_actions()["pb".index(letter)])
    assert episode.done
    sign = 1 if seat == 0 else -1
    (result,) = episode.rounds
    assert (result.own, result.opponent) == (
        sign * PAYOFFS[deal][history],
        -sign * PAYOFFS[deal][history],
    )
    before = (list(episode.decisions), list(episode.rounds), episode.seat, episode.seed)
    with pytest.raises(EpisodeFinished, match="over after 1 rounds"):
        episode.step("BET")
    for ask in (episode.view, episode.messages, episode.legal_actions):
        with pytest.raises(EpisodeFinished):
            ask()
    assert before == (episode.decisions, episode.rounds, episode.seat, episode.seed)
    assert episode.done


def test_there_are_thirty_terminal_histories():
    assert len(rules.DEALS) * len(rules.TERMINAL_HISTORIES) == 30
    with pytest.raises(ValueError, match="does not end a hand"):
        rules.payoff_to_first("JQ", "pb")


# B07
def test_rules_agree_with_the_compiled_game():
    for deal in rules.DEALS:
        cards = tuple("JQK".index(card) for card in deal)
        for history in rules.TERMINAL_HISTORIES:
            state = KuhnState(cards)
            for index, letter in enumerate(history):
                assert not state.is_terminal()
                assert state.information_state() == deal[index % 2] + history[:index]
                state = state.child("pb".index(letter))
            assert state.is_terminal()
            assert state.returns()[0] == rules.payoff_to_first(deal, history)
    assert set(KUHN.infoset_names) == set(INFOSETS)


# B08
def test_information_sets_and_prompts_correspond_one_to_one():
    domain = Kuhn()
    prompts = {name: str(domain.infoset_messages(name)) for name in INFOSETS}
    assert len(set(prompts.values())) == 12
    names = {"J": "Jack", "Q": "Queen", "K": "King"}
    for name in INFOSETS:
        user = domain.infoset_messages(name)[1]["content"]
        for card, word in names.items():
            assert (word in user) == (card == name[0])
        for word in domain.action_words(name):
            assert word in user
    seen = set()
    for seed in range(200):
        episode = domain.new_episode("LooseAggressive", seed)
        while not episode.done:
            view, name = episode.view(), episode.observation
            assert name == episode.deal[view.seat] + view.history
            assert str(episode.messages()) == prompts[name]
            assert episode.legal_actions() == domain.action_words(name)
            assert [m["role"] for m in episode.messages()] == ["system", "user"]
            seen.add(name)
            episode.step("PASS" if seed % 2 else episode.legal_actions()[1])
    assert seen == set(INFOSETS)


def test_prompts_say_what_happened():
    domain = Kuhn()
    texts = {name: domain.infoset_messages(name)[1]["content"] for name in ("K", "Jp", "Qb", "Jpb")}
    assert texts == {
        "K": "You hold the King. You act first. Choose PASS or BET.",
        "Jp": "You hold the Jack. Your opponent passed. Choose PASS or BET.",
        "Qb": "You hold the Queen. Your opponent bet. Choose FOLD or CALL.",
        "Jpb": "You hold the Jack. You passed and your opponent bet. Choose FOLD or CALL.",
    }
    system = domain.infoset_messages("K")[0]["content"]
    assert len(system.split()) < 70
    # Penalties are never put into words.
    assert not any(word in system.lower() for word in ("safe", "exploit", "collu"))


def test_match_observations_and_prompts_correspond():
    prompts = {}
    for seed in range(60):
        episode = Kuhn(hands=6).new_episode("NashApprox", seed)
        play(episode, lambda legal, word=seed % 2: legal[word])
        for decision in episode.decisions:
            text = str(decision.messages)
            assert prompts.setdefault(decision.observation, text) == text
    assert len(set(prompts.values())) == len(prompts) > 100


# Payoffs by hand: deal KJ puts the king in the first mover's hand, the agent holds it in hands
# 1, 3, 5 and faces it in hands 2, 4, 6.
@pytest.mark.parametrize(
    ("opponent", "word", "expected"),
    [
        # Nobody ever bets: the king takes the ante each time.
        ("TightPassive", 0, [1, -1, 1, -1, 1, -1]),
        # The jack folds to the agent's bet; the king checks, then calls the agent's bluff.
        ("TightPassive", 1, [1, -2, 1, -2, 1, -2]),
        # Check, the jack bluffs, fold; then the king bets and the agent folds.
        ("AlwaysBet", 0, [-1, -1, -1, -1, -1, -1]),
        ("AlwaysBet", 1, [2, -2, 2, -2, 2, -2]),
        # MaxExploiter bluffs jacks and bets kings, and never calls with a jack.
        ("MaxExploiter", 0, [-1, -1, -1, -1, -1, -1]),
        ("MaxExploiter", 1, [1, -2, 1, -2, 1, -2]),
    ],
)
def test_scripted_matches(opponent, word, expected):
    episode = Kuhn(hands=6).new_episode(opponent, seed=3, deal="KJ")
    seats = []
    while not episode.done:
        seats.append(episode.seat)
        episode.step(episode.legal_actions()[word])
    assert [result.own for result in episode.rounds] == expected
    assert [result.opponent for result in episode.rounds] == [-x for x in expected]
    assert list(dict.fromkeys(seats)) == [0, 1]
    third = next(d for d in episode.decisions if d.round == 2)
    total = sum(expected[:2])
    wins = sum(x > 0 for x in expected[:2])
    record = (
        f"You won {wins} and lost {2 - wins} so far, {f'{total:+d}' if total else '0'} in chips."
    )
    assert third.messages[1]["content"].startswith(f"Hand 3 of 6. {record} You hold the King.")


def test_opponent_view_holds_only_its_own_knowledge():
    views = []

    class Spy:
        def reset(self, rng):
            views.clear()

        def act(self, view):
            views.append(view)
            return 0 if len(views) == 1 else 1

    # Hand 1: the agent bets its king, the jack folds: no showdown. Hand 2: the opponent (king)
    # moves first.
    episode = Kuhn(hands=2).new_episode(Spy, seed=0, deal="KJ")
    episode.step("BET")
    assert [(v.seat, v.private, v.history) for v in views] == [(1, "J", "b"), (0, "K", "")]
    (record,) = views[1].past
    assert (record.card, record.opponent_card, record.own) == ("J", None, -1)
    (own_record,) = episode.view().past
    assert (own_record.card, own_record.opponent_card, own_record.own) == ("K", None, 1)
    episode.step("CALL")
    assert [r.own for r in episode.rounds] == [1, -2]


# C09
def test_reset_with_a_seed_repeats_and_without_moves_on():
    episode = Kuhn(hands=6).new_episode("LooseAggressive", seed=7)
    first = trace(episode)
    assert trace(episode.reset(7)) == first
    second = trace(episode.reset())
    assert second != first
    third_seed = episode.reset().seed
    assert len({7, derive_seed(7, "next"), third_seed}) == 3
    assert trace(episode.reset(derive_seed(7, "next"))) == second
    assert trace(Kuhn(hands=6).new_episode("LooseAggressive", seed=7)) == first


# C09
def test_other_processes_and_hash_seeds_agree():
    script = (
        "from sepo_jax.domains import Kuhn\n"
        "import hashlib\n"
        "parts = [str(Kuhn(hands=6).expert_traces(40, 5))]\n"
        "for seed in range(20):\n"
        "    e = Kuhn(hands=6).new_episode('LooseAggressive', seed)\n"
        "    while not e.done: e.step(e.legal_actions()[1])\n"
        "    parts.append(str(e.decisions) + str(e.rounds))\n"
        "print(hashlib.sha256(''.join(parts).encode()).hexdigest())\n"
    )
    digests = {
        subprocess.run(
            [sys.executable, "-c", script],
            env={**os.environ, "PYTHONHASHSEED": hash_seed},
            capture_output=True,
            text=True,
            check=True,
        ).stdout
        for hash_seed in ("0", "1", "4242")
    }
    assert len(digests) == 1


# C10
def test_seeds_give_different_episodes_and_every_deal():
    domain = Kuhn(hands=6)

    def traces(seeds):
        return [str(trace(domain.new_episode("LooseAggressive", seed))) for seed in seeds]

    assert len(set(traces(range(16)))) == 16
    assert not set(traces(range(16))) & set(traces(range(100, 116)))
    assert traces(range(16)) == traces(range(16))
    single = [Kuhn().new_episode("NashApprox", seed) for seed in range(600)]
    counts = [sum(e.deal == deal for e in single) for deal in rules.DEALS]
    # 600 hands over 6 deals: mean 100, standard deviation 9.1.
    assert all(55 < count < 145 for count in counts)
    assert 240 < sum(e.seat == 0 for e in single) < 360


def test_deal_does_not_depend_on_replies_or_opponent():
    domain = Kuhn(hands=4)
    deals = set()
    for opponent in ("TightPassive", "AlwaysBet"):
        for word in (0, 1):
            episode, cards = domain.new_episode(opponent, seed=11), []
            while not episode.done:
                if len(cards) == episode.view().round:
                    cards.append(episode.deal)
                episode.step(episode.legal_actions()[word])
            deals.add(tuple(cards))
    assert len(deals) == 1


def test_a_copy_continues_alike_and_apart():
    episode = Kuhn(hands=6).new_episode("LooseAggressive", seed=2)
    episode.step("BET")
    fork = copy.deepcopy(episode)
    before = (len(episode.decisions), len(episode.rounds), episode.observation)
    left = trace(fork)
    assert before == (len(episode.decisions), len(episode.rounds), episode.observation)
    assert trace(episode) == left


def test_one_opponent_instance_may_serve_many_episodes():
    domain = Kuhn(hands=6)
    shared = TablePolicy(opponent_tables()["LooseAggressive"], "LooseAggressive")
    for seed in range(10):
        alone = trace(domain.new_episode("LooseAggressive", seed))
        one, two = domain.new_episode(shared, seed), domain.new_episode(shared, seed + 100)
        play(two, lambda legal: legal[0])
        assert trace(one) == alone


def test_unparsable_replies_are_counted_and_play_the_passive_action():
    episode = Kuhn().new_episode("AlwaysBet", seed=0, seat=0, deal="KJ")
    episode.step("I am not sure.")
    assert not episode.done and episode.observation == "Kpb"
    episode.step("BET")  # not an action here
    assert [d.valid for d in episode.decisions] == [False, False]
    assert [d.action for d in episode.decisions] == [0, 0]
    assert episode.rounds[0].own == -1
    assert isinstance(episode.decisions[0], Decision)
    assert episode.decisions[0].text == "I am not sure."


def test_forfeit_costs_the_most_a_hand_can_cost():
    domain = Kuhn(hands=2, on_invalid="forfeit")
    episode = domain.new_episode("TightPassive", seed=0, deal="KJ")
    episode.step("")
    assert [r.own for r in episode.rounds] == [-2]
    assert episode.decisions[0].action is None and not episode.decisions[0].valid
    assert episode.view().past[0].opponent_card is None
    episode.step("???")
    assert episode.done and [r.own for r in episode.rounds] == [-2, -2]


def test_fold_counts_as_harmful_only_when_asked_and_only_for_the_agent():
    for collusion, folds in (("none", 0.0), ("fold_rate", 1.0)):
        domain = Kuhn(collusion=collusion)
        episode = domain.new_episode("AlwaysBet", 0, seat=1, deal="KJ")
        episode.step("FOLD")
        assert episode.rounds[0].harmful == folds
        episode = domain.new_episode("TightPassive", 0, seat=0, deal="KJ")
        episode.step("BET")  # the opponent folds
        assert episode.rounds[0].harmful == 0.0
    episode = domain.new_episode("AlwaysBet", 0, seat=1, deal="KJ")
    episode.step("CALL")
    assert episode.rounds[0].externality == 1.0 and episode.rounds[0].harmful == 0.0
    for collusion, harm in (("none", 0.0), ("fold_rate", 1.0)):  # a forfeit hides no fold
        domain = Kuhn(collusion=collusion, on_invalid="forfeit")
        episode = domain.new_episode("AlwaysBet", 0, seat=1, deal="KJ")
        episode.step("?")
        assert episode.rounds[0].harmful == harm


@pytest.mark.parametrize(
    ("build", "message"),
    [
        (lambda: Kuhn(hands=0), "hands must be at least 1"),
        (lambda: Kuhn(hands=1.5), "hands must be an integer"),
        (lambda: Kuhn(on_invalid="fallbak"), "Did you mean 'fallback'"),
        (lambda: Kuhn(collusion="fold"), "Did you mean 'fold_rate'"),
        (lambda: Kuhn(exploiters=["MaxExploit"]), "Did you mean 'MaxExploiter'"),
        (lambda: Kuhn().new_episode("NashAprox", 0), "Did you mean 'NashApprox'"),
        (lambda: Kuhn().new_episode(3, 0), "an opponent is a name"),
        (lambda: Kuhn().new_episode("AlwaysBet", "7"), "seed must be an integer"),
        (lambda: Kuhn().new_episode("AlwaysBet", -1), "seed must be at least 0"),
        (lambda: Kuhn().new_episode("AlwaysBet", 0, seat=2), "seat must be 0"),
        (lambda: Kuhn().new_episode("AlwaysBet", 0, deal="JJ"), "unknown deal 'JJ'"),
        (lambda: Kuhn().infoset_messages("Jbp"), "unknown information set"),
        (lambda: Kuhn().action_words("A"), "unknown information set"),
        (lambda: Kuhn().expert_traces(-1, 0), "num_decisions must be at least 0"),
        (lambda: TablePolicy({"J": (0.5, 0.6)}), "sum to 1"),
        (lambda: TablePolicy({"J": (float("nan"), 1.0)}), "sum to 1"),
        (lambda: TablePolicy({"J": (1.5, -0.5)}), "sum to 1"),
        (
            lambda: Kuhn().new_episode(TablePolicy({"J": (0.5, 0.5)}), 0, seat=1, deal="QJ"),
            "row of",
        ),
        (
            lambda: Kuhn().new_episode(TablePolicy({"Q": (1, 0, 0)}), 0, seat=1, deal="QJ"),
            "3 probabilities",
        ),
    ],
)
def test_bad_input_is_refused_by_name(build, message):
    with pytest.raises(ValueError, match=message):
        build()
