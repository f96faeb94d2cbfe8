"""WebShop in text mode: find, customise and buy the product that an instruction asks for."""

import functools
import threading
from collections.abc import Iterator, Mapping, Sequence
from typing import Any

from sepo_jax.domains.base import EpisodeFinished, Message, check_integer, derive_seed, stream
from sepo_jax.domains.figures import task_figures
from sepo_jax.domains.webshop.catalogue import synthetic_shop
from sepo_jax.domains.webshop.data import GOALS, official_shop
from sepo_jax.domains.webshop.pages import (
    BUY,
    SEPARATOR,
    START,
    Layout,
    Page,
    choices_text,
    clickables,
    clicked,
    follow,
    keywords,
    page_text,
    parse_action,
)
from sepo_jax.domains.webshop.players import oracle, random_clicks, rule
from sepo_jax.domains.webshop.products import SPLITS, Goal, Shop
from sepo_jax.domains.webshop.reward import Score, purchase_score
from sepo_jax.names import check_option

REWARDS = ("score", "success")
SYSTEM = (
    "Buy in this web shop what the instruction asks for, with its options and below its price. "
    "Reply with one action: search[words], or click[name] of what is on the page."
)
_INVALID = "Invalid action, nothing happens."
_BASELINES = {"random": random_clicks, "rule": rule, "oracle": oracle}
# Figure -> what counts for an episode that left no record: it bought nothing.
_FIGURES = {"success": False, "score": 0.0, "bought": False, "valid": None, "turns": None}
_OPENING = threading.Lock()


@functools.lru_cache(maxsize=4)
def _opened(data: str, products: int, goals: str) -> Shop:
    return official_shop(data, products, goals) if data else synthetic_shop(products)


def open_shop(data: str, products: int, goals: str) -> Shop:
    """The shop of these options, made once a process; arguments and errors as of `WebShop`."""
    with _OPENING:  # of several threads that ask first, one makes it
        return _opened(data, products, goals)


class WebShop:
    """Shopping by searches and clicks (`domains.tasks.TaskDomain`, played by `ShoppingEpisode`).

    A task is {"split": one of `SPLITS`, "goal": number}; without a number the episode's seed draws
    the goal. Trains on the train split. The shop is made on first use, once a process; the domain
    itself is its options and pickles to a few bytes.

    Args:
      data: directory of the official data files (see `webshop.data`); "" for the shop that comes
        with the package (`webshop.catalogue`).
      products: how many of them; of official files 0 for all.
      goals: of official files, "human" or "synthetic".
      max_turns: replies until the episode ends without a purchase; 50 in the paper of BPO.
      results_per_page: of the `MOST_RESULTS` that a search finds; 0 for 5 of the bundled shop and
        10 of official files.
      title_words: of a title at most, 0 for all.
      new_codes: whether each episode shows the products under ids of its own, which its seed draws:
        no policy can remember them, each has to read them.
      brackets: whether pages show what can be clicked in brackets, as it is clicked.
      reward: what a purchase pays, its "score" or "success": 1 for a score of 1, else 0.
      evaluated: split to be judged by.

    Raises:
      ValueError: an unknown option or a number out of range. What is wrong with the data is raised
        on first use.
    """

    name = "webshop"

    def __init__(
        self,
        data: str = "",
        products: int = 1000,
        goals: str = "human",
        max_turns: int = 15,
        results_per_page: int = 0,
        title_words: int = 0,
        new_codes: bool = False,
        brackets: bool = False,
        reward: str = "score",
        evaluated: str = "test",
    ):
        self.data = str(data)
        self.products = check_integer("products", products, minimum=0)
        self.goals = check_option("goals", goals, GOALS)
        self.max_turns = check_integer("max_turns", max_turns, minimum=1)
        shown = check_integer("results_per_page", results_per_page, minimum=0)
        self.results_per_page = shown or (10 if self.data else 5)
        self.title_words = check_integer("title_words", title_words, minimum=0)
        self.new_codes, self.brackets = bool(new_codes), bool(brackets)
        self.reward = check_option("reward", reward, REWARDS)
        self.evaluated = check_option("evaluated", evaluated, SPLITS)

    @property
    def shop(self) -> Shop:
        """Products, goals and search; see `open_shop`."""
        return open_shop(self.data, self.products, self.goals)

    @property
    def layout(self) -> Layout:
        """How pages look."""
        return Layout(self.results_per_page, self.title_words, brackets=self.brackets)

    def new_episode(self, task: Mapping[str, Any], seed: int) -> "ShoppingEpisode":
        """An episode of a task; ValueError for what is none."""
        if (
            not isinstance(task, Mapping)
            or "split" not in task
            or not set(task) <= {"split", "goal"}
        ):
            raise ValueError(
                f'a task of the web shop is {{"split": name, "goal": number}}, with or without the '
                f"goal, not {repr(task)[:80]}"
            )
        number = task.get("goal")
        if number is None:
            goals = self.shop.goals_of(task["split"])
            number = stream(seed, "web shop goal").randrange(len(goals))
        shift = 0
        if self.new_codes:
            shift = stream(seed, "web shop codes").randrange(len(self.shop.products))
        return ShoppingEpisode(self, task["split"], number, shift)

    def training_tasks(self, count: int, seed: int) -> list[dict[str, Any]]:
        """Goals of the train split; each comes once before any comes again."""
        check_integer("count", count, minimum=0)
        tasks = self._drawn("train", seed)
        return [next(tasks) for _ in range(count)]

    def evaluation_tasks(self, count: int, seed: int) -> list[dict[str, Any]]:
        """`count` different goals of the evaluated split; ValueError where it has fewer."""
        check_integer("count", count, minimum=0)
        size = len(self.shop.goals_of(self.evaluated))
        if count > size:
            raise ValueError(f"{count} goals to be judged by: split {self.evaluated!r} has {size}")
        tasks = self._drawn(self.evaluated, seed)
        return [next(tasks) for _ in range(count)]

    def figures(self, tasks: Sequence[Any], records: Sequence[Any]) -> dict[str, float]:
        """Success (share of scores of 1), score, the share of episodes that bought, valid replies
        and turns; no record counts as no purchase."""
        return task_figures(tasks, records, _FIGURES)

    def baselines(self, tasks: Sequence[Any]) -> dict[str, dict[str, float]]:
        """Figures of random clicks, of a rule that reads the instruction, and of an oracle that
        knows the product."""
        found = {}
        for name, player in _BASELINES.items():
            records = []
            for number, task in enumerate(tasks):
                rng = stream(0, "web shop", name, number)
                episode = self.new_episode(task, 0)
                while not episode.done:
                    episode.step(player(episode, rng))
                records.append(episode.record())
            found[name] = self.figures(tasks, records)
        return found

    def expert_traces(
        self, num_decisions: int, seed: int, *, rationale: bool = False
    ) -> list[tuple[list[Message], str]]:
        """Decisions of the oracle on goals of the train split, each after the whole conversation
        before it; there is no rationale."""
        check_integer("num_decisions", num_decisions, minimum=0)
        traces: list[tuple[list[Message], str]] = []
        tasks = self._drawn("train", seed)
        while len(traces) < num_decisions:
            drawn = derive_seed(seed, "web shop trace", len(traces))
            episode, talk = self.new_episode(next(tasks), drawn), []
            while not episode.done:
                talk += episode.messages()
                reply = oracle(episode)
                traces.append((list(talk), reply))
                episode.step(reply)
                talk.append({"role": "assistant", "content": reply})
        return traces[:num_decisions]

    def _drawn(self, split: str, seed: int) -> Iterator[dict[str, Any]]:
        """Tasks of a split without end, all of it in a random order before any comes again."""
        size, cycle = len(self.shop.goals_of(split)), 0
        while True:
            order = stream(seed, "web shop", split, cycle).sample(range(size), size)
            yield from ({"split": split, "goal": number} for number in order)
            cycle += 1


class ShoppingEpisode:
    """A visit to the web shop (`domains.tasks.TaskEpisode`).

    Everything but the shop is in the episode, so that it pickles small.

    Attributes:
      split, number: of the goal.
      page: what the customer looks at.
      turns: replies so far. valid: how many of them were possible actions.
      done: whether something was bought, or no turn is left.
      score: of the purchase, None before one.
    """

    def __init__(self, domain: WebShop, split: str, number: int, shift: int = 0):
        goal = domain.shop.goal(split, number)
        self._domain, self.split, self.number, self._shift = domain, split, number, shift
        self.page = Page()
        self.turns = self.valid = 0
        self.done = False
        self.score: Score | None = None
        shown = page_text(domain.shop, self.page, self.layout)
        self._said = SEPARATOR.join(["Instruction:", goal.instruction, shown])

    @property
    def shop(self) -> Shop:
        """The shop, which all episodes share."""
        return self._domain.shop

    @property
    def layout(self) -> Layout:
        """How pages look."""
        return self._domain.layout._replace(shift=self._shift)

    @property
    def goal(self) -> Goal:
        """What the customer wants."""
        return self.shop.goal(self.split, self.number)

    @property
    def observation(self) -> str:
        """Goal and page: what can happen next depends on them and the number of turns alone."""
        page = self.page
        chosen = sorted(f"{option}: {value}" for option, value in page.chosen)
        parts = [
            f"{self.split}/{self.number}",
            self._shift,
            page.kind,
            page.keywords,
            page.number,
            page.product,
        ]
        return SEPARATOR.join(map(str, [*parts, *chosen]))

    def messages(self) -> list[Message]:
        """The page that the last reply led to, or what it changed on it."""
        user = {"role": "user", "content": self._said}
        return [user] if self.turns else [{"role": "system", "content": SYSTEM}, user]

    def legal_actions(self) -> tuple[str, ...]:
        """Clicks on what the page shows; on the start page one search, of the instruction's words,
        in place of all others."""
        if self.page.kind == START:
            return (f"search[{keywords(self.goal.instruction)}]",)
        names = clickables(self.shop, self.page, self.layout)
        return tuple(f"click[{name}]" for name in names)

    def step(self, reply: str) -> float:
        """Plays a reply; what cannot be read or clicked changes nothing but the number of turns.

        Raises:
          EpisodeFinished: the episode is over.
        """
        if self.done:
            raise EpisodeFinished("this visit to the web shop is over")
        self.turns += 1
        action = parse_action(reply)
        if action is None:
            self._said = _INVALID
        elif clicked(self.shop, self.page, action, self.layout) == BUY:
            self._buy()
        else:
            self._go(follow(self.shop, self.page, action, self.layout))
        self.done = self.score is not None or self.turns >= self._domain.max_turns
        if self.score is None:
            return 0.0
        return self.score.total if self._domain.reward == "score" else float(self._succeeded)

    def record(self) -> dict[str, Any]:
        """Goal, purchase and the parts of its score."""
        score = self.score or Score(0.0, 0.0, 0, 0, False)
        return {
            "goal": f"{self.split}/{self.number}",
            "product": self.page.product if self.score is not None else None,
            "options": dict(self.page.chosen) if self.score is not None else {},
            "score": score.total,
            "success": self._succeeded,
            "bought": self.score is not None,
            "type_factor": score.type_factor,
            "attribute_matches": score.attributes,
            "option_matches": score.options,
            "price_ok": score.price,
            "turns": self.turns,
            "valid": self.valid / max(self.turns, 1),
        }

    @property
    def _succeeded(self) -> bool:
        return self.score is not None and self.score.total == 1.0

    def _go(self, page: Page | None) -> None:
        """Shows another page, or the same one with another choice; None is no possible action."""
        if page is None:
            self._said = _INVALID
            return
        self.valid += 1
        same = page._replace(chosen=self.page.chosen) == self.page
        self.page = page
        if same and page.chosen:
            self._said = choices_text(page)
        else:
            self._said = page_text(self.shop, page, self.layout)

    def _buy(self) -> None:
        goal, products = self.goal, self.shop.products
        chosen = [value for _, value in self.page.chosen]
        bought, wanted = products[self.page.product], products[goal.product]
        self.valid += 1
        self.score = purchase_score(bought, chosen, goal, wanted)
