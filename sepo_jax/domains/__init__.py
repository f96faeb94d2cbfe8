"""Tasks that speak text: rules, prompts, parsers, opponents and experts (no jax)."""

from sepo_jax.domains.base import (
    Decision,
    Domain,
    Episode,
    EpisodeFinished,
    Message,
    Opponent,
    Round,
    TablePolicy,
    View,
)
from sepo_jax.domains.kuhn import Kuhn

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
