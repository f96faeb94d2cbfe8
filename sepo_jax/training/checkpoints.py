"""Checkpoints by Orbax: written whole, restored to numpy on any number of devices.

A save copies the state to the host and returns; a thread writes it while training goes on. A
checkpoint has its name only once it is complete, and the oldest goes only after that: whenever a
process is killed, the newest checkpoint of that name is whole.

A checkpoint holds one training state and a description of its tree. Restoring compares that
description with the state at hand first, so that another optimizer or model is refused by path.
Checkpoints that cannot be read are skipped with a warning and never deleted: one that stands where
a new one is to be written is moved aside. Only what a run saved or restored itself is removed when
newer ones take its place. In a run of several processes one of them writes and reads, and Orbax
waits for no other.
"""

import logging
import os
from concurrent.futures import Future, ThreadPoolExecutor
from pathlib import Path
from typing import Any

import jax
import numpy as np
import orbax.checkpoint as ocp

from .distributed import from_first, together

_LOG = logging.getLogger(__name__)


class Checkpoints:
    """The numbered checkpoints of one stage under one directory; the newest `keep` stay.

    On leaving its `with` block the last save is complete.
    """

    def __init__(self, directory: str | os.PathLike, keep: int = 2):
        self.directory = Path(directory).resolve()
        self.directory.mkdir(parents=True, exist_ok=True)
        here = jax.process_index()
        options = ocp.CheckpointManagerOptions(
            max_to_keep=None,
            # The thread of `save` does that, and deletes old ones after it.
            enable_async_checkpointing=False,
            create=False,
            multiprocessing_options=ocp.options.MultiprocessingOptions(
                primary_host=here,
                active_processes={here},
                barrier_sync_key_prefix=f"process{here}",
            ),
        )
        self._manager = ocp.CheckpointManager(self.directory, options=options)
        self._keep = keep
        self._own: list[int] = []
        self._writer = ThreadPoolExecutor(1, "checkpoint")
        self._saving: Future | None = None

    def __enter__(self) -> "Checkpoints":
        return self

    def __exit__(self, kind: Any, error: BaseException | None, trace: Any) -> None:
        try:
            self.wait()
        except Exception as failed:
            if error is None:
                raise
            _LOG.warning("the last save failed: %s", failed)
        finally:
            self._writer.shutdown()

    def save(self, step: int, state: Any) -> None:
        """Begins to write `state` (a pytree of arrays) as checkpoint `step`.

        It returns when the save before is complete and `state` is copied: the caller may overwrite
        or donate it. What went wrong with the save before is raised here.
        """
        self.wait()
        host_state = jax.tree.map(np.array, state)
        self._saving = self._writer.submit(self._write, step, host_state)

    def wait(self) -> None:
        """Returns when the last save is complete; raises what went wrong with it, once."""
        saving, self._saving = self._saving, None
        if saving is not None:
            saving.result()

    def _write(self, step: int, host_state: Any) -> None:
        self._move_aside(step)
        self._manager.save(
            step,
            args=ocp.args.Composite(
                state=ocp.args.StandardSave(host_state),
                structure=ocp.args.JsonSave(describe(host_state)),
            ),
            force=True,
        )
        self._own = [*(own for own in self._own if own != step), step]
        while len(self._own) > self._keep:
            self._manager.delete(self._own.pop(0))

    def _move_aside(self, step: int) -> None:
        place = self.directory / str(step)
        if place.exists():
            aside = next(
                name
                for name in (self.directory / f"{step}.aside{n}" for n in range(1000))
                if not name.exists()
            )
            place.rename(aside)
            self._manager.reload()
            _LOG.warning("%s stood where checkpoint %d goes; it is now %s", place, step, aside)

    def steps(self) -> list[int]:
        """Numbers of the complete checkpoints, oldest first."""
        self.wait()
        return sorted(self._manager.all_steps())

    def restore(self, template: Any, step: int | None = None) -> tuple[int, Any] | None:
        """`(step, state)` of the newest readable checkpoint (or of `step`), None without any.

        Args:
          template: a state of the same tree, shapes and dtypes, such as a fresh one.
          step: this one and no other.

        Raises:
          ValueError: the checkpoint holds another tree; the first paths that differ are named.
          FileNotFoundError: `step` was asked for and cannot be read.
        """
        self.wait()
        candidates = self.steps() if step is None else [step]
        host_template = jax.tree.map(np.asarray, template)
        for candidate in reversed(candidates):
            try:
                saved = self._manager.restore(
                    candidate, args=ocp.args.Composite(structure=ocp.args.JsonRestore())
                ).structure
            except Exception as error:
                self._skip(candidate, error)
                continue
            compare_structure(saved, describe(host_template), f"{self.directory}/{candidate}")
            try:
                restored = self._manager.restore(
                    candidate,
                    args=ocp.args.Composite(state=ocp.args.StandardRestore(host_template)),
                ).state
            except Exception as error:
                self._skip(candidate, error)
                continue
            self._own = [candidate]
            return candidate, jax.tree.map(np.asarray, restored)
        if step is not None:
            raise FileNotFoundError(f"no readable checkpoint {step} in {self.directory}")
        return None

    def _skip(self, step: int, error: Exception) -> None:
        _LOG.warning(
            "checkpoint %s/%d cannot be read and is skipped (not deleted): %s",
            self.directory,
            step,
            str(error).splitlines()[0] if str(error) else type(error).__name__,
        )


def newest_on_all(checkpoints: Checkpoints | None, fresh: Any) -> tuple[int, Any]:
    """Number and state of the newest readable checkpoint, or (0, `fresh`), on every process.

    Args:
      checkpoints: those of process 0, which alone reads; None on the others.
      fresh: a state of the same tree, the same on all processes.

    Raises:
      ValueError: the checkpoint holds another tree; raised on every process.
    """
    found = together(lambda: checkpoints.restore(fresh) if checkpoints is not None else None)
    step, state = (0, fresh) if found is None else found
    structure = jax.tree.structure(fresh)
    step, leaves = from_first((step, jax.tree.leaves(state)))
    return int(step), jax.tree.unflatten(structure, leaves)


def describe(state: Any) -> dict[str, str]:
    """Path of every array in `state` -> "dtype[shape]"."""
    leaves = jax.tree_util.tree_leaves_with_path(state)
    return {
        jax.tree_util.keystr(path): f"{np.asarray(leaf).dtype}{list(np.shape(leaf))}"
        for path, leaf in leaves
    }


def compare_structure(saved: dict[str, str], wanted: dict[str, str], where: str) -> None:
    """Raises ValueError naming the paths that are missing, extra or of another shape or dtype."""
    problems = [f"{path}: saved, not wanted" for path in saved.keys() - wanted.keys()]
    problems += [f"{path}: wanted, not saved" for path in wanted.keys() - saved.keys()]
    problems += [
        f"{path}: saved {saved[path]}, wanted {wanted[path]}"
        for path in saved.keys() & wanted.keys()
        if saved[path] != wanted[path]
    ]
    if problems:
        shown = "\n  ".join(sorted(problems)[:10])
        raise ValueError(
            f"checkpoint {where} holds another state ({len(problems)} differences):\n  {shown}\n"
            "Use the model and optimizer it was saved with."
        )
