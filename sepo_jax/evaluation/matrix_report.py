"""The matrix benchmark of one model: its replies, their scores beside the baselines', a table.

arms = benchmark_tasks()
replies = policy_replies(policy, params, arms)       # or endpoint_replies(endpoint, arms)
record = judge_replies(arms, replies)                # JSON values
print(render_table(record))
"""

import math
from collections.abc import Mapping, Sequence
from typing import Any

import chex
import numpy as np

from ..domains.matrix_game import messages, parse
from ..domains.seeds import derive_seed
from ..policy import Policy, Sampling
from ..rollout import generate
from .endpoint import Endpoint, ask
from .matrix_benchmark import (
    THRESHOLD,
    Scores,
    has_saddle,
    score_answers,
    score_baselines,
    summarise,
)
from .matrix_tasks import ARMS, BenchmarkGame

Arms = Mapping[str, Sequence[BenchmarkGame]]
Replies = Mapping[str, Sequence[str | None]]
GREEDY = Sampling(greedy=True)
_HEADINGS = (
    *("arm", "games", "valid", "success", "95% interval", "given valid", "residual", "row's"),
    *("uniform", "saddle", "best pure", "exact"),
)
_RESULT_BASELINES = ("uniform", "best_pure", "exact")
RESULT_COLUMNS = (
    *("arm", "policy", "games", "valid", "success", "success low", "success high", "given valid"),
    *("residual", "uniform", "best pure", "exact"),
)


def policy_replies(
    policy: Policy,
    params: chex.ArrayTree,
    arms: Arms,
    *,
    sampling: Sampling = GREEDY,
    max_tokens: int = 256,
    seed: int = 0,
    progress: bool = False,
) -> dict[str, list[str | None]]:
    """One reply of a policy to each game, by arm.

    Args:
      policy, params: with a tokenizer.
      arms: of `matrix_tasks.benchmark_tasks`.
      sampling: greedy, or how tokens are drawn.
      max_tokens: most tokens of a reply.
      seed: of all draws.
      progress: show a progress bar for each arm that takes long.

    Raises:
      ValueError: an arm whose prompts leave no room for a reply; it is named.
    """
    replies: dict[str, list[str | None]] = {}
    for arm, games in arms.items():
        prompts = [messages(game.task) for game in games]
        try:
            found = generate(
                policy,
                params,
                prompts,
                max_tokens=max_tokens,
                sampling=sampling,
                seed=derive_seed(seed, "matrix replies", arm) % 2**31,
                progress=f"matrix {arm}" if progress else "",
            )
        except ValueError as error:
            raise ValueError(
                f"arm {arm}: {error}. Leave the arm out (--arms) or lower --max_tokens."
            ) from error
        replies[arm] = [each.text for each in found]
    return replies


def endpoint_replies(
    endpoint: Endpoint, arms: Arms, *, progress: bool = False
) -> dict[str, list[str | None]]:
    """One reply of a model behind an endpoint to each game, None where it gave none; see `ask`."""
    prompts = [messages(game.task) for games in arms.values() for game in games]
    texts = iter(ask(endpoint, prompts, progress="matrix games" if progress else ""))
    return {arm: [next(texts) for _ in games] for arm, games in arms.items()}


def judge_replies(
    arms: Arms, replies: Replies, *, threshold: float = THRESHOLD, seed: int = 0
) -> dict[str, Any]:
    """Scores of all replies, in JSON values.

    Args:
      arms: the games. replies: a text or None for each; None is left out and counted.
      threshold: of success, relative to the payoff range.
      seed: of bootstrap intervals.

    Returns:
      "threshold"; "rows", one an arm: those of `matrix_benchmark.Row.record`, with "unanswered",
      "saddle_points" (share of games that have one) and "baselines", name -> record of its row;
      "replies", arm -> one an answered game: its task, status, residuals and text.

    Raises:
      ValueError: other arms or numbers of replies than of games, or no reply at all.
    """
    given = {arm: len(texts) for arm, texts in replies.items()}
    if given != {arm: len(games) for arm, games in arms.items()}:
        raise ValueError(f"replies {given} do not fit the games of {list(arms)}; give one for each")
    rows, details = [], {}
    for arm, games in arms.items():
        pairs = zip(games, replies[arm], strict=True)
        kept = [(game, text) for game, text in pairs if text is not None]
        if not kept:
            raise ValueError(f"no game of arm {arm} has a reply: there is nothing to score")
        row, details[arm] = _judge_arm(arm, kept, {"threshold": threshold, "seed": seed})
        rows.append(row | {"unanswered": len(games) - len(kept)})
    return {"threshold": threshold, "rows": rows, "replies": details}


def _judge_arm(
    arm: str, kept: list[tuple[BenchmarkGame, str]], options: Mapping[str, Any]
) -> tuple[dict[str, Any], list[dict[str, Any]]]:
    """The row of an arm, and the details of its replies."""
    payoffs = [game.payoffs for game, _ in kept]
    answers = [parse(text, *game.task.shape) for game, text in kept]
    scores, groups = score_answers(payoffs, answers), [arm] * len(kept)

    def row_of(each: Scores) -> dict[str, Any]:
        return summarise(each, groups, **options)[0].record()

    row = row_of(scores) | {
        "saddle_points": float(np.mean([has_saddle(table) for table in payoffs])),
        "baselines": {name: row_of(each) for name, each in score_baselines(payoffs).items()},
    }
    details = [
        {
            "task": game.task.record(),
            "status": answer.status,
            "residual": _known(scores.residual[number]),
            "row_residual": _known(scores.row_residual[number]),
            "reply": text,
        }
        for number, ((game, text), answer) in enumerate(zip(kept, answers, strict=True))
    ]
    return row, details


def render_table(record: Mapping[str, Any]) -> str:
    """The rows of `judge_replies` as lines of text, with what they mean below."""
    lines = [_HEADINGS]
    for row in record["rows"]:
        success = row["success"]
        lines.append(
            (
                row["group"],
                str(row["count"]),
                _percent(row["valid"]),
                _percent(success),
                f"{100 * success[1]:.0f} to {100 * success[2]:.0f}%",
                _percent(row["success_given_valid"]),
                _number(row["residual"]),
                _number(row["row_residual"]),
                *(_percent(each["success"]) for each in row["baselines"].values()),
            )
        )
    widths = [max(len(line[column]) for line in lines) for column in range(len(_HEADINGS))]
    table = [
        "  ".join([line[0].ljust(widths[0]), *map(str.rjust, line[1:], widths[1:])])
        for line in lines
    ]
    unanswered = sum(row["unanswered"] for row in record["rows"])
    notes = [
        f"success: valid, and a residual of at most {record['threshold']:g} of the payoff range;"
        " the last four columns are the successes of baselines.",
        "residual: NashConv, the sum of both players' best-response gains (not halved);"
        " row's: what the row player loses to a best response; both are means over valid answers,"
        " relative to the range.",
        *([f"games without an answer, which are left out: {unanswered}."] if unanswered else []),
    ]
    return "\n".join([*table, *notes])


def result_rows(record: Mapping[str, Any], label: str) -> list[list[Any]]:
    """The rows of `judge_replies` by `RESULT_COLUMNS`, shares and means in four digits.

    Args:
      record: of `judge_replies`. label: what the rows call the model.
    """
    rows = []
    for row in record["rows"]:
        given, residual = row["success_given_valid"], row["residual"]
        players = [row["baselines"][player]["success"][0] for player in _RESULT_BASELINES]
        numbers = [row["valid"][0], *row["success"], given and given[0], residual and residual[0]]
        cells = [None if each is None else round(each, 4) for each in [*numbers, *players]]
        rows.append([row["group"], label, row["count"], *cells])
    return rows


def merge_result_rows(
    old: Sequence[Sequence[Any]], new: Sequence[Sequence[Any]]
) -> list[list[Any]]:
    """Rows of `result_rows`: those of other models and arms stay; sorted by arm, models as they
    came."""
    merged = {(row[0], row[1]): list(row) for row in [*old, *new]}
    return [row for arm in ARMS for key, row in merged.items() if key[0] == arm]


def _percent(interval: Sequence[float] | None) -> str:
    return "–" if interval is None else f"{100 * interval[0]:.0f}%"


def _number(interval: Sequence[float] | None) -> str:
    return "–" if interval is None else f"{interval[0]:.3f}"


def _known(number: float) -> float | None:
    return None if math.isnan(number) else float(number)
