"""Objects of a JSON file: one a line, or one list of them; errors name the line or the entry."""

import json
import os
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any, TypeVar

_Read = TypeVar("_Read")


def read_records(
    path: str | os.PathLike, what: str, read: Callable[[Mapping[str, Any]], _Read]
) -> list[_Read]:
    """What `read` makes of each object of a file, in its order.

    Args:
      path: UTF-8; a JSON object a line, blank lines aside, or a JSON list of objects.
      what: the objects are, in the plural, for errors.
      read: raises ValueError for an object that it cannot read, saying what is wrong with it.

    Raises:
      FileNotFoundError: no such file.
      ValueError: no UTF-8 or JSON, something else than objects, none, or what `read` raises; the
        message names the file and the line, or the entry of the list.
    """
    path = Path(path)
    if not path.is_file():
        raise FileNotFoundError(f"no file {path} of {what}: a JSON object a line, or a JSON list")
    with path.open("rb") as file:
        listed = file.read(64).lstrip()[:1] == b"["
        file.seek(0)
        if listed:
            found = [
                _checked(f"{path}, entry {number}", read, lambda each=each: each)
                for number, each in enumerate(_parsed_at(str(path), file.read()), start=1)
            ]
        else:
            # Lines end at line feeds alone: JSON text may hold what Python takes for line ends.
            found = [
                _checked(f"{path}, line {number}", read, lambda line=line: _parsed(line))
                for number, line in enumerate(file, start=1)
                if line.strip()
            ]
    if not found:
        raise ValueError(f"{path} holds none of the {what} that are expected in it")
    return found


def text_of(record: Mapping[str, Any], *names: str) -> str:
    """The text that a record has under the first of these names that it has.

    Raises:
      ValueError: under none of them, or something else than a text.
    """
    for name in names:
        if name in record:
            if not isinstance(record[name], str):
                raise ValueError(f"{name!r} is a text, not {short(record[name])}")
            return record[name]
    given = ", ".join(map(repr, record)) or "no field"
    raise ValueError(f"the field {' or '.join(map(repr, names))} is missing; it has {given}")


def short(value: Any) -> str:
    """The beginning of a JSON value, for errors."""
    text = json.dumps(value)
    return text if len(text) <= 60 else f"{text[:57]}..."


def _checked(
    where: str, read: Callable[[Mapping[str, Any]], _Read], parse: Callable[[], Any]
) -> _Read:
    try:
        record = parse()
        if not isinstance(record, Mapping):
            raise ValueError(f"expected an object, not {short(record)}")
        return read(record)
    except ValueError as error:
        raise ValueError(f"{where}: {error}") from error


def _parsed_at(where: str, content: bytes) -> Any:
    try:
        return _parsed(content)
    except ValueError as error:
        raise ValueError(f"{where}: {error}") from error


def _parsed(content: bytes) -> Any:
    try:
        return json.loads(content.decode("utf-8"))
    except UnicodeDecodeError as error:
        raise ValueError(f"not UTF-8 at byte {error.start + 1}") from error
    except json.JSONDecodeError as error:
        raise ValueError(
            f"not JSON: {error.msg} at line {error.lineno}, column {error.colno}"
        ) from error
    except RecursionError:
        raise ValueError("JSON nested too deeply") from None
