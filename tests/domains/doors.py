"""A repeated game small enough to check by eye, and an opponent that can be told what to do."""

from sepo_jax.domains import RepeatedGame, Round, Situation, Strategy
from sepo_jax.domains.seeds import stream

WORDS = ("LEFT", "STAY", "RIGHT")


class Stays(Strategy):
    """Plays STAY."""

    def choose(self, view):
        return "STAY"


class Wavers(Strategy):
    """Plays LEFT one time in four, else RIGHT."""

    def distribution(self, view):
        return {"LEFT": 0.25, "RIGHT": 0.75}


class Doors(RepeatedGame):
    """A made-up game: secret digits of both, a public wind, and a prize for the agent by chance.

    The agent gets the index of its move plus a tenth of a draw, the opponent the index of its own.
    """

    name = "doors"
    max_payoff = 2.0
    worst_payoff = -5.0
    default_rounds = 3

    def __init__(self, **settings):
        super().__init__(**settings)
        self.pools = {
            "train": {"Stays": Stays},
            "exploiter": {"Wavers": Wavers},
            "collusive": {"Stays": Stays},
        }
        self.experts = {"Wavers": (1.0, Wavers)}

    def situation(self, seed, number):
        rng = stream(seed, "doors", number)
        own, other, wind = (rng.randrange(10) for _ in range(3))
        private = (f"Your digit: {own}.", f"Your digit: {other}.")
        return Situation(WORDS, f"Wind: {wind}.", private, data=(own, other))

    def payoffs(self, situation, own, other, rng):
        return WORDS.index(own) + rng.randrange(10) / 10, WORDS.index(other)

    def score(self, situation, own, other, payoffs):
        return Round(*payoffs, harmful=float(own == "LEFT"), externality=float(own == other))

    def rules(self):
        return "Choose a door."


class Spy:
    """Notes its views; plays the items given to it, of which exceptions are raised."""

    name = "Spy"

    def __init__(self, *moves):
        self.moves = moves

    def reset(self, rng):
        self.views, self.left = [], list(self.moves)

    def act(self, view):
        self.views.append(view)
        move = self.left.pop(0) if self.left else 0
        if isinstance(move, BaseException):
            raise move
        return move


def play(episode, word="RIGHT"):
    """Plays one reply to the end; returns the episode."""
    while not episode.done:
        episode.step(word)
    return episode
