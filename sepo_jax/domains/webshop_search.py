"""Search by BM25, from the library bm25s (extra `webshop`).

Scores are Lucene's BM25 with its constants k1 = 0.9 and b = 0.4 in Pyserini, which the public
WebShop searches with. Words are of two characters or more without English function words; they are
not stemmed, where Lucene's English analyzer stems.
"""

import logging
import sys
import threading
from collections.abc import Sequence
from types import ModuleType

import numpy as np

_K1, _B = 0.9, 0.4
_IMPORTING = threading.Lock()


class SearchIndex:
    """Texts by their words; read only once it is made.

    Args:
      ids: name of each text.
      texts: one or more.

    Raises:
      ImportError: bm25s is missing; the message names the extra.
      ValueError: no text, or another number of texts than of names.
    """

    def __init__(self, ids: Sequence[str], texts: Sequence[str]):
        if not texts or len(ids) != len(texts):
            raise ValueError(
                f"{len(ids)} ids and {len(texts)} texts; give one or more, and as many of each"
            )
        library = _bm25s()
        self._tokenize = library.tokenize
        self._ids = tuple(ids)
        self._bm25 = library.BM25(k1=_K1, b=_B, method="lucene", backend="numpy")
        self._bm25.index(self._words(list(texts)), show_progress=False)

    def top(self, query: str, count: int) -> tuple[str, ...]:
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

    def _words(self, texts: list[str]) -> list[list[str]]:
        return self._tokenize(texts, stopwords="en", return_ids=False, show_progress=False)


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
            raise ImportError(
                'the web shop searches with bm25s: pip install "sepo_jax[webshop]"'
            ) from error
        finally:
            if before is None:
                del sys.modules[hidden]
            else:
                sys.modules[hidden] = before
        logging.getLogger("bm25s").setLevel(logging.WARNING)
        return bm25s
