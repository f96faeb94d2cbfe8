"""A run over tasks as its judge writes it, with replies from a script in place of a policy."""

import json
import zlib

import numpy as np

from sepo_jax.domains.matrix_game import reply
from sepo_jax.domains.matrix_rules import game_of_task
from sepo_jax.games.solve import solve_zero_sum
from sepo_jax.sandbox.episodes import Action, EpisodeRequest, EpisodeResult
from sepo_jax.training import read_settings, to_dict
from sepo_jax.training.run_directory import RunDirectory
from sepo_jax.training.task_judge import TaskJudge

NOTHING = np.zeros(0)


class ScriptedJudge(TaskJudge):
    """Where parameters are asked for it takes a script: (task, member) -> text, None to fail.

    A letter is a token.
    """

    def _play(self, script):
        environment = self.environments("")
        results = []
        for group, task in enumerate(self.tasks):
            for member in range(self.settings.evaluation.task_samples):
                request, text = EpisodeRequest(task, 0, group, member), script(task, member)
                if text is None:
                    results.append(EpisodeResult(request, "failed", (), (), failure="no sandbox"))
                    continue
                prompt = environment.reset(task, 0).prompts[0]
                turn = environment.step({0: text})
                tokens = np.frombuffer(text.encode(), np.uint8)
                said = Action(0, 0, 0, NOTHING, tokens, NOTHING, NOTHING, text, prompt, False)
                paid = ({}, turn.rewards)
                results.append(EpisodeResult(request, "finished", (said,), paid, turn.record))
        return results


def matrix_script(quality, broken=0.2):
    """Replies that mix `quality` of the equilibrium with a random profile; some say nothing."""

    def script(task, member):
        table = np.array(game_of_task(task).payoffs)
        name = json.dumps([quality, broken, table.tolist(), member]).encode()
        rng = np.random.default_rng(zlib.crc32(name))
        if rng.random() < broken:
            return "no idea"
        solution = solve_zero_sum(table)
        pair = []
        for best, size in zip((solution.row, solution.col), table.shape, strict=True):
            pair.append(quality * best + (1 - quality) * rng.dirichlet(np.ones(size)))
        return reply(*pair)

    return script


def write_task_run(path, domain, scripts, *, tasks=6, task_samples=1):
    """Writes a finished run over a domain of tasks, without any training, and returns its path.

    Args:
      scripts: by stage, the untrained policy among them.
    """
    settings = read_settings(
        {
            "name": "tasks",
            "domain": {"name": domain.name},
            "sft": {"steps": 4},
            "sepo": {"steps": 0},
            "rl": {"steps": 3},
            "evaluation": {"tasks": tasks, "task_samples": task_samples},
        }
    )
    directory = RunDirectory.create(path, to_dict(settings))
    judge = ScriptedJudge(settings, None, domain, directory)
    judge.baselines(scripts["untrained"])
    for stage, count in (("sft", 4), ("rl", 3)):
        for step in range(1, count + 1):
            line = {"stage": stage, "step": step, "loss": 1 / step, "entropy": 0.5}
            if stage == "rl":
                line |= {"reward": 0.1 * step, "task/valid": 0.2 * step, "task/own_count": step}
            directory.append("metrics.jsonl", line)
        judge.final(stage, scripts[stage], count)
    return path
