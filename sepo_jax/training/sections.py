"""Sections of a config: typed dataclasses, read from plain mappings."""

import dataclasses
import types
import typing
from collections.abc import Mapping
from typing import Any

from ..names import unknown


def read_section(section: type, values: Any, where: str) -> Any:
    """A dataclass of the values of a mapping; sections within it are read likewise.

    Raises:
      ValueError: a field that the section lacks, with the nearest it has, or a value of another
        type than the field's; `where` says where in the config that is.
    """
    if not isinstance(values, Mapping):
        raise ValueError(f"{where} must be a section with fields, got {values!r}")
    fields = {field.name: field for field in dataclasses.fields(section)}
    for name in values:
        if name not in fields:
            raise unknown(f"field of {where}", name, fields)
    hints = typing.get_type_hints(section)
    read = {name: _convert(hints[name], value, f"{where}.{name}") for name, value in values.items()}
    return section(**read)


def _convert(kind: Any, value: Any, where: str) -> Any:
    if dataclasses.is_dataclass(kind):
        return read_section(kind, value, where)
    if kind is Mapping or isinstance(kind, types.GenericAlias):
        if isinstance(value, Mapping):
            return dict(value)
    elif kind is tuple and isinstance(value, list | tuple):
        return tuple(value)
    elif kind is float and isinstance(value, int | float) and not isinstance(value, bool):
        return float(value)
    elif (kind is int and isinstance(value, int) and not isinstance(value, bool)) or (
        kind in (str, bool) and isinstance(value, kind)
    ):
        return value
    expected = getattr(kind, "__name__", str(kind))
    raise ValueError(f"{where} must be a {expected}, got {value!r} of type {type(value).__name__}")
