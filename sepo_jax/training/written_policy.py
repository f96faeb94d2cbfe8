"""What a finished run leaves of its policy: a model directory, and adapters of the peft library."""

import dataclasses
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import chex

from ..policy import MODELS, ModelConfig, Policy, detach, merge, save_hf, save_peft
from ..policy.lora import apart, concatenate
from .settings import Settings

Adapters = Sequence[tuple[ModelConfig, chex.ArrayTree]]
"""The adapters of each stage in order, with the config that they belong to."""


def write_policy(
    path: Path,
    settings: Settings,
    domain: Any,
    policy: Policy,
    params: chex.ArrayTree,
    adapters: Adapters,
) -> None:
    """The policy of a run as directories that other programs open.

    `policy` is the whole policy, adapters merged. Where it adapts a published model, `adapter` is
    the same as one adapter of that model: those of all stages side by side.

    Where roles have adapters of their own, `policy` is what lies below these, and
    `adapter/<role>` one adapter for each role: of the published model, or of `policy` where that
    began fresh.

    Args:
      path: directory of the run.
      policy, params: after the last stage.
      adapters: as they were trained, none where all parameters were.
    """
    config, source = policy.config, settings.policy.source
    by_role = policy.num_adapters > 1
    whole = detach(params)[0] if by_role else merge(config, params)
    save_hf(path / "policy", policy, whole, overwrite=True)
    if config.lora is None or not adapters or (source == "fresh" and not by_role):
        return
    base = MODELS[source].hub_id if source in MODELS else source
    if source == "fresh":
        base, adapters = path / "policy", adapters[-1:]
    parts = [apart(*stage)[1] for stage in adapters]
    places = [path / "adapter" / role for role in domain.roles] if by_role else [path / "adapter"]
    one, _ = apart(config, {})
    for number, place in enumerate(places):
        # What all roles shared in an earlier stage is part of each one's adapter.
        lora, joint = concatenate(one, [part[number if len(part) > 1 else 0] for part in parts])
        joined = dataclasses.replace(policy, config=dataclasses.replace(one, lora=lora))
        save_peft(place, joined, joint, str(base), overwrite=True)
