"""Writes expert decisions as chat files for supervised fine-tuning, with their statistics.

python experiments/make_sft_data.py --out=data/sft                        # every game, 8,000 each
python experiments/make_sft_data.py --out=data/kuhn --games=kuhn --kuhn_hands=1 --rationale=false
python experiments/train.py --config=configs/sepo/kuhn.py --config.sft.data=data/kuhn/train.jsonl

Sizes, mixtures of experts and seed are those of the SEPO paper (2605.30854). A line of train.jsonl
and valid.jsonl is one decision: {"messages": [system, user, assistant], "game", "expert",
"opponent", "episode", "round"}. Lines follow the episodes: a trainer should shuffle them.
"""

from pathlib import Path
from typing import Any

from absl import flags
from sft_files import FILES, check_free, play_passes, split_passes, write_files
from sft_page import render_page
from sft_statistics import describe_game, summary_lines
from tqdm import tqdm

from sepo_jax.training.command_line import run_main
from sepo_jax.training.settings import DomainSettings
from sepo_jax.training.setup import DOMAINS, make_domain

OUT = flags.DEFINE_string("out", "", "directory to write, such as data/sft")
GAMES = flags.DEFINE_list("games", list(DOMAINS), "names of games, separated by commas")
DECISIONS = flags.DEFINE_integer("decisions", 8000, "of each game, at least", lower_bound=1)
SEED = flags.DEFINE_integer("seed", 42, "fixes everything", lower_bound=0)
RATIONALE = flags.DEFINE_bool("rationale", True, "a short line of reasoning before the action")
FAITHFUL = flags.DEFINE_bool("faithful", False, "the rules of the authors' code, slips included")
KUHN_HANDS = flags.DEFINE_integer(
    "kuhn_hands", 6, "hands of a Kuhn match; configs/sepo/kuhn.py plays 1", lower_bound=1
)
OVERWRITE = flags.DEFINE_bool("overwrite", False, "replace data that --out holds")
DEBUG = flags.DEFINE_bool("debug", False, "show the traceback of a user error")


def chosen_domains() -> dict[str, Any]:
    """The domains that the flags name, by name; ValueError for none, unknown ones and repeats."""
    if not GAMES.value:
        raise ValueError(f"give at least one game: --games={','.join(DOMAINS)}")
    domains = {}
    for name in GAMES.value:
        hands = {"hands": KUHN_HANDS.value} if name == "kuhn" else {}
        domain = make_domain(DomainSettings(name=name, faithful=FAITHFUL.value, **hands))
        if domain.name in domains:
            raise ValueError(f"--games names {domain.name} twice")
        domains[domain.name] = domain
    return domains


def main() -> None:
    """Plays the experts, writes the four files and prints the figures."""
    if not OUT.value:
        raise ValueError("give a directory to write: --out=data/<name>")
    out = Path(OUT.value)
    check_free(out, OVERWRITE.value)
    domains = chosen_domains()
    splits, samples, figures = {}, {}, {}
    with tqdm(total=len(domains) * DECISIONS.value, unit="decisions", delay=10) as bar:
        for name, domain in domains.items():
            bar.set_description(name, refresh=False)
            traces = []
            for trace in play_passes(
                domain, DECISIONS.value, SEED.value, rationale=RATIONALE.value
            ):
                traces.append(trace)
                bar.update()
            splits[name] = split_passes(domain, traces, SEED.value)
            figures[name] = describe_game(domain, splits[name])
            longest = max(traces, key=lambda trace: trace.round)
            samples[name] = (list(longest.messages), longest.reply)
    settings = {
        "games": list(domains),
        "decisions": DECISIONS.value,
        "seed": SEED.value,
        "rationale": RATIONALE.value,
        "faithful": FAITHFUL.value,
        "kuhn_hands": KUHN_HANDS.value,
    }
    statistics = {"settings": settings, "games": figures}
    write_files(out, splits, statistics, render_page(statistics, samples), OVERWRITE.value)
    print("\n".join(summary_lines(statistics)))
    print(f"\nwritten: {', '.join(str(out / name) for name in FILES)}")


if __name__ == "__main__":
    run_main(main)
