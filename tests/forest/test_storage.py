"""A forest as a file: round trip, and files that are refused."""

import zipfile

import numpy as np
import pytest

from sepo_jax.forest import ForestBuilder, equal, load, save


def test_round_trip(tmp_path, random_forest):
    for seed in range(3):
        forest = random_forest(seed, events=True)
        reward = forest.reward.copy()
        reward[-1] = np.nan
        forest = forest.replace(reward=reward, metadata={"note": [1, "two", None]})
        path = save(tmp_path / "deep" / "forest.npz", forest)
        assert equal(load(path), forest)
    assert [file.name for file in path.parent.iterdir()] == ["forest.npz"]  # nothing left over


def test_an_empty_forest_round_trips(tmp_path):
    forest = ForestBuilder().build()
    assert equal(load(save(tmp_path / "empty.npz", forest)), forest)


def test_failed_save_keeps_the_old_file(tmp_path, random_forest):
    path = save(tmp_path / "forest.npz", random_forest(0))
    with pytest.raises(ValueError, match="plain JSON"):
        save(path, random_forest(1).replace(metadata={"bad": object()}))
    assert equal(load(path), random_forest(0))


def test_truncated_files_are_refused(tmp_path, random_forest):
    path = save(tmp_path / "forest.npz", random_forest(0))
    whole = path.read_bytes()
    for size in (0, 10, len(whole) // 2, len(whole) - 1):
        path.write_bytes(whole[:size])
        with pytest.raises(ValueError, match="not a whole forest file"):
            load(path)


def test_damaged_file_is_refused(tmp_path, random_forest):
    path = save(tmp_path / "forest.npz", random_forest(0))
    with zipfile.ZipFile(path) as archive:
        tokens = archive.getinfo("tokens.npy")
    content = bytearray(path.read_bytes())
    # In front of the data: 30 bytes, the name, and as many bytes as the last two of the 30 say.
    name = tokens.header_offset + 30
    begin = name + len(tokens.filename) + int.from_bytes(content[name - 2 : name], "little")
    content[begin + tokens.compress_size // 2] ^= 0xFF
    path.write_bytes(bytes(content))
    with pytest.raises(ValueError):
        load(path)


def test_foreign_files_are_refused(tmp_path):
    text = tmp_path / "text.npz"
    text.write_text("hello")
    with pytest.raises(ValueError, match="not a whole forest file"):
        load(text)
    np.savez(tmp_path / "other.npz", weights=np.zeros(3))
    with pytest.raises(ValueError, match="format 'no format mark'"):
        load(tmp_path / "other.npz")
    np.savez(tmp_path / "short.npz", format=np.array("sepo_jax.forest.2"), extra=np.zeros(1))
    with pytest.raises(ValueError, match=r"lacks the arrays .*tokens.* unknown arrays \['extra'\]"):
        load(tmp_path / "short.npz")
    np.save(tmp_path / "array.npy", np.zeros(3))
    with pytest.raises(ValueError, match="not a whole forest file"):
        load(tmp_path / "array.npy")
    with pytest.raises(FileNotFoundError, match=r"no forest at .*missing\.npz"):
        load(tmp_path / "missing.npz")


def test_no_pickle(tmp_path):
    np.savez(tmp_path / "pickled.npz", format=np.array([object()], dtype=object))
    with pytest.raises(ValueError, match="not a whole forest file"):
        load(tmp_path / "pickled.npz")
