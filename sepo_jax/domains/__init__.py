"""Tasks that speak text: rules, prompts, parsers, opponents and experts (no jax)."""

from sepo_jax.domains.auction import RepeatedAuction
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
from sepo_jax.domains.ipd import IteratedPrisonersDilemma
from sepo_jax.domains.kuhn import Kuhn
from sepo_jax.domains.negotiation_v1 import SplitBargaining
from sepo_jax.domains.negotiation_v2 import ItemNegotiation
from sepo_jax.domains.played import Played
from sepo_jax.domains.repeated import PastRound, RepeatedGame, Situation, Strategy

__all__ = [
    "Decision",
    "Domain",
    "Episode",
    "EpisodeFailed",
    "EpisodeFinished",
    "ItemNegotiation",
    "IteratedPrisonersDilemma",
    "Kuhn",
    "Message",
    "Opponent",
    "PastRound",
    "Played",
    "RepeatedAuction",
    "RepeatedGame",
    "Round",
    "Situation",
    "SplitBargaining",
    "Strategy",
    "TablePolicy",
    "View",
]
