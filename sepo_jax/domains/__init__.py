"""Tasks that speak text: rules, prompts, parsers, opponents and experts (no jax)."""

from sepo_jax.domains.base import (
    Decision,
    Domain,
    Episode,
    EpisodeFailed,
    EpisodeFinished,
    Message,
    Opponent,
    Round,
    TablePolicy,
    View,
)
from sepo_jax.domains.kuhn import Kuhn
from sepo_jax.domains.played import Played

__all__ = [
    "Decision",
    "Domain",
    "Episode",
    "EpisodeFailed",
    "EpisodeFinished",
    "Kuhn",
    "Message",
    "Opponent",
    "Played",
    "Round",
    "TablePolicy",
    "View",
]
