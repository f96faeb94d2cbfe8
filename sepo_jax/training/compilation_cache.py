"""The persistent cache of compiled programs: a later run loads what an earlier one compiled."""

import logging
import os
import tempfile
from pathlib import Path

import jax

_LOG = logging.getLogger(__name__)


def default_directory() -> Path:
    """`sepo_jax/compilations` where the user's caches are."""
    caches = os.environ.get("XDG_CACHE_HOME", "")
    return (Path(caches) if caches else Path.home() / ".cache") / "sepo_jax" / "compilations"


def use_compilation_cache(directory: str | None = None) -> bool:
    """Keeps compiled programs from now on and loads those that are there; whether it does.

    Programs that call back into Python are not kept, as JAX refuses them. Nothing is deleted unless
    JAX_COMPILATION_CACHE_MAX_SIZE says how many bytes may stay. Who can write to the directory can
    run code here.

    Args:
      directory: where; "" for no cache. None stands for JAX_COMPILATION_CACHE_DIR, and where that
        is not set for `default_directory`.

    A directory that cannot be used is a warning, and everything is compiled. So is a file in it
    that cannot be read, of which JAX warns: its program is compiled.
    """
    if directory is None:
        directory = os.environ.get("JAX_COMPILATION_CACHE_DIR")
    try:
        directory = str(default_directory()) if directory is None else directory
        if directory and "://" not in directory:
            _check_writable(Path(directory))
    except (OSError, RuntimeError) as error:  # the second: there is no home
        _LOG.warning("programs are compiled anew, their cache cannot be used: %s", error)
        directory = ""
    jax.config.update("jax_compilation_cache_dir", directory or None)
    if "JAX_PERSISTENT_CACHE_MIN_COMPILE_TIME_SECS" not in os.environ:
        # A run has hundreds of small programs, which together take as long as the large ones.
        jax.config.update("jax_persistent_cache_min_compile_time_secs", 0.0)
    return bool(directory)


def _check_writable(directory: Path) -> None:
    """Makes the directory; OSError where no file can be written there."""
    directory.mkdir(parents=True, exist_ok=True)
    with tempfile.TemporaryFile(dir=directory):
        pass
