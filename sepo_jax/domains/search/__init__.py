"""Question answering by teams that search."""

from sepo_jax.domains.search.domain import SearchTeam

__all__ = ["SearchTeam"]
