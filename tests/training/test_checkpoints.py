"""Checkpoints: the same tree back, on any number of devices; damage is skipped, not deleted."""

import logging
import shutil
import threading

import jax
import jax.numpy as jnp
import numpy as np
import optax
import pytest

from sepo_jax.training.checkpoints import Checkpoints
from sepo_jax.training.settings import OptimizerSettings
from sepo_jax.training.update import init_state, make_optimizer


def make_state(value=1.0, clip=True):
    params = {"layer": {"kernel": jnp.full((3, 4), value), "bias": jnp.zeros(4, jnp.bfloat16)}}
    optimizer = make_optimizer(OptimizerSettings(), 1e-3, 2, 10, 0.0)
    return init_state(params, optimizer if clip else optax.adamw(1e-3))


def save(directory, step, state, **options):
    with Checkpoints(directory, **options) as checkpoints:
        checkpoints.save(step, state)


def assert_same(left, right):
    assert jax.tree.structure(left) == jax.tree.structure(right)
    jax.tree.map(np.testing.assert_array_equal, left, right)
    types = jax.tree.map(lambda a, b: np.asarray(a).dtype == np.asarray(b).dtype, left, right)
    assert all(jax.tree.leaves(types))


def test_the_tree_comes_back_as_it_was(tmp_path):  # E06
    state = make_state(3.0)
    save(tmp_path, 7, state)
    step, restored = Checkpoints(tmp_path).restore(make_state(0.0))
    assert step == 7
    assert_same(restored, state)


def test_the_newest_is_taken_and_the_oldest_go(tmp_path):
    checkpoints = Checkpoints(tmp_path, keep=2)
    for step in (1, 2, 3):
        checkpoints.save(step, make_state(float(step)))
    assert checkpoints.steps() == [2, 3]
    step, restored = Checkpoints(tmp_path, keep=2).restore(make_state())
    assert step == 3 and restored.params["layer"]["kernel"][0, 0] == 3.0


def test_nothing_to_restore_is_none(tmp_path):
    assert Checkpoints(tmp_path).restore(make_state()) is None
    with pytest.raises(FileNotFoundError, match="no readable checkpoint 4"):
        Checkpoints(tmp_path).restore(make_state(), step=4)


def test_another_optimizer_is_refused_by_path(tmp_path):  # E06
    save(tmp_path, 1, make_state())
    with pytest.raises(ValueError, match="optimizer_state"):
        Checkpoints(tmp_path).restore(make_state(clip=False))


def test_saved_from_eight_devices_opened_on_one_and_two(tmp_path):  # E03
    values = np.arange(16.0, dtype=np.float32)

    def spread(devices):
        mesh = jax.make_mesh(
            (devices,), ("data",), axis_types=(jax.sharding.AxisType.Auto,),
            devices=jax.devices()[:devices],
        )  # fmt: skip
        sharding = jax.sharding.NamedSharding(mesh, jax.sharding.PartitionSpec("data"))
        return {"w": jax.device_put(values, sharding)}

    save(tmp_path, 1, spread(8))
    for devices in (1, 2):
        _, restored = Checkpoints(tmp_path).restore(spread(devices))
        np.testing.assert_array_equal(restored["w"], values)


def test_a_copied_checkpoint_loads(tmp_path):  # E04
    save(tmp_path / "a", 1, make_state(5.0))
    shutil.copytree(tmp_path / "a", tmp_path / "b")
    step, restored = Checkpoints(tmp_path / "b").restore(make_state())
    assert step == 1 and restored.params["layer"]["kernel"][0, 0] == 5.0


@pytest.mark.parametrize("damage", ["missing", "truncated"])
def test_a_damaged_checkpoint_is_skipped_and_left_alone(tmp_path, caplog, damage):  # E04
    checkpoints = Checkpoints(tmp_path)
    checkpoints.save(1, make_state(1.0))
    checkpoints.save(2, make_state(2.0))
    checkpoints.wait()
    files = [f for f in (tmp_path / "2/state").rglob("*") if f.is_file() and f.parent.name == "d"]
    for file in files:
        if damage == "missing":
            file.unlink()
        else:
            file.write_bytes(file.read_bytes()[:10])
    before = sorted(str(p) for p in (tmp_path / "2").rglob("*"))
    with caplog.at_level(logging.WARNING):
        step, restored = Checkpoints(tmp_path).restore(make_state())
    assert step == 1 and restored.params["layer"]["kernel"][0, 0] == 1.0
    assert "skipped (not deleted)" in caplog.text
    assert sorted(str(p) for p in (tmp_path / "2").rglob("*")) == before


def test_a_damaged_step_can_be_done_again(tmp_path):  # E04
    save(tmp_path, 1, make_state(1.0))
    save(tmp_path, 2, make_state(2.0))
    shutil.rmtree(tmp_path / "2/state")
    again = Checkpoints(tmp_path)
    assert again.restore(make_state())[0] == 1
    again.save(2, make_state(5.0))
    again.wait()
    step, restored = Checkpoints(tmp_path).restore(make_state())
    assert step == 2 and restored.params["layer"]["kernel"][0, 0] == 5.0
    assert (tmp_path / "2.aside0/structure").exists()


def test_only_own_checkpoints_are_removed(tmp_path):  # E04
    save(tmp_path, 2, make_state(2.0), keep=1)
    (tmp_path / "1").mkdir()
    (tmp_path / "1/mine").write_text("x")
    checkpoints = Checkpoints(tmp_path, keep=1)
    assert checkpoints.restore(make_state())[0] == 2
    for step in (3, 4):
        checkpoints.save(step, make_state(float(step)))
    checkpoints.wait()
    assert (tmp_path / "1/mine").read_text() == "x"
    assert not (tmp_path / "2").exists() and not (tmp_path / "3").exists()
    assert Checkpoints(tmp_path).restore(make_state())[0] == 4


def test_a_half_written_checkpoint_is_not_taken(tmp_path):
    checkpoints = Checkpoints(tmp_path)
    checkpoints.save(1, make_state(1.0))
    checkpoints.save(2, make_state(2.0))
    checkpoints.wait()
    # What a process killed in the middle of a save leaves: the temporary name, no marker.
    (tmp_path / "2").rename(tmp_path / "2.orbax-checkpoint-tmp")
    again = Checkpoints(tmp_path)
    step, _ = again.restore(make_state())
    assert step == 1
    assert (tmp_path / "2.orbax-checkpoint-tmp").exists()
    # It makes room when its step is done again.
    again.save(2, make_state(5.0))
    assert again.steps() == [1, 2] and not (tmp_path / "2.orbax-checkpoint-tmp").exists()
    assert again.restore(make_state())[1].params["layer"]["kernel"][0, 0] == 5.0


class HeldBack:
    """Stands for a manager whose saves wait for a word, and may then fail."""

    def __init__(self, checkpoints, error=None):
        self.manager, self.error = checkpoints._manager, error
        self.entered, self.go_on = threading.Event(), threading.Event()

    def __getattr__(self, name):
        return getattr(self.manager, name)

    def save(self, *arguments, **keywords):
        self.entered.set()
        assert self.go_on.wait(60)
        if self.error is not None:
            raise self.error
        return self.manager.save(*arguments, **keywords)


def test_a_save_returns_before_it_is_written_and_deletes_after_it_is(tmp_path):
    with Checkpoints(tmp_path, keep=1) as checkpoints:
        checkpoints.save(1, make_state(1.0))
        checkpoints.wait()
        slow = checkpoints._manager = HeldBack(checkpoints)
        update = jax.jit(lambda state: jax.tree.map(lambda x: x + 1, state), donate_argnums=0)
        state = make_state(2.0)
        checkpoints.save(2, state)
        assert slow.entered.wait(60)
        # Training goes on in the memory of what is being saved.
        jax.block_until_ready(update(state))
        assert state.params["layer"]["kernel"].is_deleted()
        assert (tmp_path / "1").exists() and not (tmp_path / "2").exists()
        slow.go_on.set()
    assert checkpoints.steps() == [2] and not (tmp_path / "1").exists()
    step, restored = Checkpoints(tmp_path).restore(make_state())
    assert step == 2
    assert_same(restored, make_state(2.0))


def test_a_failed_save_deletes_nothing_and_is_heard_of(tmp_path, caplog):
    full = OSError("no space left on device")
    checkpoints = Checkpoints(tmp_path, keep=1)
    checkpoints.save(1, make_state(1.0))
    checkpoints.wait()
    manager, broken = checkpoints._manager, HeldBack(checkpoints, full)
    broken.go_on.set()
    checkpoints._manager = broken
    checkpoints.save(2, make_state(2.0))
    with pytest.raises(OSError, match="no space left"):
        checkpoints.save(3, make_state(3.0))
    # It is raised once; the next save is one like any other.
    checkpoints._manager = manager
    checkpoints.save(3, make_state(3.0))
    assert checkpoints.steps() == [3]
    # An error that is on its way is not covered up by that of a save.
    with pytest.raises(KeyError, match="first"), checkpoints:
        checkpoints._manager = broken
        checkpoints.save(4, make_state(4.0))
        raise KeyError("first")
    assert "the last save failed: no space left" in caplog.text
    assert Checkpoints(tmp_path).restore(make_state())[0] == 3
