"""Questions and corpora from files of the usual forms, and what is said of files that are wrong."""

import json

import pytest

from sepo_jax.domains.search.data import Corpus, Document, open_corpus, read_corpus, read_questions
from sepo_jax.domains.search.world import make_world

HOTPOT = {
    "_id": "5a8b",
    "question": "Were Ada Brook and Cal Dent born in one city?",
    "answer": "yes",
    "type": "comparison",
    "level": "hard",
    "supporting_facts": [["Ada Brook", 0], ["Cal Dent", 0]],
    "context": [
        ["Ada Brook", ["Ada Brook was born in Lund.", " She wrote plays."]],
        ["Cal Dent", ["Cal Dent was born in Lund."]],
    ],
}
# The same as the Hugging Face hub has it.
HUB = HOTPOT | {
    "context": {
        "title": ["Ada Brook", "Cal Dent"],
        "sentences": [each[1] for each in HOTPOT["context"]],
    }
}
OPEN = {"question": "who wrote red river", "answer": ["Ada Brook", "A. Brook", "Ada Brook"]}
FLASH = {
    "id": "train_0",
    "question": "who wrote red river",
    "golden_answers": ["Ada Brook"],
    "metadata": {"type": "bridge"},
}
MUSIQUE = {
    "id": "2hop__1",
    "question": "Where was the author of Red River born?",
    "answer": "Lund",
    "answer_aliases": ["City of Lund"],
    "answerable": True,
}


def lines(tmp_path, *records):
    path = tmp_path / "file.jsonl"
    texts = [each if isinstance(each, str) else json.dumps(each) for each in records]
    path.write_text("\n".join(texts) + "\n", encoding="utf-8")
    return path


@pytest.mark.parametrize(
    ("record", "answers", "kind"),
    [
        (HOTPOT, ["yes"], "comparison"),
        (HUB, ["yes"], "comparison"),
        (OPEN, ["Ada Brook", "A. Brook"], "question"),
        (FLASH, ["Ada Brook"], "bridge"),
        (MUSIQUE, ["Lund", "City of Lund"], "question"),
    ],
)
def test_questions_of_every_form(tmp_path, record, answers, kind):
    expected = {"question": record["question"], "answers": answers, "kind": kind}
    assert read_questions(lines(tmp_path, record, "", record)) == [expected] * 2
    listed = tmp_path / "file.json"
    listed.write_text(json.dumps([record, record], indent=1))
    assert read_questions(listed) == [expected] * 2


@pytest.mark.parametrize(
    ("record", "message"),
    [
        ({"answer": "yes"}, "'question' is missing; it has 'answer'"),
        ({"question": "why"}, "'answer' or 'golden_answers' is missing"),
        ({"question": "why", "answer": []}, "'answer' holds no answer"),
        ({"question": "why", "golden_answers": [" "]}, "'golden_answers' holds no answer"),
        ({"question": "why", "answer": [3]}, r"are texts, not \[3\]"),
        ({"question": "why", "answer": {"text": "x"}}, "a text or a list of texts"),
        ({"question": "  ", "answer": "x"}, "'question' is empty"),
        ({"question": 3, "answer": "x"}, "'question' is a text, not 3"),
        ("3", "expected a JSON object, not 3"),
        ("{broken", "not JSON: .* column 2"),
    ],
)
def test_a_question_that_cannot_be_read_is_named_by_its_line(tmp_path, record, message):
    path = lines(tmp_path, OPEN, "", record)
    with pytest.raises(ValueError, match=rf"file\.jsonl, line 3: .*{message}"):
        read_questions(path)


def test_an_entry_of_a_list_is_named_by_its_number(tmp_path):
    path = tmp_path / "file.json"
    path.write_text(json.dumps([OPEN, {"question": "why"}]))
    with pytest.raises(ValueError, match=r"file\.json, entry 2: .*'golden_answers' is missing"):
        read_questions(path)
    path.write_text("[{}")
    with pytest.raises(ValueError, match=r"file\.json: not JSON"):
        read_questions(path)


@pytest.mark.parametrize("content", [b"", b"\n\n", b"[]"])
def test_files_without_anything(tmp_path, content):
    path = tmp_path / "file"
    path.write_bytes(content)
    with pytest.raises(ValueError, match="is empty; it needs questions"):
        read_questions(path)
    with pytest.raises(FileNotFoundError, match="absent of documents, one"):
        read_corpus(tmp_path / "absent")


def test_bytes_that_are_no_text_are_named(tmp_path):
    path = tmp_path / "file"
    path.write_bytes(json.dumps(OPEN).encode() + b'\n{"question": "\xff"}\n')
    with pytest.raises(ValueError, match="line 2: not UTF-8 at byte 15"):
        read_questions(path)


@pytest.mark.parametrize(
    ("record", "expected"),
    [
        ({"id": 7, "title": "Lund", "text": "A city."}, ("7", "Lund", "A city.")),
        ({"_id": "d1", "title": "", "text": "A city."}, ("d1", "", "A city.")),
        ({"id": "0", "contents": '"Lund"\nLund is a city.'}, ("0", "Lund", "Lund is a city.")),
        ({"docid": "x", "contents": "One line."}, ("x", "", "One line.")),
        ({"title": "Lund", "contents": "A\ncity."}, ("0", "Lund", "A\ncity.")),
    ],
)
def test_documents_of_every_form(tmp_path, record, expected):
    assert read_corpus(lines(tmp_path, record)) == [Document(*expected)]


@pytest.mark.parametrize("record", [HOTPOT, HUB])
def test_paragraphs_of_questions_are_documents_once(tmp_path, record):
    found = read_corpus(lines(tmp_path, record, record))
    assert [each[1:] for each in found] == [
        ("Ada Brook", "Ada Brook was born in Lund. She wrote plays."),
        ("Cal Dent", "Cal Dent was born in Lund."),
    ]
    assert len({each.id for each in found}) == 2


@pytest.mark.parametrize(
    ("record", "message"),
    [
        ({"id": "1", "text": "again"}, "'1' comes a second time"),
        ({"id": "2"}, "'text' or 'contents' is missing; it has 'id'"),
        ({"id": "2", "text": " "}, "the document is empty"),
        ({"id": ["2"], "text": "x"}, "the id is a text or a number"),
        ({"id": "2", "text": "x", "title": None}, "'title' is a text, not null"),
        ({"context": [["Lund", "A city."]], "x": 1}, None),
        ({"context": [["Lund"]]}, "'context' is a list of"),
        ({"context": {"title": ["a"], "sentences": []}}, "'context' is a list of"),
        ({"context": [["Lund", [3]]]}, "'context' is a list of"),
    ],
)
def test_documents_that_cannot_be_read(tmp_path, record, message):
    path = lines(tmp_path, {"id": "1", "text": "first"}, record)
    if message is None:
        # A text in place of a list of sentences is a sequence of texts as well.
        assert read_corpus(path)[1].text == "A city."
        return
    with pytest.raises(ValueError, match=rf"line 2: .*{message}"):
        read_corpus(path)


def test_a_bundled_corpus_survives_its_file_and_is_searched_alike(tmp_path):
    world = make_world(0, 60)
    path = lines(tmp_path, *(each._asdict() for each in world.documents))
    corpus = open_corpus(str(path))
    assert corpus.documents == world.documents
    assert open_corpus(str(path)) is corpus
    for query in ("Ada Abbot born", "founder", "Lund", "news of a song"):
        assert corpus.search(query, 5) == world.corpus.search(query, 5)


def test_a_search_finds_titles_and_texts_in_the_order_of_the_corpus_where_they_tie():
    told = [Document(str(place), "Lund", "a city") for place in (2, 0, 1)]
    corpus = Corpus([*told, Document("9", "Oslo", "a town")])
    assert [each.id for each in corpus.search("lund", 2)] == ["2", "0"]
    assert corpus.search("town", 5) == (corpus.documents[3],)
    assert corpus.search("nowhere", 5) == corpus.search("", 5) == ()


def test_how_a_document_is_shown():
    assert Document("1", "Lund", "Lund is a\n city.").shown() == "Lund is a city."
    assert Document("1", "News", "Lund is a city.").shown() == "News: Lund is a city."
    assert Document("1", "", "Lund is a city.").shown(2) == "Lund is ..."
    assert Document("1", "", "Lund is a city.").shown(4) == "Lund is a city."


def test_line_ends_of_windows_and_emoji_are_fine(tmp_path):
    path = tmp_path / "file"
    record = {"id": "1", "title": "Lund \U0001f600", "text": "A\r\ncity."}
    path.write_bytes(json.dumps(record).encode() + b"\r\n\r\n")
    assert read_corpus(path) == [Document("1", "Lund \U0001f600", "A\r\ncity.")]
    assert Corpus(read_corpus(path)).search("lund", 1) == (Document(*record.values()),)


@pytest.mark.parametrize("read", [read_corpus, read_questions])
def test_files_with_marks_or_half_characters_are_refused(tmp_path, read):
    path = tmp_path / "file"
    record = {"id": "1", "text": "x", "question": "x", "answer": "y"}
    for content, message in (
        ("\ufeff" + json.dumps(record), "byte order mark"),
        ("\ufeff" + json.dumps([record]), "byte order mark"),
        (json.dumps(record | {"text": "\udc00", "question": "\udc00"}), "half a surrogate pair"),
        (json.dumps([record | {"text": "\udc00"}]), "half a surrogate pair"),
        ("[" * 100_000, "nested too deeply|not JSON"),
    ):
        path.write_text(content, encoding="utf-8")
        with pytest.raises(ValueError, match=message):
            read(path)


def test_corpora_in_which_nothing_can_be_found_are_refused(tmp_path):
    with pytest.raises(ValueError, match="no word in 2 texts can be searched for"):
        Corpus(read_corpus(lines(tmp_path, {"text": "the"}, {"text": "a ?"}))).search("the", 1)
    with pytest.raises(ValueError, match="holds no document"):
        read_corpus(lines(tmp_path, {"question": "x", "context": []}))


def test_a_kept_index_that_was_damaged_is_named(tmp_path):
    documents = [Document("1", "Lund", "a city"), Document("2", "Oslo", "a town")]
    Corpus(documents, str(tmp_path)).search("lund", 1)
    (kept,) = tmp_path.iterdir()
    for file in sorted(kept.iterdir()):
        content = file.read_bytes()
        for damaged in (content[: len(content) // 2], b"", b"null"):
            file.write_bytes(damaged)
            with pytest.raises(ValueError, match=f"index .*{kept.name} cannot be read; remove it"):
                Corpus(documents, str(tmp_path)).search("lund", 1)
        file.write_bytes(content)
    assert Corpus(documents, str(tmp_path)).search("lund", 1) == (documents[0],)
