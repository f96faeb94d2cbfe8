"""The exploit-pool advantage of SEPO in Kuhn poker beside the exact NashConv."""

import json

from sepo_jax.domains import Kuhn
from sepo_jax.evaluation import nash_conv_of_table, table_from_named
from sepo_jax.evaluation.claims import Finding
from sepo_jax.evaluation.statistics import seed_interval
from sepo_jax.games.kuhn import KUHN
from sepo_jax.sepo import SepoWeights
from sepo_jax.sepo.exact import exact_terms

from .base import Measured, Panel
from .bench import Bench

# Chips a hand below which e counts as none; uniform play gives 0.583 away.
NONE = 0.05


def exploit_pool(bench: Bench) -> Measured:
    """Exact e against the paper's pool, and NashConv, of the action tables before and after SEPO.

    The claim holds where e after SEPO lies below `NONE`; NashConv is what e does not say.
    """
    stages = {"SFT": "sft", "SEPO": "sepo"}
    gaps: dict[str, list[float]] = {label: [] for label in stages}
    exact: dict[str, list[float]] = {label: [] for label in stages}
    for seed in bench.seeds:
        text = (bench.kuhn_run(seed) / "tables.json").read_text(encoding="utf-8")
        for label, stage in stages.items():
            rows = json.loads(text)[stage]
            terms = exact_terms(Kuhn(), rows, SepoWeights())
            gaps[label].append(terms["exploit_pool_advantage"])
            exact[label].append(float(nash_conv_of_table(KUHN, table_from_named(KUHN, rows).table)))
    findings = [
        Finding("e after SEPO, chips a hand", seed_interval(gaps["SEPO"]), "below", NONE),
        Finding("e after SFT", seed_interval(gaps["SFT"])),
        Finding("NashConv after SEPO", seed_interval(exact["SEPO"])),
        Finding("NashConv after SFT", seed_interval(exact["SFT"])),
    ]
    return Measured(
        findings,
        [
            Panel("e against the fixed pool, exact", gaps, NONE),
            Panel("NashConv, exact", exact, 0.0),
        ],
    )
