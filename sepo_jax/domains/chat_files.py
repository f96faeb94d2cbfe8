"""Conversations in files, one JSON object a line: {"messages": [{"role": ..., "content": ...}]}.

The form is the one that common trainers read. The last message is the assistant's reply, which is
learned; the messages before it are its prompt. Other fields of a line are left alone.
"""

import json
import os
from typing import Any

from sepo_jax.domains.base import Message
from sepo_jax.domains.json_lines import read_json_lines, short
from sepo_jax.domains.traces import Trace

TRAINING_FILE, VALIDATION_FILE = "train.jsonl", "valid.jsonl"
ROLES = ("system", "user", "assistant")


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
    return list(read_json_lines(path, "conversations", _conversation, blank_lines=False))


def _conversation(record: dict[str, Any]) -> tuple[list[Message], str]:
    if "messages" not in record:
        raise ValueError(f'expected an object with the field "messages", not {short(record)}')
    messages = record["messages"]
    if not isinstance(messages, list) or not messages:
        raise ValueError(f'"messages" must be a list with messages, not {short(messages)}')
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
            raise ValueError(f'message {place} needs the field "{name}", a text: {short(message)}')
    if message["role"] not in ROLES:
        raise ValueError(
            f"message {place} has the role {message['role']!r}; allowed: {', '.join(ROLES)}"
        )
    return {"role": message["role"], "content": message["content"]}


def _check_roles(roles: list[str]) -> None:
    turns = roles[1:] if roles[0] == "system" else roles
    expected = ["user", "assistant"] * ((len(turns) + 1) // 2)
    if turns != expected or not turns:
        raise ValueError(
            f"the roles are {', '.join(roles)}; expected a system message or none, then user and "
            "assistant in turn, the assistant last"
        )
