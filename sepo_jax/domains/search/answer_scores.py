"""Exact match and F1 of short answers, as the evaluation script of SQuAD has them."""

import re
import string
from collections import Counter
from collections.abc import Sequence

_PUNCTUATION = str.maketrans("", "", string.punctuation)
_ARTICLES = re.compile(r"\b(a|an|the)\b")


def normalised(text: str) -> str:
    """An answer in lower case without ASCII punctuation, articles and surplus white space."""
    bare = text.lower().translate(_PUNCTUATION)
    return " ".join(_ARTICLES.sub(" ", bare).split())


def exact_match(answer: str, golden: Sequence[str]) -> float:
    """1 where the normalised answer is one of the normalised golden answers, else 0.

    Raises:
      ValueError: no golden answer.
    """
    _check(golden)
    return float(normalised(answer) in {normalised(each) for each in golden})


def f1_score(answer: str, golden: Sequence[str]) -> float:
    """The best F1 of an answer's words against a golden answer.

    With n words in common, counted as often as both have them, F1 = 2 p r / (p + r) where p = n /
    words of the answer and r = n / words of the golden answer: 2 n / (words of both). Where either
    has no words, F1 is whether neither has any, as in SQuAD 2.0.

    Raises:
      ValueError: no golden answer.
    """
    _check(golden)
    return max(_f1(normalised(answer).split(), normalised(each).split()) for each in golden)


def _f1(answer: Sequence[str], golden: Sequence[str]) -> float:
    if not answer or not golden:
        return float(answer == golden)
    common = sum((Counter(answer) & Counter(golden)).values())
    return 2 * common / (len(answer) + len(golden))


def _check(golden: Sequence[str]) -> None:
    # A text is a sequence of its letters, each of which would be taken for an answer.
    if isinstance(golden, str) or not golden:
        raise ValueError(f"golden answers are a list of one or more texts, not {golden!r}")
