"""Expert decisions of several games, dealt into a training and a held-out file.

A pass is one episode against each opponent of a game, so whole passes are balanced over opponents;
both files hold whole passes, and no episode is in both.
"""

import json
from collections.abc import Iterable, Mapping
from pathlib import Path
from typing import Any, NamedTuple

from sepo_jax.domains.arguments import check_integer
from sepo_jax.domains.chat_files import TRAINING_FILE, VALIDATION_FILE, chat_line
from sepo_jax.domains.seeds import stream
from sepo_jax.domains.traces import Trace, opponent_names, play_experts
from sepo_jax.policy.formats.staging import staged

HELD_OUT = 0.2
STATISTICS, PAGE = "statistics.json", "statistics.html"
FILES = (TRAINING_FILE, VALIDATION_FILE, STATISTICS, PAGE)


class Split(NamedTuple):
    """Decisions of one game, in the order in which they were taken."""

    training: list[Trace]
    validation: list[Trace]


def play_passes(domain: Any, num_decisions: int, seed: int, *, rationale: bool) -> Iterable[Trace]:
    """Decisions of whole passes over all opponents, at least `num_decisions` of them.

    Args:
      domain: see `domains.base.Domain`; with `rationale` it has `reason(view, word)`.
      num_decisions: passes go on until there are so many.
      seed: fixes everything.
      rationale: put one short line of reasoning before the action word.

    Raises:
      ValueError: fewer than one decision, or reasoning of a domain that gives none.
    """
    check_integer("decisions", num_decisions, minimum=1)
    if rationale and not hasattr(domain, "reason"):
        raise ValueError(f"{domain.name} has no reason(view, word): pass --rationale=false")
    opponents = len(opponent_names(domain))
    last = None  # pass after which there are enough decisions
    reason = domain.reason if rationale else None
    for number, trace in enumerate(play_experts(domain, seed, reason=reason), start=1):
        here = trace.episode // opponents
        if last is not None and here > last:
            return
        yield trace
        if number == num_decisions:
            last = here


def split_passes(domain: Any, traces: Iterable[Trace], seed: int) -> Split:
    """Deals whole passes: one in five, drawn from the seed, is held out.

    Raises:
      ValueError: a single pass, which cannot be dealt.
    """
    traces, opponents = list(traces), len(opponent_names(domain))
    passes = traces[-1].episode // opponents + 1
    if passes < 2:
        raise ValueError(
            f"{len(traces)} decisions of {domain.name} are one pass over its {opponents} "
            f"opponents; at least two are needed, one of them held out: raise --decisions"
        )
    number = max(round(HELD_OUT * passes), 1)
    held_out = set(stream(seed, "held out", domain.name).sample(range(passes), number))
    parts: tuple[list[Trace], list[Trace]] = ([], [])
    for trace in traces:
        parts[trace.episode // opponents in held_out].append(trace)
    return Split(*parts)


def check_free(directory: Path, overwrite: bool) -> None:
    """Raises FileExistsError where writing to `directory` would take away what is there."""
    if directory.exists() and not directory.is_dir():
        raise FileExistsError(f"{directory} is a file: choose another --out")
    if directory.resolve() == Path.cwd():  # data appear by a rename, which would take it away
        raise FileExistsError(f"{directory} is the working directory: name one inside it as --out")
    present = sorted(path.name for path in directory.iterdir()) if directory.exists() else []
    strange = [name for name in present if name not in FILES]
    if strange:
        raise FileExistsError(
            f"{directory} holds other things ({', '.join(strange[:5])}): choose another --out"
        )
    if present and not overwrite:
        raise FileExistsError(f"{directory} holds data: choose another --out or pass --overwrite")


def write_files(
    directory: Path, splits: Mapping[str, Split], statistics: Mapping, page: str, overwrite: bool
) -> None:
    """Writes all four files, or none of them: the directory appears, or is replaced, as a whole.

    Raises:
      FileExistsError: as in `check_free`.
    """
    check_free(directory, overwrite)
    # Resolved: the name may be a link.
    with staged(directory.resolve(), overwrite=True) as folder:
        for name, part in ((TRAINING_FILE, "training"), (VALIDATION_FILE, "validation")):
            with open(folder / name, "w", encoding="utf-8", newline="\n") as file:
                for game, split in splits.items():
                    file.writelines(chat_line(trace, game) for trace in getattr(split, part))
        text = json.dumps(statistics, indent=1, ensure_ascii=False) + "\n"
        (folder / STATISTICS).write_text(text, encoding="utf-8")
        (folder / PAGE).write_text(page, encoding="utf-8")
