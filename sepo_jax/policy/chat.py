"""Messages to token ids through the tokenizer's own chat template, turn by turn.

A model is trained on the ids it sampled. So a later turn is never rendered from scratch: `extend`
and `follow` return only the ids that come after, having checked that the template keeps what came
before. `extend` reads the ids so far and refuses a reply that its template would write otherwise;
`follow` stands for any sampled ids, whatever text they make.
"""

from collections.abc import Iterable, Mapping, Sequence

import numpy as np

Message = Mapping[str, str]
# Stands for a reply while a template is read: words, a full stop and a line break, at which
# templates that shorten earlier turns cut.
_PLACEHOLDER = "A reply. Its next sentence\nand the last line"


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


def follow(
    tokenizer,
    messages: Sequence[Message],
    further: Sequence[Message],
    ended: bool,
    end_ids: Iterable[int] | None = None,
) -> list[int]:
    """Ids that lead from a sampled reply to the next one, whatever ids the reply has.

    They are what the template writes between two replies: the end token when the reply was cut
    before it, `further`, the prompt for the next reply. The reply's own text plays no part, so one
    of special tokens, of broken UTF-8 or of blanks that a template strips is followed like any.

    Args:
      messages: the conversation so far, ending with the reply as an assistant message.
      further: what follows the reply; at least one message.
      ended: whether the reply's last id is an end token.
      end_ids: ids that end a reply; None for the tokenizer's end token.

    Raises:
      TemplateNotExtending: the template writes the conversation before the reply, or a reply,
        differently once something follows. Start a separate context then.
      ValueError: messages of another form, no reply at their end, or nothing after it.
    """
    _check_messages(messages)
    _check_messages(further)
    if messages[-1]["role"] != "assistant" or len(messages) < 2:
        raise ValueError(
            f"the conversation must end with a reply to something, not with a message of "
            f"{messages[-1]['role']!r}"
        )
    before = render_text(tokenizer, messages[:-1]) + _PLACEHOLDER
    stand_in = {"role": "assistant", "content": _PLACEHOLDER}
    text = render_text(tokenizer, [*messages[:-1], stand_in, *further])
    if not text.startswith(before):
        raise TemplateNotExtending(
            "the chat template writes a reply or what came before it differently once turn "
            f"{len(messages)} ({further[0]['role']}) follows; train the turns as separate contexts"
        )
    ids = _encode(tokenizer, text[len(before) :])
    if end_ids is None:
        end_ids = [getattr(tokenizer, "eos_token_id", None)]
    return ids[1:] if ended and ids and ids[0] in end_ids else ids


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
