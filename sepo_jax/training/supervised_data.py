"""The examples of the supervised stage: from the domain's experts, or from files."""

import logging
from collections.abc import Iterable, Sequence
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np

from ..domains import Message
from ..domains.chat_files import VALIDATION_FILE, read_chat_jsonl
from ..policy import Policy, render
from .settings import Settings, SftSettings

_LOG = logging.getLogger(__name__)

Example = tuple[tuple[int, ...], tuple[int, ...]]
"""Token ids of a prompt, and of its reply with the end token."""


class SupervisedData(NamedTuple):
    """Examples to learn from, and those held out."""

    training: list[Example]
    validation: list[Example]


def supervised_data(settings: Settings, policy: Policy, domain: Any) -> SupervisedData:
    """The files that `sft.data` and `sft.validation_data` name, else expert traces of the domain,
    a share `sft.held_out` of the decisions held out.

    Raises:
      FileNotFoundError: no such file.
      ValueError: a line of a file that is no conversation (see `domains.chat_files`), an example
        that is longer than a row or than what the policy can read, or settings that contradict
        each other.
    """
    if settings.sft.data:
        training, validation = _paths(settings.sft)
        return SupervisedData(
            *(
                encode_examples(settings, policy, read_chat_jsonl(path), f"{path}, line")
                for path in (training, validation)
            )
        )
    if settings.sft.validation_data:
        raise ValueError(
            f"sft.validation_data={settings.sft.validation_data!r} goes with sft.data, which is "
            "empty: name the file to train on too, or neither"
        )
    traces = domain.expert_traces(settings.sft.num_decisions, settings.sft.data_seed)
    examples = encode_examples(settings, policy, traces, "expert trace")
    held_out = max(int(len(examples) * settings.sft.held_out), 1)
    order = np.random.default_rng(settings.sft.data_seed).permutation(len(examples))
    if len(examples) <= held_out:
        raise ValueError(
            f"sft.num_decisions={settings.sft.num_decisions} with sft.held_out="
            f"{settings.sft.held_out} leaves no training data; give at least 2, and less than all"
        )
    return SupervisedData(
        training=[examples[index] for index in order[held_out:]],
        validation=[examples[index] for index in order[:held_out]],
    )


def encode_examples(
    settings: Settings,
    policy: Policy,
    pairs: Iterable[tuple[Sequence[Message], str]],
    where: str,
) -> list[Example]:
    """Token ids of prompts and replies.

    Args:
      settings: bound the length of a row; see `supervised_data`.
      policy: brings tokenizer and end token, and bounds the length too.
      pairs: messages and reply of each example.
      where: what an example's number, from 1, stands behind in errors.

    Raises:
      ValueError: examples that are too long; the first is named, the others are counted.
    """
    prompts: dict[tuple, tuple[int, ...]] = {}  # decisions repeat in a small game
    examples = []
    for messages, reply in pairs:
        key = tuple((message["role"], message["content"]) for message in messages)
        if key not in prompts:
            prompts[key] = tuple(render(policy.tokenizer, messages))
        answer = policy.tokenizer.encode(reply, add_special_tokens=False)
        examples.append((prompts[key], (*answer, policy.end_ids[0])))
    _check_lengths(settings, policy, examples, where)
    return examples


def _check_lengths(
    settings: Settings, policy: Policy, examples: Sequence[Example], where: str
) -> None:
    row, positions = settings.rollout.row_length, policy.config.max_positions
    bound, advice = f"rollout.row_length={row}", "raise it or leave the example out"
    if row > positions:
        bound, advice = f"the {positions} positions of the policy", "leave the example out"
    lengths = [len(prompt) + len(reply) for prompt, reply in examples]
    long = [index for index, length in enumerate(lengths) if length > min(row, positions)]
    if long:
        prompt, reply = map(len, examples[long[0]])
        others = f"; {len(long) - 1} more examples are too long" if len(long) > 1 else ""
        raise ValueError(
            f"{where} {long[0] + 1}: prompt and reply have {prompt} + {reply} tokens, more than "
            f"{bound}: {advice}{others}"
        )
    limit = settings.rollout.max_action_tokens
    cut = [index for index, (_, reply) in enumerate(examples) if len(reply) > limit]
    if cut:
        _LOG.warning(
            "%d of %d replies, the first at %s %d, have more than rollout.max_action_tokens=%d "
            "tokens, up to %d: a policy that learns them is cut off in play",
            *(len(cut), len(examples), where, cut[0] + 1, limit),
            max(len(reply) for _, reply in examples),
        )


def _paths(sft: SftSettings) -> tuple[Path, Path]:
    """Files of training and held-out data, both there."""
    training = Path(sft.data)
    validation = Path(sft.validation_data or training.with_name(VALIDATION_FILE))
    if not training.is_file():
        raise FileNotFoundError(
            f"sft.data={sft.data!r}: no such file. experiments/make_sft_data.py writes one"
        )
    if not validation.is_file():
        raise FileNotFoundError(
            f"no held-out data at {validation}: name the file as sft.validation_data"
        )
    if training.samefile(validation):
        raise ValueError(
            f"sft.data={sft.data!r} is the held-out file too; give another as sft.validation_data"
        )
    return training, validation
