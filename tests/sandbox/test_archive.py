"""Directories as bytes: what comes back is what was there, and nothing gets out on the way."""

import errno
import io
import os
import shutil
import socket
import tarfile

import pytest
from sandbox.elsewhere import result, start
from sandbox.toys_files import Notes
from sandbox.trees import LARGE, describe, grow, restored_as_nobody

from sepo_jax.sandbox import archive as archives
from sepo_jax.sandbox.archive import (
    archive_content,
    clear_directory,
    copy_directory,
    pack_directory,
    read_archive,
    unpack_directory,
)
from sepo_jax.sandbox.protocol import SnapshotRefused
from sepo_jax.sandbox.snapshots import seal, unseal


@pytest.fixture
def tree(tmp_path):
    root = tmp_path / "tree"
    root.mkdir()
    yield root
    clear_directory(root)


def content(directory) -> str:
    return archive_content(read_archive(pack_directory(directory, LARGE)))


def test_a_tree_comes_back_exactly_for_an_ordinary_user():
    assert result(start(restored_as_nobody)) == []


def test_a_tree_comes_back_exactly_elsewhere(tree, tmp_path):
    grow(tree)
    before = describe(tree)
    packed = pack_directory(tree, LARGE)
    assert describe(tree) == before
    other = tmp_path / "other"
    other.mkdir()
    unpack_directory(read_archive(packed), other, tmp_path / "staging")
    assert describe(other) == before
    assert pack_directory(other, LARGE) == packed
    clear_directory(other)
    assert list(other.iterdir()) == []


def test_the_content_is_of_what_is_there_and_not_of_when(tree, tmp_path):
    (tree / "b").write_text("2")
    (tree / "a").write_text("1")
    other = tmp_path / "other"
    other.mkdir()
    (other / "a").write_text("1")
    (other / "b").write_text("2")
    for moment, path in enumerate([other / "a", other / "b", other, tree / "a"]):
        os.utime(path, ns=(moment, moment))
    assert content(other) == content(tree)
    assert pack_directory(other, LARGE) != pack_directory(tree, LARGE)


def test_entries_stand_in_the_order_of_their_names(tree):
    names = [f"{number * 7 % 50:02}" for number in range(50)]
    for name in names:
        (tree / name).touch()
    assert [entry.name for entry in read_archive(pack_directory(tree, LARGE))] == [
        ".",
        *sorted(names),
    ]


def change_bytes(root):
    (root / "a").write_text("2")


def change_mode(root):
    (root / "a").chmod(0o640)


def rename(root):
    (root / "a").rename(root / "c")


def add_empty_directory(root):
    (root / "d").mkdir()


def link_symbolically(root):
    os.symlink("a", root / "c")


def link_hard(root):
    (root / "b").unlink()
    (root / "b").hardlink_to(root / "a")


@pytest.mark.parametrize(
    "change",
    [change_bytes, change_mode, rename, add_empty_directory, link_symbolically, link_hard],
)
def test_what_a_program_could_tell_apart_has_another_content(tree, change):
    (tree / "a").write_text("1")
    (tree / "b").write_text("1")
    before = content(tree)
    change(tree)
    assert content(tree) != before


@pytest.mark.parametrize("kind", ["pipe", "socket", "device"])
def test_what_is_no_file_is_refused_by_name(tree, kind):
    if kind == "pipe":
        os.mkfifo(tree / "odd")
    elif kind == "device":
        try:
            os.mknod(tree / "odd", 0o20666, os.makedev(1, 3))
        except PermissionError:
            pytest.skip("only root makes devices")
    else:
        socket.socket(socket.AF_UNIX).bind(str(tree / "odd"))
    with pytest.raises(SnapshotRefused, match=r"'odd' is no file, directory or link \(mode [pcs]"):
        pack_directory(tree, LARGE)


def test_a_tree_that_is_too_large_is_refused_by_name(tree):
    (tree / "small").write_bytes(b"x" * 1000)
    size = len(pack_directory(tree, LARGE))
    assert len(pack_directory(tree, size)) == size
    with open(tree / "sparse", "wb") as handle:
        handle.truncate(2**40)
    with pytest.raises(SnapshotRefused, match=rf"more than {size} bytes \(stopped at 'sparse'\)"):
        pack_directory(tree, size)
    (tree / "sparse").unlink()
    for number in range(100):
        (tree / f"empty{number}").touch()
    with pytest.raises(SnapshotRefused, match="stopped at 'empty"):
        pack_directory(tree, size)


def forged(*members: tuple[str, str, str], root: bool = True) -> bytes:
    """An archive of (name, type, link); the letters of a type are those of `types`."""
    types = {"d": tarfile.DIRTYPE, "f": tarfile.REGTYPE, "l": tarfile.SYMTYPE}
    types |= {"h": tarfile.LNKTYPE, "p": tarfile.FIFOTYPE, "c": tarfile.CHRTYPE}
    buffer = io.BytesIO()
    with tarfile.open(fileobj=buffer, mode="w", format=tarfile.PAX_FORMAT) as tar:
        for name, kind, link in [(".", "d", "")] * root + list(members):
            member = tarfile.TarInfo(name)
            member.type, member.linkname = types[kind], link
            member.size = 4 * (kind == "f")
            tar.addfile(member, io.BytesIO(b"evil" if kind == "f" else b""))
    return buffer.getvalue()


ESCAPES = {
    "absolute": [("/tmp/sepo_jax_evil", "f", "")],
    "above": [("../evil", "f", "")],
    "above as a directory": [("..", "d", ""), ("../evil", "f", "")],
    "here as a directory": [("a", "d", ""), ("a/.", "d", ""), ("a/./evil", "f", "")],
    "above from below": [("a", "d", ""), ("a/../../evil", "f", "")],
    "dots": [("a", "d", ""), ("a/./evil", "f", "")],
    "two slashes": [("a", "d", ""), ("a//evil", "f", "")],
    "through a link": [("a", "l", "OUT"), ("a/evil", "f", "")],
    "through a link that was a directory": [("a", "d", ""), ("a", "l", "OUT"), ("a/evil", "f", "")],
    "onto a link": [("a", "l", "OUT/evil"), ("a", "f", "")],
    "hard link out": [("a", "h", "OUT/secret")],
    "hard link to a link": [("a", "l", "OUT/secret"), ("b", "h", "a")],
    "hard link to a directory": [("a", "d", ""), ("b", "h", "a")],
    "hard link to itself": [("a", "h", "a")],
    "pipe": [("a", "p", "")],
    "device": [("a", "c", "")],
    "no parent": [("a/b", "f", "")],
    "file as parent": [("a", "f", ""), ("a/b", "f", "")],
    "root is a link": [(".", "l", "OUT")],
}


@pytest.mark.parametrize("name", list(ESCAPES))
def test_an_archive_that_leads_out_is_refused_before_anything_changes(name, tmp_path):
    outside = tmp_path / "outside"
    outside.mkdir()
    (outside / "secret").write_text("mine")
    (tmp_path / "scratch").mkdir()
    environment = Notes(tmp_path / "scratch")
    environment.reset({"data": None, "name": "b", "steps": 9}, 0)
    environment.step({0: "write kept fern"})
    header, body = unseal(environment.snapshot())
    value = body[: 8 + int.from_bytes(body[:8], "big")]
    members = [
        (path, kind, link.replace("OUT", str(outside))) for path, kind, link in ESCAPES[name]
    ]
    archive = forged(*members, root=name != "root is a link")
    with pytest.raises(SnapshotRefused, match=r"the archive holds|archive of a directory"):
        environment.restore(seal(header, value + archive))
    assert {path.name: path.read_text() for path in outside.iterdir()} == {"secret": "mine"}
    assert sorted(path.name for path in tmp_path.iterdir()) == ["outside", "scratch"]
    assert [path.name for path in environment.directory.iterdir()] == ["kept"]
    assert not os.path.exists("/tmp/sepo_jax_evil")
    assert environment.step({0: "list"}).prompts[0].messages[0]["content"] == "kept"


def test_links_that_point_out_are_kept_and_never_followed(tree, tmp_path):
    outside = tmp_path / "outside"
    (outside / "below").mkdir(parents=True)
    (outside / "secret").write_text("mine")
    seen = describe(outside)
    os.symlink(outside, tree / "out")
    os.symlink(outside / "secret", tree / "secret")
    packed = pack_directory(tree, LARGE)
    assert b"mine" not in packed
    unpack_directory(read_archive(packed), tree, tmp_path / "staging")
    assert os.readlink(tree / "out") == str(outside)
    clear_directory(tree)
    assert list(tree.iterdir()) == [] and describe(outside) == seen


@pytest.mark.parametrize(
    "data", [b"", b"no tar", forged(root=False), forged(("a", "f", ""))[:1026]]
)
def test_bytes_that_are_no_archive_are_refused(data):
    with pytest.raises(SnapshotRefused, match="not an archive of a directory"):
        read_archive(data)


def test_a_full_disk_leaves_the_directory_as_it_was(tree, tmp_path, monkeypatch):
    (tree / "a").write_text("1")
    (tree / "b").write_text("2")
    entries = read_archive(pack_directory(tree, LARGE))
    (tree / "b").write_text("3")
    before = describe(tree)
    write = archives._write

    def fill(entry, root):
        if entry.name == "b":
            raise OSError(errno.ENOSPC, "No space left on device")
        write(entry, root)

    monkeypatch.setattr(archives, "_write", fill)
    with pytest.raises(OSError, match="No space left"):
        unpack_directory(entries, tree, tmp_path / "staging")
    assert describe(tree) == before and not (tmp_path / "staging").exists()


def test_a_copy_can_be_changed_where_its_source_cannot(tree, tmp_path):
    grow(tree)
    before = describe(tree)
    copied = tmp_path / "copied"
    copied.mkdir()
    copy_directory(tree, copied)
    assert describe(tree) == before
    for path in [copied, *copied.rglob("*")]:
        if not path.is_symlink():
            needed = 0o700 if path.is_dir() else 0o600
            assert path.stat().st_mode & needed == needed
    assert (copied / "hidden").read_bytes() == b"hidden" * 300
    assert os.readlink(copied / "out") == "../../x"
    assert (copied / "script").stat().st_mode & 0o111
    shutil.rmtree(copied)
