"""Claims of the papers, each with what measures it and the rule of its verdict.

    CLAIMS["sepo/constant_penalty"].measure(bench)

A family, the part of a name before the slash, is a module here with its own `CLAIMS`.
`experiments/reproduce.py` runs them; `sepo_jax.evaluation.claims` has the rule of verdicts.
"""

from .base import Claim, Measured, Panel
from .bench import Bench
from .sepo import CLAIMS as SEPO_CLAIMS

CLAIMS: dict[str, Claim] = {**SEPO_CLAIMS}
# What stands above the table of a family.
TITLES = {"sepo": "Claims of SEPO (arXiv 2605.30854) on policies that are trained here."}

__all__ = ["CLAIMS", "TITLES", "Bench", "Claim", "Measured", "Panel"]
