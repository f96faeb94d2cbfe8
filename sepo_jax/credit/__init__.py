"""Credit: from the returns of a forest to the advantage and weight of every token."""

from sepo_jax.credit.assign import Credit, assign_credit, prepare
from sepo_jax.credit.comparisons import subtree_returns

__all__ = ["Credit", "assign_credit", "prepare", "subtree_returns"]
