"""The examples of the supervised stage: from the domain's experts, or from files."""

import logging
from collections.abc import Iterable, Sequence
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np

from ..domains import Message
from ..domains.chat_files import VALIDATION_FILE, read_chat_jsonl
from ..policy import Policy, TemplateNotExtending, follow, render
from .settings import Settings, SftSettings

_LOG = logging.getLogger(__name__)

Turn = tuple[tuple[int, ...], tuple[int, ...]]
"""Token ids of what is given, and of the reply to it with the end token."""

Example = tuple[Turn, ...]
"""A context with all replies in it that are learned: what is given first is the prompt, later what
stands between two replies."""


class SupervisedData(NamedTuple):
    """Examples to learn from, and those held out."""

    training: list[Example]
    validation: list[Example]


def supervised_data(settings: Settings, policy: Policy, domain: Any) -> SupervisedData:
    """The files that `sft.data` and `sft.validation_data` name, else expert traces of the domain,
    a share `sft.held_out` of the examples held out.

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

    A pair whose messages go on from the pair before it, after that one's reply, is a further turn
    of the same example: its tokens are those that play gives, and what it shares with the turns
    before is computed once. Where the chat template rewrites earlier turns it is an example of its
    own.

    Args:
      settings: bound the length of a row; see `supervised_data`.
      policy: brings tokenizer and end token, and bounds the length too.
      pairs: messages and reply of each example.
      where: what an example's number, from 1, stands behind in errors.

    Raises:
      ValueError: examples that are too long; the first is named, the others are counted.
    """
    prompts: dict[tuple, tuple[int, ...]] = {}  # decisions repeat in a small game
    examples: list[list[Turn]] = []
    numbers: list[int] = []  # of the first pair of each example
    talk: list[Message] = []  # the last example's
    for number, (messages, reply) in enumerate(pairs, start=1):
        given = _between(policy, talk, messages)
        if given is None:
            key = tuple((message["role"], message["content"]) for message in messages)
            if key not in prompts:
                prompts[key] = tuple(render(policy.tokenizer, messages))
            given = prompts[key]
            examples.append([])
            numbers.append(number)
        answer = policy.tokenizer.encode(reply, add_special_tokens=False)
        examples[-1].append((given, (*answer, policy.end_ids[0])))
        talk = [*messages, {"role": "assistant", "content": reply}]
    made = [tuple(turns) for turns in examples]
    _check_lengths(settings, policy, made, [f"{where} {number}" for number in numbers])
    return made


def further_messages(
    talk: Sequence[Message], messages: Sequence[Message]
) -> Sequence[Message] | None:
    """What comes after a conversation that ends with a reply, where `messages` go on from it up to
    the next reply; else None."""
    further = messages[len(talk) :]
    if not talk or not further or list(messages[: len(talk)]) != list(talk):
        return None
    # A reply between them is one that nothing teaches.
    return None if any(message["role"] == "assistant" for message in further) else further


def _between(
    policy: Policy, talk: Sequence[Message], messages: Sequence[Message]
) -> tuple[int, ...] | None:
    """Ids between the last reply of `talk` and the next one, where `messages` go on from it."""
    further = further_messages(talk, messages)
    if further is None:
        return None
    try:
        return tuple(follow(policy.tokenizer, talk, further, True, policy.end_ids))
    except TemplateNotExtending:
        return None


def _check_lengths(
    settings: Settings, policy: Policy, examples: Sequence[Example], names: Sequence[str]
) -> None:
    """Refuses examples that are too long, and says which replies play would cut."""
    row, positions = settings.rollout.row_length, policy.config.max_positions
    bound, advice = f"rollout.row_length={row}", "raise it or leave the example out"
    if row > positions:
        bound, advice = f"the {positions} positions of the policy", "leave the example out"
    lengths = [_lengths(example) for example in examples]
    long = [index for index, both in enumerate(lengths) if sum(both) > min(row, positions)]
    if long:
        given, replies = lengths[long[0]]
        parts = "prompt and reply have"
        if len(examples[long[0]]) > 1:
            parts = f"what is given and the {len(examples[long[0]])} replies have"
        others = f"; {len(long) - 1} more examples are too long" if len(long) > 1 else ""
        raise ValueError(
            f"{names[long[0]]}: {parts} {given} + {replies} tokens, more than {bound}: "
            f"{advice}{others}"
        )
    limit = settings.rollout.max_action_tokens
    replies = [
        (name, len(reply))
        for name, example in zip(names, examples, strict=True)
        for _, reply in example
    ]
    cut = [(name, length) for name, length in replies if length > limit]
    if cut:
        _LOG.warning(
            "%d of %d replies, the first at %s, have more than rollout.max_action_tokens=%d "
            "tokens, up to %d: a policy that learns them is cut off in play",
            *(len(cut), len(replies), cut[0][0], limit),
            max(length for _, length in replies),
        )


def _lengths(example: Example) -> tuple[int, int]:
    """Tokens of an example that are given, and those of replies."""
    given, replies = zip(*example, strict=True)
    return sum(map(len, given)), sum(map(len, replies))


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
