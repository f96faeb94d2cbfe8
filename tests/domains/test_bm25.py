"""Search: best first, ties by name, the same in every process, without jax."""

import math
import sys

import pytest
from sandbox.elsewhere import result, start

from sepo_jax.domains.bm25 import SearchIndex
from sepo_jax.domains.webshop import WebShop

TEXTS = {"c": "red wool hat", "a": "red wool hat", "b": "blue wool hat hat", "d": "green chair"}


@pytest.fixture(scope="module")
def index():
    return SearchIndex(list(TEXTS), list(TEXTS.values()))


def bm25(words, text, texts):
    """Lucene's BM25 by hand, k1 = 0.9, b = 0.4, without its factor k1 + 1."""
    documents = [each.split() for each in texts]
    mean_length = sum(map(len, documents)) / len(documents)
    total = 0.0
    for word in words:
        holders = sum(word in document for document in documents)
        rarity = math.log(1 + (len(documents) - holders + 0.5) / (holders + 0.5))
        count, length = text.split().count(word), len(text.split())
        total += rarity * count / (count + 0.9 * (1 - 0.4 + 0.4 * length / mean_length))
    return total


@pytest.mark.parametrize("query", ["red hat", "hat", "wool blue", "chair hat"])
def test_results_are_in_the_order_of_the_formula(index, query):
    scores = {name: bm25(query.split(), text, list(TEXTS.values())) for name, text in TEXTS.items()}
    expected = sorted((n for n in scores if scores[n] > 0), key=lambda n: (-scores[n], n))
    assert list(index.top(query, 10)) == expected


def test_equal_scores_are_in_the_order_of_names_at_any_length(index):
    assert index.top("red", 1) == ("a",)
    assert index.top("red", 2) == index.top("red", 10) == ("a", "c")
    whole = index.top("wool hat", 10)
    assert all(index.top("wool hat", count) == whole[:count] for count in range(1, 4))


def test_texts_named_by_their_places_tie_in_their_order():
    index = SearchIndex(range(12), ["red hat"] * 12)
    assert index.top("hat", 11) == tuple(range(11))


def test_a_kept_index_answers_as_a_new_one_and_other_texts_have_another(index, tmp_path):
    ids, texts = list(TEXTS), list(TEXTS.values())
    SearchIndex(ids, texts, str(tmp_path))
    (kept,) = tmp_path.iterdir()
    # What is read back is what lies there: without it the index would be made again.
    before = sorted(file.stat().st_mtime_ns for file in kept.iterdir())
    again = SearchIndex(ids, texts, str(tmp_path))
    for query in ("red hat", "wool blue", "chair", "unheard"):
        assert again.top(query, 3) == index.top(query, 3)
    assert sorted(file.stat().st_mtime_ns for file in kept.iterdir()) == before
    SearchIndex(ids, [*texts[:-1], "blue chair"], str(tmp_path))
    assert len(list(tmp_path.iterdir())) == 2


def test_an_index_that_cannot_be_kept_is_made_all_the_same(tmp_path):
    (tmp_path / "file").write_text("")
    made = SearchIndex(["a"], ["red hat"], str(tmp_path / "file"))
    assert made.top("hat", 1) == ("a",)


@pytest.mark.parametrize("query", ["", "  ", "unheard", "the of", "?", "\ud800 [SEP] \x00"])
def test_queries_that_find_nothing(index, query):
    assert index.top(query, 10) == ()


@pytest.mark.parametrize(("ids", "texts"), [([], []), (["a"], ["x y", "z"])])
def test_texts_that_make_no_index(ids, texts):
    with pytest.raises(ValueError, match="one or more, and as many"):
        SearchIndex(ids, texts)


def test_making_an_index_logs_nothing(caplog):
    with caplog.at_level("DEBUG"):
        SearchIndex(["a"], ["red hat"])
    assert not caplog.records


def test_without_the_library_the_extra_is_named(monkeypatch):
    monkeypatch.setitem(sys.modules, "bm25s", None)
    with pytest.raises(ImportError, match=r'bm25s: pip install "sepo_jax\[search\]"'):
        SearchIndex(["a"], ["red hat"])
    assert sys.modules["jax.lax"] is not None


def searched(queries: list[str]) -> tuple[list[tuple[str, ...]], bool]:
    """What a fresh process finds, and whether it holds jax by then."""
    shop = WebShop(products=100).shop
    return [shop.search(query) for query in queries], "jax" in sys.modules


def test_another_process_finds_the_same_and_starts_no_jax():
    queries = ["soft mug", "red", "small blue folding chair", "kitchen", "light"]
    here, jax_is_here = searched(queries)
    assert jax_is_here and [len(found) for found in here[:2]] != [0, 0]
    processes = [start(searched, queries, hash_seed=seed) for seed in (1, 4242)]
    assert [result(process) for process in processes] == [(here, False)] * 2
