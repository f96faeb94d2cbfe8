"""Several games as one domain, for a policy that learns to play all of them."""

from collections.abc import Sequence
from typing import Any

from sepo_jax.domains.arguments import check_integer
from sepo_jax.domains.base import Domain, Episode, Message, OpponentLike
from sepo_jax.names import check_option


class JointDomain:
    """Domains side by side: an episode says by `game` which of them it is of.

    Environments and expert traces serve it as they serve any domain. What is measured (pools,
    scales, penalties) stays with each game: see `games_of`.

    Args:
      games: two domains or more, with names of their own.
      name: label of the whole.

    Attributes:
      games: name -> domain, in the order given.
      game: None: a tree is of one game.

    Raises:
      ValueError: fewer than two games, or two of one name.
    """

    game: str | None = None

    def __init__(self, games: Sequence[Domain], name: str = "joint"):
        names = [game.name for game in games]
        if len(set(names)) < max(len(names), 2):
            raise ValueError(
                f"a joint domain needs two games or more, each once, not {names}; a single game "
                "is a domain of its own"
            )
        self.name = name
        self.games = dict(zip(names, games, strict=True))

    def __deepcopy__(self, memo: dict) -> "JointDomain":
        # Never changes after construction, like the domains in it.
        return self

    def new_episode(
        self, opponent: OpponentLike, seed: int, seat: int | None = None, *, game: str
    ) -> Episode:
        """A started episode of one game; the other arguments are its domain's."""
        check_option("game", game, self.games)
        return self.games[game].new_episode(opponent, seed, seat)

    def expert_traces(
        self, num_decisions: int, seed: int, *, rationale: bool = False
    ) -> list[tuple[list[Message], str]]:
        """Expert decisions of all games, game after game, each the same number.

        What `num_decisions` leaves over goes to the first games, one each.
        """
        share, more = divmod(check_integer("num_decisions", num_decisions, 0), len(self.games))
        return [
            trace
            for number, domain in enumerate(self.games.values())
            for trace in domain.expert_traces(share + (number < more), seed, rationale=rationale)
        ]


def games_of(domain: Any) -> dict[str, Any]:
    """Name -> domain of each game: those of a `JointDomain`, else the domain itself."""
    return domain.games if isinstance(domain, JointDomain) else {domain.name: domain}
