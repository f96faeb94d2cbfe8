"""The baselines that every figure of a report stands beside, filled in where the run lacks them."""

from collections.abc import Mapping, Sequence
from typing import Any

from ..domains import Kuhn
from ..sepo import SepoWeights, evaluate, payoff_scale
from ..sepo.exact import exact_episodes
from .nash_family import KUHN_FAMILY, KUHN_UNIFORM_NASH_CONV, is_kuhn
from .run_data import RunData, to_number

STAGE_ORDER = (
    *("uniform", "best_pure", "untrained", "base", "sft", "sepo", "rl"),
    *("expert", "best_known"),
)
# Tables that ARE the policy. A language model's table leaves its illegal replies out, so figures of
# its play cannot be had from the table.
_TABLE_POLICIES = ("uniform", "best_known")


def by_stage(summary: Mapping[str, Any]) -> dict[str, dict[str, Any]]:
    """Flat keys "stage/measure" as stage -> measure -> value, in the order of STAGE_ORDER.

    Keys without a stage ("seed") and values that are no numbers are left to the details section.
    "expert/<name>/measure" is of the stage "expert"; `experts` has the names.
    """
    stages: dict[str, dict[str, Any]] = {}
    for key, value in summary.items():
        stage, slash, measure = key.partition("/")
        if stage == "expert":
            measure = measure.partition("/")[2]
        if slash and to_number(value) is not None:
            stages.setdefault(stage, {})[measure] = to_number(value)
    return in_order(stages)


def experts(summary: Mapping[str, Any]) -> dict[str, str]:
    """Game -> name of the expert whose figures the summary holds; "" for a single game."""
    found: dict[str, str] = {}
    for key in summary:
        stage, _, rest = key.partition("/")
        name, slash, measure = rest.partition("/")
        if stage == "expert" and slash:
            found.setdefault(game_of_key(measure, games_of_run(summary)), name)
    return found


def games_of_run(summary: Mapping[str, Any]) -> list[str]:
    """Names of the games of a run over several, [] for one over a single game."""
    games = summary.get("games")
    return [game for game in games if isinstance(game, str)] if isinstance(games, list) else []


def game_of_key(key: str, games: Sequence[str]) -> str:
    """The game that a key "<game>/<measure>" is of, "" where it is of none or of all."""
    first, slash, _ = key.partition("/")
    return first if slash and first in games else ""


def in_order(stages: Mapping[str, Any]) -> dict[str, Any]:
    """Stages in the order of STAGE_ORDER, unknown ones after them."""
    order = [s for s in STAGE_ORDER if s in stages] + [s for s in stages if s not in STAGE_ORDER]
    return {stage: stages[stage] for stage in order}


def run_is_kuhn(run: RunData) -> bool:
    """True when the run plays Kuhn poker alone, by its config or by the sets of its tables.

    A domain that was given in Python is not in the config, so a run over tasks has it by default.
    """
    if games_of_run(run.summary) or run.tasks:
        return False
    domain = run.config.get("domain")
    name = domain.get("name") if isinstance(domain, Mapping) else domain
    return name in ("kuhn", "kuhn_poker") or any(is_kuhn(list(t)) for t in run.tables.values())


def with_baselines(run: RunData) -> dict[str, dict[str, Any]]:
    """The summary by stage, with baselines of Kuhn poker filled in where the run lacks them.

    A partial run has no summary yet, and its numbers need their reference points all the same:
    uniform play has NashConv 11/12 and an equilibrium 0. The figures of match play are computed
    for both without sampling. NashConv is also given halved, so that nobody has to guess which of
    the two a number is; in other games it is not, because half of it is the exploitability only
    where there are two players and a constant sum.
    """
    stages = by_stage(run.summary)
    if run_is_kuhn(run):
        stages.setdefault("uniform", {}).setdefault("nash_conv", KUHN_UNIFORM_NASH_CONV)
        stages.setdefault("best_known", {}).setdefault("nash_conv", 0.0)
        measured = {key for measures in stages.values() for key in measures}
        for stage in _TABLE_POLICIES:
            figures = _exact_figures(run, stage)
            figures["sampled_nash_conv"] = stages[stage]["nash_conv"]
            figures |= dict.fromkeys(("illegal_mass", "max_illegal_mass"), 0.0)
            for key, value in figures.items():
                if key in measured:
                    stages[stage].setdefault(key, value)
        for measures in stages.values():
            if "nash_conv" in measures:
                measures.setdefault("exploitability", measures["nash_conv"] / 2)
    return in_order(stages)


def _exact_figures(run: RunData, stage: str) -> dict[str, float]:
    """Match-play figures of a table policy under the run's own pools and weights; {} if unknown."""
    table = run.tables.get(stage)
    if stage == "uniform":
        table = {name: [0.5, 0.5] for name in KUHN_FAMILY}
    if table is None or set(table) != set(KUHN_FAMILY):
        return {}
    domain, sepo = run.config.get("domain"), run.config.get("sepo")
    if not isinstance(domain, Mapping) or not isinstance(sepo, Mapping):
        return {}
    kept = ("hands", "faithful", "on_invalid", "collusion", "exploiters")
    names = ("exploitability_weight", "collusion_weight", "externality_weight")
    try:
        task = Kuhn(**{key: domain[key] for key in kept if key in domain})
        weights = SepoWeights(*(float(sepo[name]) for name in names))
        if task.hands != 1:
            return {}
        arrays, _ = exact_episodes(task, table)
        figures = evaluate(arrays, weights, payoff_scale(task.max_payoff), resamples=0)
    except (KeyError, TypeError, ValueError, OverflowError):
        # A config of another version, or a table that is no policy: the page shows a dash.
        return {}
    # Tables reply legally by construction; that is no measurement.
    return {name: found.value for name, found in figures.items() if name != "legal_rate"}
