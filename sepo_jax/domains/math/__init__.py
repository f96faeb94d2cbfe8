"""Mathematics for teams."""

from sepo_jax.domains.math.domain import MathTeam

__all__ = ["MathTeam"]
