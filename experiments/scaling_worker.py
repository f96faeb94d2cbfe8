"""One layout of virtual devices, as a process that `benchmark_scaling.py` drives.

The first message says what to build; each further one asks for a decode and an update of it.
"""

import dataclasses
from collections.abc import Mapping
from typing import Any

import jax
import numpy as np
from rollout_models import SMALLEST, TINY, fresh
from scaling_growth import Trainer, timed
from scaling_work import Shape, TokenEnvironment
from step_protocol import Channel

from sepo_jax.rollout import Rollout, play
from sepo_jax.sandbox.episodes import EpisodeRequest
from sepo_jax.training.settings import ParallelSettings


@dataclasses.dataclass(frozen=True)
class Load:
    """What the devices have to do in all.

    Attributes:
      kind, devices: of `ParallelSettings`. prompts: groups in all, as many to each device.
      group, prompt, reply: of each; a group is a row of the update.
      seed: of sampling.
      quick: with the smallest model.
    """

    kind: str
    devices: int
    prompts: int
    group: int
    prompt: int
    reply: int
    seed: int
    quick: bool

    @property
    def shape(self) -> Shape:
        """Of one of the groups."""
        return Shape(self.group, self.prompt, self.reply)

    @property
    def decodes(self) -> bool:
        """Whether decoding is measured: it is the same whatever the layout of the update."""
        return self.kind != "mesh"


class Layout:
    """Decode and update of a load: call it for the next one."""

    def __init__(self, load: Load):
        self.load = load
        model = fresh("", SMALLEST if load.quick else TINY)
        parallel = ParallelSettings(load.kind, devices=load.devices)
        self.trainer = Trainer(model.policy, model.params, "grpo", parallel)
        self._taken = 0
        forest = self.generate().forest()
        maker = self.trainer.maker(int(forest.num_tokens) // load.prompts)
        self.batch, _ = maker.make(forest, model.params, model.params)

    def generate(self) -> Rollout:
        """Replies to all prompts, by the loop inside one program a device, on all devices."""
        load, devices = self.load, self.load.devices if self.load.decodes else 1
        options = dataclasses.replace(
            load.shape.options(),
            slots=load.prompts * load.group // devices,
            driver="in_jit",
            devices=devices,
        )
        vocabulary = self.trainer.policy.config.vocab_size
        requests = [
            EpisodeRequest({**request.task, "prompt": number}, 0, number, request.member)
            for number in range(load.prompts)
            for request in load.shape.requests("shared", vocabulary)
        ]
        return play(
            self.trainer.policy,
            self.trainer.params,
            requests,
            TokenEnvironment,
            options,
            seed=load.seed,
            step=self._taken,
        )

    def __call__(self) -> dict[str, Any]:
        """Seconds of both, and the tokens that were sampled, and computed in the update."""
        self._taken += 1
        seconds, rollout = timed(self.generate) if self.load.decodes else (None, None)
        updated, _ = timed(lambda: self.trainer.update(self.batch))
        return {
            "generate": seconds,
            "sampled": None if rollout is None else rollout.statistics["sampled_tokens"],
            "update": updated,
            "computed": int((np.asarray(self.batch.column_index) >= 0).sum()),
        }


def main() -> None:
    """Builds what the first message asks for; then works for each further message."""
    channel = Channel()
    load: Mapping[str, Any] = channel.receive()
    layout = Layout(Load(**load))
    channel.send({"devices": jax.device_count()})
    while channel.receive() is not None:
        channel.send(layout())


if __name__ == "__main__":
    main()
