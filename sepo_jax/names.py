"""Names of options and of objects; an error says what was given, what is allowed, what is near."""

import difflib
import importlib
from collections.abc import Iterable
from typing import Any


def nearest(name: str, allowed: Iterable[str]) -> str | None:
    """The allowed name most like `name`, or None when nothing comes close."""
    matches = difflib.get_close_matches(
        str(name), [str(option) for option in allowed], n=1, cutoff=0.5
    )
    return matches[0] if matches else None


def did_you_mean(name: str, allowed: Iterable[str]) -> str:
    """The question after an error's first sentence: " Did you mean 'x'?", "" when none is near."""
    guess = nearest(name, allowed)
    return f" Did you mean {guess!r}?" if guess else ""


def unknown(kind: str, name: object, allowed: Iterable[str]) -> ValueError:
    """A ValueError saying that `name` is no known `kind`; raise what this returns."""
    options = sorted(str(option) for option in allowed)
    hint = did_you_mean(str(name), options)
    return ValueError(f"unknown {kind} {name!r}.{hint} Allowed: {', '.join(options)}.")


def check_option(kind: str, name: str, allowed: Iterable[str]) -> str:
    """Returns `name` when it is allowed, raises the error of `unknown` otherwise."""
    options = list(allowed)
    if name not in options:
        raise unknown(kind, name, options)
    return name


def imported(kind: str, name: str, example: str) -> Any:
    """The object that `name` gives as "module:object".

    Args:
      kind: of option, for errors.
      name: such as "my_module:MyClass"; the module is searched on the Python path.
      example: how such a name looks, for errors.

    Raises:
      ValueError: no such module or object, with what the import said.
    """
    module, _, attribute = name.partition(":")
    try:
        return getattr(importlib.import_module(module), attribute)
    except (ImportError, AttributeError, ValueError) as error:
        raise ValueError(
            f'{kind}={name!r} must be "{example}" with names from the Python path ({error})'
        ) from error
