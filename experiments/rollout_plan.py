"""Which contests `benchmark_rollouts.py` holds, and the table it makes of them."""

import dataclasses
import os
from collections.abc import Callable, Mapping, Sequence
from functools import partial
from importlib.metadata import version
from pathlib import Path

import jax
from rollout_models import SMALLEST, TINY, Model, fresh, smollm2
from rollout_sides import Played, Side, Work

from sepo_jax.evaluation.results import source_commit, write_result
from sepo_jax.rollout.driver import DRIVERS, EngineOptions

HERE = Path(__file__).resolve().parent
RESULT = HERE / "results" / "benchmark_rollouts.json"
COLUMNS = ["work", "sandbox ms", "side", "tokens/s", "share decoding", "share of slots with work"]
COLUMNS += ["prompt tokens prefilled", "seconds", "times lock-step"]
LATENCIES = (0.0, 0.02, 0.2)
# A prompt takes one call of 128, an observation one of 48; actions are short, so slots that have
# finished or have something to begin are looked at every second token.
SIZES = {"exchange_interval": 2, "prefill_widths": (16, 48, 128)}
DECODED = 96  # tokens of an action where decoding alone is measured
ENGINE, LOCK_STEP = "engine", "lock-step"

ModelMaker = Callable[[], Model]


@dataclasses.dataclass(frozen=True)
class Contest:
    """One workload, the sides that play it, and how often each does.

    `rehearsal` is work that compiles all that the contest needs.
    """

    title: str
    work: Work
    rehearsal: Work
    sides: Mapping[str, Side]
    turns: int

    @property
    def workers(self) -> int:
        """Sandboxes that may be busy at once: one a slot, and those that are reset ahead."""
        slots = max(side.options.slots for side in self.sides.values())
        return min(slots + max(1, slots // 4), self.work.episodes)


def rehearsals(held: Sequence[Contest]) -> dict[Side, Work]:
    """What to play first, so that no contest compiles anything."""
    return {
        Side(side.options): contest.rehearsal for contest in held for side in contest.sides.values()
    }


def count_episodes(held: Sequence[Contest]) -> int:
    """Episodes played in all, those of the rehearsals included."""
    first = sum(work.episodes for work in rehearsals(held).values())
    return first + sum(each.work.episodes * len(each.sides) * each.turns for each in held)


def against_lock_step(
    episodes: int, slots: int, latencies: Sequence[float], turns: int, driver: str
) -> list[Contest]:
    """The engine against a lock-step loop over the same slots, for each latency."""
    work = Work(episodes)
    most = work.action_tokens[1]
    options = EngineOptions(slots, work.longest_context, most, driver=driver, **SIZES)
    sides = {ENGINE: Side(options), LOCK_STEP: Side(options, lock_step=True)}
    # Contexts as long as any, and slots that are taken again.
    rehearsal = dataclasses.replace(work, episodes=slots + work.group, action_tokens=(most, most))
    return [
        Contest(
            f"{episodes} episodes, {slots} slots",
            dataclasses.replace(work, latency=mean),
            rehearsal,
            sides,
            turns,
        )
        for mean in latencies
    ]


def decoding(slots: int, tokens: int, turns: int) -> Contest:
    """Both drivers, with all slots in one long action after one prompt."""
    work = Work(slots, group=slots, turns=1, action_tokens=(tokens, tokens))
    sides = {
        driver.replace("_", " "): Side(
            EngineOptions(slots, work.longest_context, tokens, driver=driver, **SIZES)
        )
        for driver in DRIVERS
    }
    rehearsal = dataclasses.replace(work, action_tokens=(2, 2))
    return Contest(f"decode, {slots} slots", work, rehearsal, sides, turns)


def contests(quick: bool, driver: str, weights: Path) -> list[tuple[ModelMaker, list[Contest]]]:
    """Models, made when called, and the contests of each.

    Args:
      quick: one small model and little work.
      driver: of the engine, where it meets lock-step.
      weights: directory of SmolLM2-135M, or where there is none.
    """
    if quick:
        held = [*against_lock_step(16, 8, LATENCIES[:2], 1, driver), decoding(8, 24, 1)]
        return [(partial(fresh, "smallest", SMALLEST), held)]
    tiny = against_lock_step(64, 16, LATENCIES, 3, driver)
    tiny += against_lock_step(256, 64, LATENCIES, 1, driver)
    tiny += against_lock_step(256, 128, LATENCIES[-1:], 1, driver)
    held = [*against_lock_step(64, 32, LATENCIES, 1, driver), decoding(32, DECODED, 2)]
    return [
        (partial(fresh, "tiny", TINY), tiny),
        (partial(smollm2, weights), held),
        (partial(smollm2, weights, "bfloat16"), [decoding(32, DECODED, 2)]),
    ]


def table_rows(model: str, contest: Contest, plays: Mapping[str, Played]) -> list[list]:
    """A row a side."""
    rows = []
    for side, played in plays.items():
        times = plays[LOCK_STEP].seconds / played.seconds if LOCK_STEP in plays else None
        shares = [played.figures[name] for name in ("decoding_share", "busy_share")]
        row = [f"{model}: {contest.title}", round(1000 * contest.work.latency), side]
        rows.append([*row, played.rate, *shares, played.prompt_tokens, played.seconds, times])
    return rows


NOTES = (
    "An episode has three actions of 8 to 24 tokens, a prompt of 112 to 128 tokens that it shares "
    "with its group of 8, and observations of 36 to 44. A sandbox is a process that sleeps: "
    "lognormal latencies of the given mean (spread 0.5), 2 s in one answer of a hundred, none at a "
    "mean of 0. Lock-step: a batch as large as the slots, whose next turn waits for every "
    "environment and for the slowest action, over the same engine. Both sides sampled the same "
    "tokens. Share decoding: of the time in which a context has work, from the arrival of its "
    "prompt to the end of its action, the part in which it decodes. Share of slots with work: of "
    f"the time of all slots. Decode rows: one action of {DECODED} tokens after one shared prompt, "
    "keys and values in float32. Sides took turns: three with 16 slots (the median counts), two "
    "where decoding alone is measured (the faster counts), else one. tiny: 4 layers of width "
    "128, vocabulary 512, random weights. SmolLM2-135M: {weights}."
)


def write_table(rows: list, weights: str, driver: str, seed: int) -> Path:
    """Writes the table where README's renderer looks for it; `weights` says which SmolLM2 has."""
    machine = f"{os.cpu_count()} CPU cores, JAX on {jax.devices()[0].platform}"
    options = f"--driver={driver} --seed={seed}"
    result = {
        "title": "Rollouts with slow sandboxes: the engine beside a lock-step loop",
        "command": f"python experiments/benchmark_rollouts.py {options} --write",
        "seeds": [seed],
        "commit": source_commit(),
        "versions": {name: version(name) for name in ("jax", "jaxlib", "numpy")}
        | {"hardware": machine},
        "columns": COLUMNS,
        "rows": rows,
        "notes": NOTES.format(weights=weights),
    }
    return write_result(RESULT, result)
