"""The files of a git repository with one commit, written without git.

The same files give the same bytes, so the commit has the same name everywhere. Formats are those of
git's own documentation: objects (gitformat-pack, "loose objects"), index version 2
(gitformat-index).
"""

import hashlib
import struct
import zlib
from collections.abc import Mapping

BRANCH = "main"
_MODE = 0o100644
_AUTHOR = "maintainer <maintainer@localhost> 1700000000 +0000"
_CONFIG = """[core]
\trepositoryformatversion = 0
\tfilemode = true
\tbare = false
[gc]
\tauto = 0
"""


def git_directory(files: Mapping[str, str], message: str = "Initial commit") -> dict[str, bytes]:
    """What `.git` holds after the files were committed: path below it -> contents.

    Args:
      files: path -> text, of ordinary files.
      message: of the commit.
    """
    found: dict[str, bytes] = {}
    blobs = {path: _add(found, "blob", text.encode()) for path, text in files.items()}
    tree = _tree(found, blobs)
    commit = f"tree {tree.hex()}\nauthor {_AUTHOR}\ncommitter {_AUTHOR}\n\n{message}\n"
    name = _add(found, "commit", commit.encode()).hex()
    return found | {
        "HEAD": f"ref: refs/heads/{BRANCH}\n".encode(),
        "config": _CONFIG.encode(),
        f"refs/heads/{BRANCH}": f"{name}\n".encode(),
        "index": _index(blobs, {path: len(text.encode()) for path, text in files.items()}),
    }


def _add(found: dict[str, bytes], kind: str, data: bytes) -> bytes:
    """Adds an object; its name in 20 bytes."""
    whole = f"{kind} {len(data)}\0".encode() + data
    name = hashlib.sha1(whole)
    place = name.hexdigest()
    found[f"objects/{place[:2]}/{place[2:]}"] = zlib.compress(whole)
    return name.digest()


def _tree(found: dict[str, bytes], blobs: Mapping[str, bytes]) -> bytes:
    """Adds the tree of paths and blobs; its name."""
    below: dict[str, dict[str, bytes]] = {}
    entries = []
    for path, blob in blobs.items():
        first, _, rest = path.partition("/")
        if rest:
            below.setdefault(first, {})[rest] = blob
        else:
            entries.append((first, "100644", blob))
    entries += [(name, "40000", _tree(found, inner)) for name, inner in below.items()]
    # Git sorts directories as if their names ended in a slash.
    entries.sort(key=lambda entry: (entry[0] + "/" * (entry[1] == "40000")).encode())
    lines = (f"{mode} {name}\0".encode() + object_name for name, mode, object_name in entries)
    return _add(found, "tree", b"".join(lines))


def _index(blobs: Mapping[str, bytes], sizes: Mapping[str, int]) -> bytes:
    """The index; its entries have no times, so git looks at the files themselves."""
    body = struct.pack(">4sII", b"DIRC", 2, len(blobs))
    for path in sorted(blobs, key=str.encode):
        name = path.encode()
        entry = struct.pack(">10I", 0, 0, 0, 0, 0, 0, _MODE, 0, 0, sizes[path]) + blobs[path]
        entry += struct.pack(">H", min(len(name), 0xFFF)) + name
        body += entry + bytes(8 - len(entry) % 8)
    return body + hashlib.sha1(body).digest()
