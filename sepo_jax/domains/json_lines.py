"""Files of JSON objects, one a line or in one list, read with errors that say where."""

import codecs
import json
import os
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any, TypeVar

Read = TypeVar("Read")
_BYTE_ORDER_MARKS = (codecs.BOM_UTF8, codecs.BOM_UTF16_LE, codecs.BOM_UTF16_BE)


def read_json_lines(
    path: str | os.PathLike,
    what: str,
    read: Callable[[dict[str, Any]], Read],
    *,
    blank_lines: bool = True,
) -> Iterator[Read]:
    """What `read` makes of the object on each line, in order.

    Args:
      path: UTF-8.
      what: what a line holds, in the plural, for errors: "problems".
      read: raises ValueError for an object that it does not take.
      blank_lines: whether they are passed over; else each is an error.

    Raises:
      FileNotFoundError: no such file.
      ValueError: a line that is no JSON object of texts, or that `read` does not take, with file
        and line; or a file without any.
    """
    path = Path(path)
    if not path.is_file():
        raise FileNotFoundError(f"no file {path} of {what}, one JSON object a line")
    empty = True
    with path.open("rb") as file:
        # Lines end at line feeds alone: JSON text may hold other characters that Python takes for
        # line ends.
        for number, line in enumerate(file, start=1):
            if blank_lines and not line.strip():
                continue
            try:
                found = read(_read_object(line, number))
            except ValueError as error:
                raise ValueError(f"{path}, line {number}: {error}") from error
            empty = False
            yield found
    if empty:
        raise ValueError(f"{path} is empty; it needs {what}, one JSON object a line")


def read_json_objects(
    path: str | os.PathLike, what: str, read: Callable[[dict[str, Any]], Read]
) -> Iterator[Read]:
    """As `read_json_lines`, and of a file that is one JSON list of objects as well; errors of a
    list name the entry, from 1."""
    path = Path(path)
    if not (path.is_file() and _begins_a_list(path)):
        yield from read_json_lines(path, what, read)
        return
    try:
        listed = _read_json(path.read_bytes())
    except ValueError as error:
        raise ValueError(f"{path}: {error}") from error
    for number, record in enumerate(listed, start=1):
        try:
            found = read(_checked_object(record))
        except ValueError as error:
            raise ValueError(f"{path}, entry {number}: {error}") from error
        yield found
    if not listed:
        raise ValueError(f"{path} is empty; it needs {what}, a list of JSON objects")


def _begins_a_list(path: Path) -> bool:
    with path.open("rb") as file:
        return file.read(64).lstrip().startswith(b"[")


def _read_object(line: bytes, number: int) -> dict[str, Any]:
    if number == 1 and line.startswith(_BYTE_ORDER_MARKS):
        raise ValueError("the file begins with a byte order mark; save it as UTF-8 without one")
    if not line.strip():
        raise ValueError("the line is blank; remove it")
    return _checked_object(_read_json(line.rstrip()))


def _read_json(content: bytes) -> Any:
    try:
        found = json.loads(content.decode("utf-8"))
        if b"\\ud" in content.lower():  # "\ud800" is legal in JSON, and no text
            json.dumps(found, ensure_ascii=False).encode()
        return found
    except UnicodeEncodeError as error:
        raise ValueError("half a surrogate pair, which is no text") from error
    except UnicodeDecodeError as error:
        raise ValueError(f"not UTF-8 at byte {error.start + 1}") from error
    except json.JSONDecodeError as error:
        line = f"line {error.lineno}, " if error.lineno > 1 else ""
        raise ValueError(f"not JSON: {error.msg} at {line}column {error.colno}") from error
    except RecursionError:
        raise ValueError("JSON nested too deeply") from None


def _checked_object(record: Any) -> dict[str, Any]:
    if not isinstance(record, dict):
        raise ValueError(f"expected a JSON object, not {short(record)}")
    return record


def short(value: Any) -> str:
    """A JSON value for an error, cut where it is long."""
    text = json.dumps(value)
    return text if len(text) <= 60 else f"{text[:57]}..."
