"""Games of OpenSpiel, compiled. The package is an optional extra and imported on first use."""

from typing import Any

from sepo_jax.games.compiler import CHANCE, SharedNameError, TreeGame, compile_game


def from_open_spiel(name: str, /, **parameters: Any) -> TreeGame:
    """Compiles a small two-player OpenSpiel game; simultaneous moves become hidden turns.

    Information sets keep OpenSpiel's strings, with "[player p] " before them only in games that use
    one string for both players. Actions keep OpenSpiel's numbers.

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
    root = game.new_initial_state()
    try:
        return compile_game(_OpenSpielState(root, False), name)
    except SharedNameError:
        return compile_game(_OpenSpielState(root, True), name)


class _OpenSpielState:
    """An OpenSpiel state behind the protocol of `compiler.State`."""

    def __init__(self, state, prefix_player: bool):
        self._state = state
        self._prefix_player = prefix_player

    def is_terminal(self) -> bool:
        return self._state.is_terminal()

    def current_player(self) -> int:
        return CHANCE if self._state.is_chance_node() else self._state.current_player()

    def legal_actions(self) -> list[int]:
        return self._state.legal_actions()

    def chance_outcomes(self) -> list[tuple[int, float]]:
        return self._state.chance_outcomes()

    def child(self, action: int) -> "_OpenSpielState":
        return _OpenSpielState(self._state.child(action), self._prefix_player)

    def information_state(self) -> str:
        text = self._state.information_state_string()
        return f"[player {self.current_player()}] {text}" if self._prefix_player else text

    def returns(self) -> list[float]:
        return self._state.returns()
