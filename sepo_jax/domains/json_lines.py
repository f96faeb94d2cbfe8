"""Files of one JSON object a line, read with errors that name file and line."""

import codecs
import json
import os
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any, TypeVar

Read = TypeVar("Read")
_BYTE_ORDER_MARKS = (codecs.BOM_UTF8, codecs.BOM_UTF16_LE, codecs.BOM_UTF16_BE)


def read_json_lines(
    path: str | os.PathLike, what: str, read: Callable[[dict[str, Any]], Read]
) -> Iterator[Read]:
    """What `read` makes of the object on each line, in order; blank lines are passed over.

    Args:
      path: UTF-8.
      what: what a line holds, in the plural, for errors: "problems".
      read: raises ValueError for an object that it does not take.

    Raises:
      FileNotFoundError: no such file.
      ValueError: a line that is no JSON object, or that `read` does not take, with file and line;
        or a file without any.
    """
    path = Path(path)
    if not path.is_file():
        raise FileNotFoundError(f"no file {path} of {what}, one JSON object a line")
    empty = True
    with path.open("rb") as file:
        # Lines end at line feeds alone: JSON text may hold other characters that Python takes for
        # line ends.
        for number, line in enumerate(file, start=1):
            if not line.strip():
                continue
            try:
                found = read(_read_object(line, number))
            except ValueError as error:
                raise ValueError(f"{path}, line {number}: {error}") from error
            empty = False
            yield found
    if empty:
        raise ValueError(f"{path} is empty; it needs {what}, one JSON object a line")


def _read_object(line: bytes, number: int) -> dict[str, Any]:
    if number == 1 and line.startswith(_BYTE_ORDER_MARKS):
        raise ValueError("the file begins with a byte order mark; save it as UTF-8 without one")
    try:
        record = json.loads(line.decode("utf-8"))
    except UnicodeDecodeError as error:
        raise ValueError(f"not UTF-8 at byte {error.start + 1} of the line") from error
    except json.JSONDecodeError as error:
        raise ValueError(f"not JSON: {error.msg} at column {error.colno}") from error
    except RecursionError:
        raise ValueError("JSON nested too deeply") from None
    if not isinstance(record, dict):
        raise ValueError(f"expected a JSON object, not {short(record)}")
    return record


def short(value: Any) -> str:
    """A JSON value for an error, cut where it is long."""
    text = json.dumps(value)
    return text if len(text) <= 60 else f"{text[:57]}..."
