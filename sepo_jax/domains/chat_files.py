"""Conversations in files, one JSON object a line: {"messages": [{"role": ..., "content": ...}]}.

The form is the one that common trainers read. The last message is the assistant's reply, which is
learned; the messages before it are its prompt. Other fields of a line are left alone.
"""

import codecs
import json
import os
from pathlib import Path
from typing import Any

from sepo_jax.domains.base import Message
from sepo_jax.domains.traces import Trace

TRAINING_FILE, VALIDATION_FILE = "train.jsonl", "valid.jsonl"
ROLES = ("system", "user", "assistant")
_BYTE_ORDER_MARKS = (codecs.BOM_UTF8, codecs.BOM_UTF16_LE, codecs.BOM_UTF16_BE)


def chat_line(trace: Trace, game: str) -> str:
    """The line of an expert's decision, with its line break; `game` is the domain's name."""
    reply = {"role": "assistant", "content": trace.reply}
    record = {
        "messages": [*trace.messages, reply],
        "game": game,
        "expert": trace.expert,
        "opponent": trace.opponent,
        "episode": trace.episode,
        "round": trace.round,
    }
    return json.dumps(record, ensure_ascii=False) + "\n"


def read_chat_jsonl(path: str | os.PathLike) -> list[tuple[list[Message], str]]:
    """Prompts and replies of a file, in its order: item i is line i + 1.

    Args:
      path: UTF-8, one conversation a line: a system message or none, then messages of user and
        assistant in turn, the assistant's last.

    Raises:
      FileNotFoundError: no such file.
      ValueError: what a line lacks or holds too much of; the message names file and line.
    """
    path = Path(path)
    if not path.is_file():
        raise FileNotFoundError(f"no file {path} of conversations, one JSON object a line")
    examples = []
    with path.open("rb") as file:
        # Lines end at line feeds alone: JSON text may hold other characters that Python takes for
        # line ends.
        for number, line in enumerate(file, start=1):
            try:
                examples.append(_read_line(line, number))
            except ValueError as error:
                raise ValueError(f"{path}, line {number}: {error}") from error
    if not examples:
        raise ValueError(f"{path} is empty; it needs a conversation a line")
    return examples


def _read_line(line: bytes, number: int) -> tuple[list[Message], str]:
    if number == 1 and line.startswith(_BYTE_ORDER_MARKS):
        raise ValueError("the file begins with a byte order mark; save it as UTF-8 without one")
    try:
        text = line.decode("utf-8")
    except UnicodeDecodeError as error:
        raise ValueError(f"not UTF-8 at byte {error.start + 1} of the line") from error
    if not text.strip():
        raise ValueError("the line is blank; remove it")
    try:
        record = json.loads(text)
    except json.JSONDecodeError as error:
        raise ValueError(f"not JSON: {error.msg} at column {error.colno}") from error
    except RecursionError:
        raise ValueError("not a conversation: JSON nested too deeply") from None
    if not isinstance(record, dict) or "messages" not in record:
        raise ValueError(f'expected an object with the field "messages", not {_short(record)}')
    messages = record["messages"]
    if not isinstance(messages, list) or not messages:
        raise ValueError(f'"messages" must be a list with messages, not {_short(messages)}')
    read = [_read_message(message, place) for place, message in enumerate(messages)]
    _check_roles([message["role"] for message in read])
    reply = read.pop()["content"]
    if not reply.strip():
        raise ValueError("the assistant's last message is empty; there is nothing to learn")
    return read, reply


def _read_message(message: Any, place: int) -> Message:
    """Role and content of a message; other fields are dropped."""
    for name in ("role", "content"):
        if not isinstance(message, dict) or not isinstance(message.get(name), str):
            raise ValueError(f'message {place} needs the field "{name}", a text: {_short(message)}')
    if message["role"] not in ROLES:
        raise ValueError(
            f"message {place} has the role {message['role']!r}; allowed: {', '.join(ROLES)}"
        )
    try:
        message["content"].encode()
    except UnicodeEncodeError as error:  # "\ud800" is legal in JSON
        raise ValueError(f"message {place} holds half a surrogate pair") from error
    return {"role": message["role"], "content": message["content"]}


def _check_roles(roles: list[str]) -> None:
    turns = roles[1:] if roles[0] == "system" else roles
    expected = ["user", "assistant"] * ((len(turns) + 1) // 2)
    if turns != expected or not turns:
        raise ValueError(
            f"the roles are {', '.join(roles)}; expected a system message or none, then user and "
            "assistant in turn, the assistant last"
        )


def _short(value: Any) -> str:
    text = json.dumps(value)
    return text if len(text) <= 60 else f"{text[:57]}..."
