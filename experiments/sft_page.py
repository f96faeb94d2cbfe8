"""The page of supervised data: statistics.json as tables and charts, in one file."""

from collections.abc import Mapping
from typing import Any

from sft_statistics import ALL_EXPERTS

from sepo_jax.domains import Message
from sepo_jax.evaluation import page, plots
from sepo_jax.evaluation.page import Html, number, tag

_MOST_ACTIONS = 9  # with a bar of their own


def render_page(
    statistics: Mapping[str, Any], samples: Mapping[str, tuple[list[Message], str]]
) -> str:
    """The page as text, without an address of any kind; equal statistics give equal text.

    Args:
      statistics: as in statistics.json: "settings" and "games".
      samples: game -> a prompt and its reply.
    """
    games = statistics["games"]
    sections = [("overview", "Overview", _overview(games))]
    for name, game in games.items():
        content = [_lengths_and_actions(game), _players(game), _payoffs(game)]
        content.append(page.details("One decision", _sample(*samples[name])))
        lead = (
            f"{sum(game['decisions'].values()):,} decisions of "
            f"{sum(game['episodes'].values()):,} episodes."
        )
        sections.append((name, name, page.section(name, name, lead, *content)))
    sections.append(
        ("settings", "Settings", page.section("settings", "Settings", "What wrote the files.",
         page.code(statistics["settings"])))
    )  # fmt: skip
    total = sum(sum(game["decisions"].values()) for game in games.values())
    header = tag(
        "header",
        tag("h1", "Supervised data"),
        tag("p", f"{total:,} expert decisions of {len(games)} games."),
    )
    return page.document("Supervised data", header, sections)


def _overview(games: Mapping[str, Any]) -> Html:
    rows = [
        (
            name,
            *(number(game["decisions"][part]) for part in ("training", "validation")),
            *(number(game["episodes"][part]) for part in ("training", "validation")),
            _percent(game["duplicate_prompts"]),
            _percent(game["validation_prompts_in_training"]),
            number(game["prompt_characters"]["max"]),
            number(game["reply_characters"]["max"]),
        )
        for name, game in games.items()
    ]
    heads = ("game", "training decisions", "held-out decisions", "training episodes")
    heads += ("held-out episodes", "prompts seen before", "held-out prompts also trained on")
    heads += ("longest prompt, characters", "longest reply, characters")
    lead = (
        "Files are split by episode: no episode is in both, and both are balanced over opponents. "
        "A small game asks the same question again, so a held-out loss measures the fit there, not "
        "generalisation."
    )
    table = page.table(heads, rows, classes=["", *["n"] * 8])
    return page.section("overview", "Overview", lead, table)


def _lengths_and_actions(game: Mapping[str, Any]) -> Html:
    figures = []
    for part in ("prompt", "reply"):
        lengths = game[f"{part}_characters"]
        edges, counts = lengths["histogram"]["edges"], lengths["histogram"]["counts"]
        chart = plots.bar_chart(
            [str(edge) for edge in edges[:-1]], counts, title=f"{part} length", label="characters"
        )
        caption = (
            f"Characters of a {part}: {lengths['min']} to {lengths['max']}, median "
            f"{lengths['median']:g}, 95% at most {lengths['quantile_95']:g}. Bars: decisions."
        )
        figures.append(page.figure(chart, caption))
    actions = list(game["actions"].items())
    shown = actions[:_MOST_ACTIONS]
    rest = len(actions) - len(shown)
    further = f" The {rest} rarer ones are not shown." if rest else ""
    chart = plots.bar_chart([word for word, _ in shown], [n for _, n in shown], title="actions")
    figures.append(page.figure(chart, f"Decisions for each action.{further}"))
    chart = plots.bar_chart(
        list(game["rounds"]), list(game["rounds"].values()), title="rounds", label="round"
    )
    figures.append(page.figure(chart, "Decisions in each round."))
    return tag("div", *figures, class_="grid")


def _players(game: Mapping[str, Any]) -> Html:
    decisions = sum(game["decisions"].values())
    experts = [
        (name, _percent(row["weight"]), number(row["episodes"]), number(row["decisions"]),
         _percent(row["decisions"] / decisions))
        for name, row in game["experts"].items()
    ]  # fmt: skip
    opponents = [
        (name, ", ".join(row["pools"]), number(row["episodes"]), number(row["decisions"]),
         _percent(row["decisions"] / decisions))
        for name, row in game["opponents"].items()
    ]  # fmt: skip
    heads = ("episodes", "decisions", "of all decisions")
    numeric = ["", "n", "n", "n", "n"]
    return page.join(
        [
            tag("h3", "Experts"),
            page.table(("expert", "weight", *heads), experts, classes=numeric),
            tag("h3", "Opponents"),
            page.table(("opponent", "pools", *heads), opponents, classes=["", "", *numeric[2:]]),
        ]
    )


def _payoffs(game: Mapping[str, Any]) -> Html:
    means, opponents = game["mean_payoff"], list(game["opponents"])
    names = [*(name for name in game["experts"] if name in means), ALL_EXPERTS]
    rows = [
        (name, *(number(means[name][o], 3) if o in means[name] else "–" for o in opponents))
        for name in names
    ]
    return page.join(
        [
            tag("h3", "Mean payoff of a round, expert by opponent"),
            page.table(
                ("expert", *opponents),
                rows,
                classes=["", *["n"] * len(opponents)],
                main_rows=[len(rows) - 1],
            ),
        ]
    )


def _sample(messages: list[Message], reply: str) -> Html:
    turns = [*messages, {"role": "assistant", "content": reply}]
    return tag(
        "div",
        *(
            tag("div", tag("span", m["role"]), page.code(m["content"]), class_="turn")
            for m in turns
        ),
        class_="sample",
    )


def _percent(share: float) -> str:
    return f"{share:.1%}"
