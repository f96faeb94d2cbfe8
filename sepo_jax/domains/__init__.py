"""Tasks that speak text: rules, prompts, parsers, opponents and experts (no jax)."""

from sepo_jax.domains.base import (
    Decision,
    Domain,
    Episode,
    EpisodeFinished,
    Message,
    Opponent,
    Round,
    View,
)
from sepo_jax.domains.kuhn import Kuhn
from sepo_jax.domains.kuhn_players import TablePolicy

__all__ = [
    "Decision",
    "Domain",
    "Episode",
    "EpisodeFinished",
    "Kuhn",
    "Message",
    "Opponent",
    "Round",
    "TablePolicy",
    "View",
]
