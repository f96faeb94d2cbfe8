"""Household tasks of ALFWorld."""

from sepo_jax.domains.alfworld.domain import AlfWorld

__all__ = ["AlfWorld"]
