"""What a page on trees says beside the drawing: numbers, the figures of a tree, the legend."""

from collections.abc import Mapping, Sequence
from typing import Any

from .page import Html, tag

MINUS = "\u2212"


def plain(value: float | None) -> str:
    """A number to two decimals; a dash for a missing one."""
    return "–" if value is None else f"{value:.2f}".replace("-", MINUS)


def signed(value: float | None) -> str:
    """A number to two decimals with its sign; 0 has none."""
    return f"+{plain(value)}" if value and value > 0 else plain(value)


def share(value: float | None) -> str:
    """A weight: as 1/n where it is that, else a number of two digits."""
    if not value:
        return "–" if value is None else "0"
    parts = round(1 / value)
    if parts and parts < 100_000 and abs(parts * value - 1) < 1e-4:
        return "1" if parts == 1 else f"1/{parts}"
    return f"{value:.2g}"


def facts(record: Mapping[str, Any], children: Sequence[Sequence[int]]) -> Html:
    """The figures of a record in one line."""
    tokens, leaves, segments = record["tokens"], record["leaves"], record["segments"]
    trunks = sum(leaf["trunk"] for leaf in leaves)
    points = sum(len(below) > 1 for below in children)
    saved = 1 - tokens["once"] / max(tokens["per_leaf"], 1)
    roots = [segment["return"] for segment in segments if segment["parent"] < 0]
    shown = {
        "algorithm": record["algorithm"]["name"],
        "leaves": str(len(leaves)),
        "trunks": str(trunks),
        "branch points": str(points),
        "return of the prompt": plain(roots[0]) if len(roots) == 1 else "",
        "tokens": f"{tokens['once']:,} computed once; {tokens['per_leaf']:,} as separate leaves "
        f"({saved:.0%} shared)",
    }
    if record["prompts"] > 1:
        shown["prompt"] = f"1 of {record['prompts']}, the one whose returns differ most"
    return tag(
        "dl",
        *(tag("div", tag("dt", name), tag("dd", value)) for name, value in shown.items() if value),
        class_="facts",
    )


def legend(record: Mapping[str, Any]) -> Html:
    """What each number and sign means, a line each."""
    row = record["algorithm"]
    entropy = {
        "first_token": "at the first token of the decision",
        "mean": "mean over the tokens of the trunk's decision",
    }[record["entropy_of"]]
    weight = "1 for every segment that takes part"
    if row["segment_weight"] == "path":
        weight = "w = product of 1/K over the branch points above, K their continuations"
    entries = [
        ("R", "return of a leaf: sum of the rewards along its path. Of a branch point: R = mean of "
         "its children's R"),
        ("A", f"advantage of an action's tokens, bold in its box: {advantage_sentence(row)}"),
        ("w", f"how much its tokens count in the loss: {weight}"),
        ("H", f"entropy in nats: H = {MINUS}Σ p log p over the next token, {entropy}; bars: along "
         "the first trunk"),
        ("×n", "shared by n leaves: computed once in rollout and update, and drawn wider"),
        ("n t", "n given tokens: prompt or observation"),
        ("log p", "log-probability of a token when it was sampled, in nats"),
    ]  # fmt: skip
    shades = tag(
        "span", tag("i", class_="up"), "A > 0 ", tag("i", class_="down"), "A < 0 ",
        tag("i", class_="none"), "A = 0 or no part in the loss", class_="shades",
    )  # fmt: skip
    listed = [tag("div", tag("dt", name), tag("dd", words)) for name, words in entries]
    listed.append(tag("div", tag("dt", "colour"), tag("dd", shades)))
    return tag("dl", *listed, class_="legend")


_BASELINES = {
    "mean": "mean of all children's R",
    "monte_carlo": "R(branch point), which is the mean of all children's R",
    "leave_one_out": "mean of its siblings' R",
}
_WITHIN = {
    "root": "leaves of the prompt",
    "root_then_tree": "leaves of the prompt, and the results again within each tree",
    "root_plus_tree": "leaves of the prompt, plus the same within each tree",
    "observation": "leaves of the prompt, plus the same over actions that saw the same observation",
    "agent": "actions of the same agent",
    "turn": "actions of the same agent and turn",
    "event_type": "events of the same kind",
}


def advantage_sentence(row: Mapping[str, Any]) -> str:
    """The formula of the advantage under a row of the table, as a record has it."""
    divided = "" if row["scale"] == "none" else " over their standard deviation"
    if row["compare"] == "parent":
        one_leaf = (
            "" if row["node_return"] == "subtree_mean" else ", R of a branch that of one leaf"
        )
        text = (
            f"A(child) = R(child) {MINUS} {_BASELINES[row['baseline']]}{divided}{one_leaf}, kept "
        )
        text += "until the next branch point"
        if row["prefix_credit"] == "lambda":
            text += f"; plus {row['lambda_prefix']:g}^distance times A of what follows on the trunk"
        elif row["prefix_credit"] == "none":
            text += "; 0 above the first"
        return text
    if row["compare"] == "none":
        critic = "generalised, from the critic" if row["baseline"] == "critic" else "its return"
        return f"{critic}, mean over its tokens"
    others = "the others" if row["baseline"] == "leave_one_out" else "all"
    return (
        f"A = R {MINUS} mean over {others}{divided}, among the {_WITHIN[row['compare']]}; what "
        "several leaves share has their weighted mean"
    )
