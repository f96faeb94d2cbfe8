"""Search by BM25, from the library bm25s (extra `search`).

Scores are Lucene's BM25 with its constants k1 = 0.9 and b = 0.4 in Pyserini, which the public
WebShop and the usual BM25 baselines of open-domain question answering search with. Words are of two
characters or more without English function words; they are not stemmed, where Lucene's English
analyzer stems.
"""

import hashlib
import logging
import shutil
import sys
import tempfile
import threading
from collections.abc import Sequence
from pathlib import Path
from types import ModuleType
from typing import Any

import numpy as np

_K1, _B = 0.9, 0.4
_IMPORTING = threading.Lock()


class SearchIndex:
    """Texts by their words; read only once it is made.

    Args:
      ids: name of each text, all different and of one type that has an order; a range for texts
        that are named by their places.
      texts: one or more.
      directory: where the index is kept between processes, under a name that depends on the texts;
        "" to make it anew in every process. One that cannot be written to is only read.

    Raises:
      ImportError: bm25s is missing; the message names the extra.
      ValueError: no text, none with a word that can be searched for, another number of texts than
        of names, or a kept index that cannot be read.
    """

    def __init__(self, ids: Sequence[Any], texts: Sequence[str], directory: str = ""):
        if not texts or len(ids) != len(texts):
            raise ValueError(
                f"{len(ids)} ids and {len(texts)} texts; give one or more, and as many of each"
            )
        library = _bm25s()
        self._tokenize = library.tokenize
        self._ids = ids if isinstance(ids, range) else tuple(ids)
        self._bm25 = self._kept(library, texts, directory) if directory else None
        if self._bm25 is None:
            self._bm25 = self._made(library, texts)
            if directory:
                _keep(self._bm25, _place(library, texts, directory))

    def top(self, query: str, count: int) -> tuple[Any, ...]:
        """At most `count` names of texts that share a word with the query, best first; equal scores
        in the order of names, so that equal queries have equal answers in every process."""
        (words,) = self._words([query])
        if not words:
            return ()
        scores = self._bm25.get_scores(words)
        found = np.flatnonzero(scores > 0)
        if len(found) > count:
            # All that tie with the last one stay in, for the names to decide.
            least = np.partition(scores[found], -count)[-count]
            found = found[scores[found] >= least]
        ranked = sorted(found.tolist(), key=lambda place: (-scores[place], self._ids[place]))
        return tuple(self._ids[place] for place in ranked[:count])

    def _made(self, library: ModuleType, texts: Sequence[str]) -> Any:
        words = self._words(list(texts))
        if not any(words):
            raise ValueError(
                f"no word in {len(texts)} texts can be searched for: words have two characters or "
                "more, and are none such as 'the'"
            )
        made = library.BM25(k1=_K1, b=_B, method="lucene", backend="numpy")
        made.index(words, show_progress=False)
        return made

    def _kept(self, library: ModuleType, texts: Sequence[str], directory: str) -> Any:
        """The index of these texts that the directory holds, None where it holds none."""
        place = _place(library, texts, directory)
        if not place.is_dir():
            return None
        try:
            return library.BM25.load(place, mmap=True, show_progress=False)
        except Exception as error:  # what the library says of a damaged file is of any type
            raise ValueError(f"the index {place} cannot be read; remove it ({error})") from error

    def _words(self, texts: list[str]) -> list[list[str]]:
        return self._tokenize(texts, stopwords="en", return_ids=False, show_progress=False)


def _place(library: ModuleType, texts: Sequence[str], directory: str) -> Path:
    digest = hashlib.sha256(f"{library.__version__} {_K1} {_B}".encode())
    for text in texts:
        # The length too: other texts may join to the same whole.
        digest.update(f"{len(text)}:{text}".encode("utf-8", "surrogatepass"))
    return Path(directory) / f"bm25_{digest.hexdigest()[:16]}"


def _keep(bm25: Any, place: Path) -> None:
    """Saves an index as a whole or not at all; of several processes at once, one does."""
    try:
        place.parent.mkdir(parents=True, exist_ok=True)
        unfinished = Path(tempfile.mkdtemp(dir=place.parent, prefix="unfinished_"))
    except OSError:
        return
    try:
        bm25.save(unfinished, show_progress=False)
        unfinished.rename(place)
    except OSError:
        shutil.rmtree(unfinished, ignore_errors=True)


def _bm25s() -> ModuleType:
    """The library, imported without jax.

    Where jax is installed, bm25s starts it when it is imported, to select with it. That would claim
    the accelerator for a sandbox, or call jax from inside a callback of its own program; selection
    is done here with numpy, so jax is out of sight for the time of the import. Its logger, which
    tells of every index, is kept to warnings.
    """
    with _IMPORTING:
        hidden = "jax.lax" if "jax" in sys.modules else "jax"
        before = sys.modules.get(hidden)
        sys.modules[hidden] = None  # type: ignore[assignment]
        try:
            import bm25s
        except ImportError as error:
            raise ImportError('search is by bm25s: pip install "sepo_jax[search]"') from error
        finally:
            if before is None:
                del sys.modules[hidden]
            else:
                sys.modules[hidden] = before
        logging.getLogger("bm25s").setLevel(logging.WARNING)
        return bm25s
