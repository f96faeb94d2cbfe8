"""Visits to the web shop: oracle and rules, prompts, tasks, snapshots, and replies of any kind."""

import copy
import pickle
import random
from pathlib import Path

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from sepo_jax.domains.base import EpisodeFinished
from sepo_jax.domains.webshop.domain import SYSTEM, WebShop
from sepo_jax.domains.webshop.pages import BUY, parse_action
from sepo_jax.domains.webshop.players import oracle
from sepo_jax.sandbox.environments import TaskEpisodeEnvironment, domain_environments
from sepo_jax.sandbox.snapshots import content_hash

DOMAIN = WebShop()
SMALL = WebShop(products=60)


def played(task, seed=0):
    """Replies and record of the oracle."""
    episode, replies, paid = DOMAIN.new_episode(task, seed), [], []
    while not episode.done:
        replies.append(oracle(episode))
        assert replies[-1] in episode.legal_actions() or replies[-1].startswith("search[")
        paid.append(episode.step(replies[-1]))
    assert paid == [0.0] * (len(replies) - 1) + [episode.record()["score"]]
    return replies, episode.record()


def test_the_oracle_fulfils_every_goal_and_replays_the_same():
    goals = DOMAIN.shop.goals["test"]
    tasks = [{"split": "test", "goal": number} for number in range(len(goals))]
    for task in tasks:
        replies, record = played(task)
        assert record["score"] == 1.0 and record["success"] and record["product"]
        assert record["valid"] == 1.0 and record["turns"] == len(replies) <= DOMAIN.max_turns
        for seed in range(1, 5):  # five times in all
            assert played(task, seed) == (replies, record)


def test_the_oracle_finds_its_way_from_anywhere():
    for number in range(20):
        stream = random.Random(number)
        episode = WebShop(max_turns=60).new_episode({"split": "train", "goal": number}, 0)
        for _ in range(12):
            replies = [r for r in episode.legal_actions() if r != f"click[{BUY}]"]
            episode.step(stream.choice([*replies, "search[wide]"]))
        while not episode.done:
            episode.step(oracle(episode))
        assert episode.record()["success"], number


def test_new_codes_are_of_an_episode_and_nothing_else_changes():
    domain = WebShop(new_codes=True)
    seen = []
    for seed in (0, 0, 1, 2):
        for number in range(3):
            episode, fixed = (
                each.new_episode({"split": "test", "goal": number}, seed)
                for each in (domain, DOMAIN)
            )
            codes = []
            while not episode.done:
                reply, usual = oracle(episode), oracle(fixed)
                if episode.page.kind == "results" and "next" not in reply:
                    codes.append(reply)
                    assert reply in episode.legal_actions() and reply != usual
                    assert reply[6:-1] in episode.messages()[-1]["content"]
                else:
                    assert reply == usual
                episode.step(reply)
                fixed.step(usual)
            assert episode.record() == fixed.record() and fixed.record()["success"]
            seen.append(codes)
    assert seen[:3] == seen[3:6] != seen[6:9] != seen[9:]


def test_new_codes_go_round_the_shop():
    shop = SMALL.shop
    for shift in (0, 1, 17, 59):
        shown = [shop.shifted(name, shift) for name in shop.products]
        assert sorted(shown) == sorted(shop.products)
        assert [shop.shifted(name, -shift) for name in shown] == list(shop.products)


def test_baselines_of_the_test_goals():
    tasks = DOMAIN.evaluation_tasks(200, seed=42)
    figures = DOMAIN.baselines(tasks)
    assert set(figures) == {"random", "rule", "oracle"}
    assert figures["oracle"]["success"] == 1.0 == figures["oracle"]["score"]
    # The first result is often too dear, or lacks what its page alone tells.
    assert 0.35 < figures["rule"]["success"] < 0.7
    assert figures["random"]["success"] < 0.05 < figures["random"]["score"] < 0.5
    for found in figures.values():
        assert found["success_low"] <= found["success"] <= found["success_high"]
        assert found["valid"] == 1.0
    records = [None] * len(tasks)
    assert DOMAIN.figures(tasks, records)["score"] == 0.0
    assert "turns" not in DOMAIN.figures(tasks, records)


def test_a_visit_word_for_word():
    shop = DOMAIN.shop
    episode = DOMAIN.new_episode({"split": "test", "goal": 0}, 0)
    goal = episode.goal
    first, second = goal.attributes
    colour, size = goal.options
    noun = shop.products[goal.product].query
    assert episode.messages() == [
        {"role": "system", "content": SYSTEM},
        {
            "role": "user",
            "content": f"Instruction: [SEP] i need a {first} {second} {noun}, color {colour}, size "
            f"{size}, price below ${goal.price_upper:.0f} [SEP] Search",
        },
    ]
    search = f"search[{first} {second} {noun} {colour} {size}]"
    assert episode.legal_actions() == (search,)

    def said(reply):
        assert episode.step(reply) == 0.0
        (message,) = episode.messages()
        assert message["role"] == "user"
        return message["content"]

    fields = said(search).split(" [SEP] ")
    assert fields[:3] == ["Back to Search", "Page 1 (Total results: 50)", "Next >"]
    assert len(fields) == 3 + 3 * 5
    before = episode.observation
    assert said("I buy it!") == "Invalid action, nothing happens."
    assert said("click[buy now]") == "Invalid action, nothing happens."
    assert episode.observation == before
    code = episode.page.results[0]
    assert said(f"I take the first.\nAction: click[{code}]").endswith("Features [SEP] Buy Now")
    colours, sizes = shop.products[code].options.values()
    assert said(f"click[{colours[1]}]") == f"Selected [SEP] color: {colours[1]}"
    chosen = f"Selected [SEP] color: {colours[1]} [SEP] size: {sizes[0]}"
    assert said(f"click[{sizes[0]}]") == chosen
    assert said("click[features]") == (
        f"Back to Search [SEP] < Prev [SEP] {shop.products[code].features[0]}"
    )
    assert said("click[< prev]").endswith(f"Buy Now [SEP] {chosen}")
    assert said("click[back to search]") == "Search"
    assert episode.legal_actions() == (search,)
    record = episode.record()
    assert (record["turns"], record["valid"], record["product"]) == (9, 7 / 9, None)


def test_a_visit_ends_with_its_last_turn_or_a_purchase():
    episode = WebShop(max_turns=3).new_episode({"split": "train", "goal": 5}, 0)
    episode.step("search[mug]")
    episode.step("?")
    assert not episode.done
    assert episode.step("click[next >]") == 0.0 and episode.done
    record = episode.record()
    assert (record["bought"], record["success"], record["score"]) == (False, False, 0.0)
    with pytest.raises(EpisodeFinished):
        episode.step("search[mug]")


def test_a_purchase_pays_its_score_or_success():
    """Of the right product without its options: (2 attributes + price) of 2 + 2 + 1."""
    paid = {}
    for reward in ("score", "success"):
        for options in (False, True):
            episode = WebShop(reward=reward).new_episode({"split": "train", "goal": 7}, 0)
            while not episode.done:
                reply = oracle(episode)
                if episode.page.kind == "product" and not options:
                    reply = "click[buy now]"
                paid[reward, options] = episode.step(reply)
            assert episode.record()["success"] == options
    assert paid == {
        ("score", False): 0.6,
        ("score", True): 1.0,
        ("success", False): 0.0,
        ("success", True): 1.0,
    }


def test_tasks_come_once_before_any_comes_again():
    size = len(DOMAIN.shop.goals["train"])
    tasks = DOMAIN.training_tasks(size + 10, seed=3)
    numbers = [task["goal"] for task in tasks]
    assert sorted(numbers[:size]) == list(range(size)) and {t["split"] for t in tasks} == {"train"}
    assert DOMAIN.training_tasks(10, seed=3) == tasks[:10] != DOMAIN.training_tasks(10, seed=4)
    judged = DOMAIN.evaluation_tasks(505, seed=0)
    assert len({task["goal"] for task in judged}) == 505 and judged[0]["split"] == "test"
    assert WebShop(evaluated="eval").evaluation_tasks(1, 0)[0]["split"] == "eval"
    with pytest.raises(ValueError, match="506 goals to be judged by: split 'test' has 505"):
        DOMAIN.evaluation_tasks(506, seed=0)


def test_a_task_without_a_goal_draws_it_by_the_seed():
    drawn = [DOMAIN.new_episode({"split": "train"}, seed).number for seed in range(30)]
    assert len(set(drawn)) > 20
    assert drawn == [DOMAIN.new_episode({"split": "train"}, seed).number for seed in range(30)]


def test_traces_hold_the_whole_conversation_before_each_reply():
    traces = DOMAIN.expert_traces(23, seed=1)
    assert len(traces) == 23 and traces == DOMAIN.expert_traces(23, seed=1)
    before = []
    for messages, reply in traces:
        roles = [message["role"] for message in messages]
        assert roles == ["system", "user"] + ["assistant", "user"] * ((len(roles) - 2) // 2)
        if len(roles) > 2:
            assert messages[: len(before)] == before
        assert parse_action(reply) is not None
        before = [*messages, {"role": "assistant", "content": reply}]
    assert sum(len(messages) == 2 for messages, _ in traces) >= 4


@pytest.mark.parametrize(
    ("task", "message"),
    [
        ({"goal": 1}, 'a task of the web shop is {"split": name, "goal": number}'),
        ("test/1", "not 'test/1'"),
        ({"split": "test", "goals": 1}, "a task of the web shop is"),
        ({"split": "tests", "goal": 1}, "Did you mean 'test'"),
        ({"split": "test", "goal": 505}, "a number from 0 to 504"),
        ({"split": "test", "goal": "1"}, "goal '1' of split 'test'"),
    ],
)
def test_what_is_no_task_is_named(task, message):
    with pytest.raises(ValueError, match=message):
        DOMAIN.new_episode(task, 0)


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"reward": "scores"}, "Did you mean 'score'"),
        ({"goals": "people"}, "unknown goals 'people'"),
        ({"evaluated": "valid"}, "unknown evaluated 'valid'. Did you mean 'eval'"),
        ({"max_turns": 0}, "max_turns must be at least 1"),
        ({"products": -1}, "products must be at least 0"),
        ({"results_per_page": 1.5}, "results_per_page must be an integer"),
    ],
)
def test_bad_options(options, message):
    with pytest.raises(ValueError, match=message):
        WebShop(**options)


def test_a_domain_pickles_as_its_options_and_shares_its_shop():
    domain = WebShop(products=60)
    before = content_hash(domain)
    domain.shop.search("mug")
    copied = pickle.loads(pickle.dumps(domain))
    assert len(pickle.dumps(domain)) < 300 and content_hash(domain) == before
    assert copied.shop is domain.shop is SMALL.shop and content_hash(copied) == before
    assert content_hash(WebShop(products=60, max_turns=50)) != before


def test_snapshots_hold_the_visit_and_no_product():
    environment = TaskEpisodeEnvironment(DOMAIN)
    turn = environment.reset({"split": "test", "goal": 1}, 0)
    sizes = []
    while not turn.done:
        sizes.append(len(environment.snapshot()))
        turn = environment.step({0: oracle(environment.state)})
    assert max(sizes) < 4000
    other = domain_environments(DOMAIN)(Path())
    environment.reset({"split": "test", "goal": 1}, 0)
    environment.step({0: "search[mug]"})
    other.restore(environment.snapshot())
    assert other.state is not environment.state and other.state.shop is DOMAIN.shop
    assert vars(other.state) == vars(environment.state)


PIECES = st.sampled_from(
    ["click", "search", "[", "]", "buy now", "next", "< prev", "mug", "red", "b001", "\n", " "]
)
REPLIES = st.one_of(
    st.text(max_size=30),
    st.lists(PIECES, max_size=8).map("".join),
    st.text(max_size=10).map("search[{}]".format),
    st.text(max_size=10).map("click[{}]".format),
    st.integers(0, 99),  # a legal action
)


@settings(deadline=None, max_examples=60)
@given(st.lists(REPLIES, max_size=20), st.integers(0, 10))
def test_any_replies_are_played(replies, seed):
    """Legal ones are valid and lead to another key; the others never raise, and change no more than
    the number of turns where they are refused. Copies go on the same."""
    episode = SMALL.new_episode({"split": "train"}, seed)
    for reply in replies:
        if episode.done:
            break
        legal = episode.legal_actions()
        assert legal and len(set(legal)) == len(legal)
        chosen = isinstance(reply, int)
        text = legal[reply % len(legal)] if chosen else reply
        twin, valid, page = copy.deepcopy(episode), episode.valid, episode.page
        assert twin.step(text) == episode.step(text)
        assert vars(twin) | {"_domain": None} == vars(episode) | {"_domain": None}
        if chosen:
            assert episode.valid == valid + 1, text
        if episode.valid == valid:
            assert episode.page == page
        assert 0 <= episode.record()["score"] <= 1
        assert episode.observation and episode.messages()[-1]["content"]
