"""What the mains share: overrides checked by name before any flag is parsed, errors in one line."""

import importlib.util
import os
import re
import signal
import sys
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any

from absl import app, flags, logging

from ..names import nearest, unknown
from ..sandbox.protocol import SandboxError
from .compilation_cache import use_compilation_cache
from .distributed import connect
from .host_memory import keep_freed_memory


class Terminated(KeyboardInterrupt):
    """SIGTERM: unwinds as an interrupt does, which environments in this process let through too."""


# What the user or the machine can mend: one line says it, --debug shows where.
USER_ERRORS = (ValueError, OSError, ImportError, SandboxError)


def check_overrides(arguments: Sequence[str]) -> None:
    """Refuses `--config.<path>=...` for a path that the config file does not have.

    Args:
      arguments: the command line, program name first; flag files in it are read.

    Raises:
      ValueError: an unknown path, with the nearest name; or a config file without `get_config`.
      FileNotFoundError: no such config file.
    """
    arguments = flags.FLAGS.read_flags_from_files(list(arguments))
    config = None
    for index, argument in enumerate(arguments):
        match = re.fullmatch(r"--?config(?:=(.*))?", argument)
        if match:
            following = arguments[index + 1] if index + 1 < len(arguments) else ""
            value = match.group(1) if match.group(1) is not None else following
            config = load_config(value)
    if config is None:
        return
    for argument in arguments:
        match = re.match(r"--?config\.([\w.\[\]]+)", argument)
        if match:
            _check_path(config, match.group(1))


def load_config(value: str) -> Any:
    """The ConfigDict of `path.py` or `path.py:argument`, as the `--config` flag reads it."""
    _, colon, argument = value.partition(":")
    module = load_module(value)
    return module.get_config(argument) if colon else module.get_config()


def load_sweep(value: str) -> list[dict[str, Any]]:
    """What each run that the config file's `sweep(add)` adds changes, in their order.

    Raises:
      FileNotFoundError: as `load_module`.
      ValueError: the file defines no `sweep`, or it adds no run.
    """
    module = load_module(value)
    changes: list[dict[str, Any]] = []
    if hasattr(module, "sweep"):
        module.sweep(lambda **overrides: changes.append(overrides))
    if not changes:
        raise ValueError(f"config file {value} defines no sweep(add) that adds a run")
    return changes


def swept_config(value: str, overrides: Mapping[str, Any]) -> Any:
    """The ConfigDict of one run of a sweep.

    Args:
      value: `path.py` or `path.py:argument`.
      overrides: of `load_sweep`; "argument" among them is added to the config's argument.
    """
    path, _, given = value.partition(":")
    fields = {name: each for name, each in overrides.items() if name != "argument"}
    argument = ",".join(filter(None, (given, overrides.get("argument", ""))))
    config = load_config(f"{path}:{argument}" if argument else path)
    config.update(fields)
    return config


def load_module(value: str) -> Any:
    """The module behind `path.py` or `path.py:argument`.

    Raises:
      FileNotFoundError: there is no such file.
      ValueError: it defines no `get_config`.
    """
    path = value.partition(":")[0]
    if not Path(path).is_file():
        others = [str(other) for other in Path("configs").rglob("*.py")]
        guess = nearest(path, others)
        hint = f" Did you mean {guess}?" if guess else ""
        raise FileNotFoundError(f"no config file {path}.{hint} There are: {', '.join(others)}")
    spec = importlib.util.spec_from_file_location("sepo_jax_config", path)
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    if not hasattr(module, "get_config"):
        raise ValueError(f"config file {path} defines no get_config(argument)")
    return module


def _check_path(config: Any, path: str) -> None:
    here, walked = config, "config"
    for part in re.split(r"[.\[]", path.replace("]", "")):
        if not isinstance(here, Mapping) and not hasattr(here, "keys"):
            raise ValueError(f"--config.{path}: {walked} is a value, not a section")
        if part not in here:
            raise unknown(f"field of {walked}", part, here.keys())
        here, walked = here[part], f"{walked}.{part}"


def parse_argument(argument: str | None, **defaults: Any) -> dict[str, Any]:
    """Reads a config argument such as "policy=smollm2,runlocal" against typed defaults.

    Args:
      argument: comma-separated `key=value` pairs; a bare key of a boolean means True.
      **defaults: allowed keys; a value is read as the type of its default.

    Raises:
      ValueError: an unknown key (the nearest is offered), a key twice, no value or one of the
        wrong type.
    """
    read, given = dict(defaults), set()
    for item in filter(None, (part.strip() for part in (argument or "").split(","))):
        key, equals, text = item.partition("=")
        if key not in defaults:
            raise unknown("config argument", key, defaults)
        if key in given:
            raise ValueError(f"config argument {key} is given twice; keep one of them")
        given.add(key)
        kind = type(defaults[key])
        if kind is bool:
            words = {"": True, "true": True, "1": True, "false": False, "0": False}
            if text.lower() not in words or (equals and not text):
                raise ValueError(f"config argument {key} takes true or false, got {text!r}")
            read[key] = words[text.lower()]
            continue
        if not text:
            raise ValueError(f"config argument {key} needs a value: {key}=...")
        try:
            read[key] = kind(text)
        except ValueError:
            raise ValueError(
                f"config argument {key} must be a {kind.__name__}, got {text!r}"
            ) from None
    return read


def define_process_flags() -> Callable[[], None]:
    """Flags of a run on several hosts; the function returned joins the processes they name."""
    coordinator = flags.DEFINE_string("coordinator", None, "host:port of process 0")
    num_processes = flags.DEFINE_integer("num_processes", None, "how many processes the run has")
    process_id = flags.DEFINE_integer("process_id", None, "which of them this is, from 0")
    distributed = flags.DEFINE_bool(
        "distributed", False, "find coordinator, number and id in the cluster's environment"
    )
    limit = flags.DEFINE_float("start_limit", 300.0, "seconds to wait for all processes")

    def join() -> None:
        connect(
            coordinator.value,
            num_processes.value,
            process_id.value,
            from_environment=distributed.value,
            limit=limit.value,
        )

    return join


def run_main(main: Callable[[], None], cache: str | None = None) -> None:
    """Parses the flags and runs `main`; what users get wrong ends in one line and exit code 2.

    Compiled programs are kept in --compilation_cache, whose default is `cache`; see
    `use_compilation_cache`. Mains that time whole runs have "", none.

    An interrupt and SIGTERM unwind, so that sandboxes close and what is half-written goes: exit
    codes 130 and 143.
    """
    signal.signal(signal.SIGTERM, _leave)
    keep_freed_memory()
    try:
        _parse_and_run(main, cache)
    except Terminated:
        sys.exit(128 + signal.SIGTERM)
    except KeyboardInterrupt:
        # Training writes checkpoints; other programs start again.
        print("interrupted; a training run goes on with --resume", file=sys.stderr)
        sys.exit(128 + signal.SIGINT)


def _parse_and_run(main: Callable[[], None], cache: str | None) -> None:
    sys.path.insert(0, "")  # a module of the working directory may hold an own loss or domain
    try:
        check_overrides(sys.argv)
    except (ValueError, FileNotFoundError) as error:
        sys.exit(_one_line(error))

    # Libraries report every checkpoint and missing optional package; a run reports itself.
    os.environ.setdefault("TRANSFORMERS_VERBOSITY", "error")

    kept = flags.DEFINE_string(
        "compilation_cache",
        cache,
        "directory of compiled programs; '' for none, and by default, unless a program measures "
        "whole runs, $JAX_COMPILATION_CACHE_DIR or else ~/.cache/sepo_jax/compilations",
    )

    def guarded(arguments: Sequence[str]) -> None:
        if not flags.FLAGS["verbosity"].present:
            logging.set_verbosity(logging.WARNING)
        if len(arguments) > 1:
            sys.exit(_one_line(ValueError(f"unexpected arguments {arguments[1:]}")))
        use_compilation_cache(kept.value)
        try:
            main()
        except USER_ERRORS as error:
            if flags.FLAGS.is_parsed() and "debug" in flags.FLAGS and flags.FLAGS.debug:
                raise
            sys.exit(_one_line(error))

    app.run(guarded)


def _leave(number: int, frame: Any) -> None:
    signal.signal(number, signal.SIG_IGN)  # another one must not cut the unwinding short
    print("terminated; a training run goes on with --resume", file=sys.stderr)
    raise Terminated


def _one_line(error: Exception) -> int:
    print(f"error: {error}", file=sys.stderr)
    return 2
