"""Games of OpenSpiel, compiled. The package is an optional extra and imported on first use."""

from typing import Any

from sepo_jax.games.compiler import CHANCE, TreeGame, compile_game
from sepo_jax.names import did_you_mean


def from_open_spiel(name: str, /, **parameters: Any) -> TreeGame:
    """Compiles a small two-player OpenSpiel game; simultaneous moves become hidden turns.

    Information sets keep OpenSpiel's strings and actions its numbers.

    Args:
      name: OpenSpiel's short name, such as "liars_dice"; parameters: that game's parameters.

    Raises:
      ImportError: OpenSpiel is missing; the message names the extra.
      ValueError: an unknown game or parameter, or a game `compile_game` refuses.
    """
    try:
        import pyspiel
    except ImportError as error:
        raise ImportError(
            'from_open_spiel needs OpenSpiel: pip install "sepo_jax[openspiel]"'
        ) from error
    if name not in pyspiel.registered_names():
        hint = did_you_mean(name, pyspiel.registered_names())
        raise ValueError(f"OpenSpiel has no game {name!r}.{hint}")
    try:
        game = pyspiel.load_game(name, parameters)
    except pyspiel.SpielError as error:
        raise ValueError(f"OpenSpiel cannot load {name!r} with {parameters}: {error}") from error
    if game.num_players() != 2:
        raise ValueError(
            f"OpenSpiel game {name!r} has {game.num_players()} players; 2 are supported"
        )
    if game.get_type().dynamics == pyspiel.GameType.Dynamics.SIMULTANEOUS:
        game = pyspiel.convert_to_turn_based(game)
    if not game.get_type().provides_information_state_string:
        raise ValueError(f"OpenSpiel game {name!r} does not name its information states")
    return compile_game(_OpenSpielState(game.new_initial_state()), name)


class _OpenSpielState:
    """An OpenSpiel state behind the protocol of `compiler.State`."""

    def __init__(self, state):
        self._state = state

    def is_terminal(self) -> bool:
        return self._state.is_terminal()

    def current_player(self) -> int:
        return CHANCE if self._state.is_chance_node() else self._state.current_player()

    def legal_actions(self) -> list[int]:
        return self._state.legal_actions()

    def chance_outcomes(self) -> list[tuple[int, float]]:
        return self._state.chance_outcomes()

    def child(self, action: int) -> "_OpenSpielState":
        return _OpenSpielState(self._state.child(action))

    def information_state(self) -> str:
        return self._state.information_state_string()

    def returns(self) -> list[float]:
        return self._state.returns()
