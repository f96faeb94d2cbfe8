"""Messages to token ids through the tokenizer's own chat template, turn by turn.

A model is trained on the ids it sampled. So a later turn is never rendered from scratch: `extend`
returns only the ids that follow, after checking that the template keeps what came before.
"""

from collections.abc import Iterable, Mapping, Sequence

import numpy as np

Message = Mapping[str, str]


class TemplateNotExtending(ValueError):
    """A chat template that rewrites earlier turns, or messages that do not match the ids so far."""


def render(tokenizer, messages: Sequence[Message], add_generation_prompt: bool = True) -> list[int]:
    """Token ids of a conversation, ready for the model's reply when `add_generation_prompt`.

    Args:
      messages: dicts with "role" and "content", both str; at least one.

    Raises:
      ValueError: for messages of another form, or a tokenizer without chat template.
    """
    return _encode(tokenizer, render_text(tokenizer, messages, add_generation_prompt))


def render_text(tokenizer, messages: Sequence[Message], add_generation_prompt: bool = True) -> str:
    """The conversation as the template writes it; arguments and errors as in `render`."""
    _check_messages(messages)
    if not getattr(tokenizer, "chat_template", None):
        raise ValueError(
            "the tokenizer has no chat template: set tokenizer.chat_template, or train one with "
            "train_tokenizer, which brings its own"
        )
    return tokenizer.apply_chat_template(
        [dict(message) for message in messages],
        add_generation_prompt=add_generation_prompt,
        tokenize=False,
    )


def extend(
    tokenizer,
    previous_ids: Sequence[int],
    previous_messages: Sequence[Message],
    messages: Sequence[Message],
) -> list[int]:
    """Ids that lead from `previous_ids` to the next reply; `previous_ids` themselves are kept.

    The sampled ids stay as they are, also where encoding their text would give other ids. What is
    encoded is only the text that follows them: the rest of the template after the last reply (its
    end token too, when the reply was cut before it), the messages in between, the next prompt.

    Args:
      previous_ids: the context so far, prompt and sampled reply.
      previous_messages: what it stands for; ends with the reply as an assistant message.
      messages: `previous_messages` and what came after.

    Raises:
      TemplateNotExtending: when `messages` do not begin with `previous_messages`, when the template
        writes an earlier turn differently, or when the ids do not decode to that text. Names the
        turn. Start a separate context (a row of its own) then.
    """
    _check_messages(messages)
    for turn, message in enumerate(previous_messages):
        if turn >= len(messages) or dict(messages[turn]) != dict(message):
            raise TemplateNotExtending(
                f"turn {turn} ({message.get('role')}) of the earlier conversation is "
                f"{'absent' if turn >= len(messages) else 'different'} in the later one"
            )
    if len(messages) == len(previous_messages):
        raise TemplateNotExtending("no message follows the earlier conversation")
    held = tokenizer.decode(
        list(previous_ids), skip_special_tokens=False, clean_up_tokenization_spaces=False
    )
    text = render_text(tokenizer, messages, add_generation_prompt=True)
    if not text.startswith(held):
        turn = _first_changed_turn(tokenizer, held, text, messages, len(previous_messages))
        raise TemplateNotExtending(
            f"the later conversation does not extend the ids so far: turn {turn} "
            f"({messages[turn]['role']}) reads differently. Either the chat template rewrites "
            "earlier turns or the message is not the decoded reply; train the turns as separate "
            "contexts"
        )
    return _encode(tokenizer, text[len(held) :])


def completion_mask(tokens, end_ids: Iterable[int], lengths=None) -> np.ndarray:
    """Which generated tokens belong to the reply: bool, shape of `tokens` [..., T].

    The first end token belongs to it, all that follows does not; without an end token all T do.
    Token values are never compared with a padding id, which may equal an end id.

    Args:
      tokens: int [..., T]. end_ids: ids that end a reply.
      lengths: int [...], number of tokens that were generated; later columns are masked.
    """
    tokens = np.asarray(tokens)
    is_end = np.isin(tokens, list(end_ids))
    ends_before = np.cumsum(is_end, axis=-1) - is_end
    mask = ends_before == 0
    if lengths is not None:
        mask &= np.arange(tokens.shape[-1]) < np.asarray(lengths)[..., None]
    return mask


def _encode(tokenizer, text: str) -> list[int]:
    return list(tokenizer.encode(text, add_special_tokens=False))


def _first_changed_turn(tokenizer, held, text, messages, count) -> int:
    """The first of the `count` earlier turns whose end both texts do not share."""
    same = 0
    while same < min(len(held), len(text)) and held[same] == text[same]:
        same += 1
    for turn in range(count):
        if len(render_text(tokenizer, messages[: turn + 1], add_generation_prompt=False)) > same:
            return turn
    return count - 1


def _check_messages(messages) -> None:
    if isinstance(messages, str | bytes | Mapping) or not isinstance(messages, Sequence):
        raise ValueError(
            f"messages must be a list of {{'role', 'content'}} dicts, not {type(messages).__name__}"
        )
    if not messages:
        raise ValueError("messages are empty: a conversation needs at least one")
    for turn, message in enumerate(messages):
        if not isinstance(message, Mapping) or not all(
            isinstance(message.get(name), str) for name in ("role", "content")
        ):
            raise ValueError(
                f"message {turn} must be a dict with 'role' and 'content' strings, not {message!r}"
            )
