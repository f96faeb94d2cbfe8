"""Questions and documents of open-domain question answering, from files of the usual forms.

Questions, a JSON object a line or a JSON list of them:

- HotpotQA and 2WikiMultiHopQA: `question`, `answer` (a text), `type`.
- NQ-open and TriviaQA in its form: `question`, `answer` (a list of texts).
- FlashRAG's form of these and more: `question`, `golden_answers` (a list), `metadata`.
- MuSiQue: `question`, `answer`, `answer_aliases`.

Documents, a JSON object a line: `id`, `_id` or `docid`; `title` where they have one; and `text` or
`contents`. Contents without a title beside them have it as their first line, in quotes, as in the
Wikipedia dumps that BM25 baselines index. A file of HotpotQA serves as a corpus too, of the
paragraphs of all its questions: `context` is [[title, [sentence, ...]], ...] or {"title": [...],
"sentences": [[...], ...]}.
"""

import functools
import os
import threading
from collections.abc import Iterable, Mapping, Sequence
from typing import Any, NamedTuple

from sepo_jax.domains.bm25 import SearchIndex
from sepo_jax.domains.json_lines import read_json_objects, short

_OPENING = threading.Lock()
_IDS = ("id", "_id", "docid")


class Document(NamedTuple):
    """What a search finds.

    Attributes:
      id: its name in the corpus.
      title: "" where it has none.
      text: the rest.
    """

    id: str
    title: str
    text: str

    def shown(self, words: int = 0) -> str:
        """The document in one line: its title, unless the text begins with it, and the text.

        Args:
          words: of the line at most; 0 for all.
        """
        named = self.text.startswith(self.title)
        whole = (self.text if named else f"{self.title}: {self.text}").split()
        cut = words and len(whole) > words
        return " ".join(whole[:words]) + " ..." if cut else " ".join(whole)


class Corpus:
    """Documents and the search over them; nothing of it changes.

    Args:
      documents: one or more, in the order that decides between equal scores.
      index_directory: where the index is kept between processes; "" for nowhere.
    """

    def __init__(self, documents: Iterable[Document], index_directory: str = ""):
        self.documents = tuple(documents)
        self._index_directory = index_directory
        self._indexing = threading.Lock()
        self._built: SearchIndex | None = None

    def search(self, query: str, count: int) -> tuple[Document, ...]:
        """At most `count` documents that share a word with the query, best first."""
        return tuple(self.documents[place] for place in self._index().top(query, count))

    def _index(self) -> SearchIndex:
        with self._indexing:  # of several threads that search first, one builds
            if self._built is None:
                texts = [f"{document.title} {document.text}" for document in self.documents]
                places = range(len(texts))
                self._built = SearchIndex(places, texts, self._index_directory)
            return self._built


def read_corpus(path: str | os.PathLike) -> list[Document]:
    """Documents of a file, all of them in memory; a question with `context` stands for its
    paragraphs, each of which comes once.

    Raises:
      FileNotFoundError: no such file.
      ValueError: a document without text, one name for two documents, or a `context` of another
        form, with the file and the line, or the entry of a list; or no document at all.
    """
    found: dict[str, Document] = {}
    paragraphs: set[tuple[str, str]] = set()

    def read(record: Mapping[str, Any]) -> None:
        if "context" not in record:
            document = _document(record, len(found))
            if document.id in found:
                raise ValueError(f"the id {document.id!r} comes a second time")
            found[document.id] = document
            return
        for paragraph in _paragraphs(record["context"]):
            if paragraph not in paragraphs:
                paragraphs.add(paragraph)
                name = f"paragraph {len(paragraphs)}"
                found[name] = Document(name, *paragraph)

    for _ in read_json_objects(path, "documents", read):
        pass
    if not found:
        raise ValueError(f"{path} holds no document: its questions have no paragraph")
    return list(found.values())


def _document(record: Mapping[str, Any], place: int) -> Document:
    named = [record[name] for name in _IDS if name in record]
    if named and not isinstance(named[0], str | int):
        raise ValueError(f"the id is a text or a number, not {short(named[0])}")
    name = str(named[0]) if named else str(place)
    text = _text_of(record, "text", "contents")
    if "title" in record:
        title = _text_of(record, "title")
    else:
        title, parted, rest = text.partition("\n")
        title, text = (title, rest) if parted else ("", text)
    title, text = title.strip().strip('"'), text.strip()
    if not text and not title:
        raise ValueError("the document is empty")
    return Document(name, title, text)


def read_questions(path: str | os.PathLike) -> list[dict[str, Any]]:
    """Questions of a file as tasks: {"question", "answers", "kind"}.

    The kind is the `type` of HotpotQA and 2WikiMultiHopQA, "question" where a record names none.

    Raises:
      FileNotFoundError: no such file.
      ValueError: a record without a question or an answer, or of another form; the message names
        the file and the line, or the entry of a list.
    """
    return list(read_json_objects(path, "questions", _question))


def _question(record: Mapping[str, Any]) -> dict[str, Any]:
    question = " ".join(_text_of(record, "question").split())
    if not question:
        raise ValueError("'question' is empty")
    metadata = record.get("metadata")
    kinds = [each.get("type") for each in (record, metadata) if isinstance(each, Mapping)]
    named = [kind for kind in kinds if isinstance(kind, str) and kind]
    return {
        "question": question,
        "answers": _answers(record),
        "kind": named[0].replace("/", "_") if named else "question",
    }


def _answers(record: Mapping[str, Any]) -> list[str]:
    for name in ("golden_answers", "answer"):
        if name not in record:
            continue
        value = record[name]
        found = [value] if isinstance(value, str) else value
        aliases = record.get("answer_aliases", [])
        if not isinstance(found, list) or not isinstance(aliases, list):
            raise ValueError(f"{name!r} is a text or a list of texts, not {short(value)}")
        found = [*found, *aliases]
        if not all(isinstance(each, str) for each in found):
            raise ValueError(f"{name!r} and its aliases are texts, not {short(found)}")
        kept = list(dict.fromkeys(each for each in found if each.strip()))
        if not kept:
            raise ValueError(f"{name!r} holds no answer, so no reply could be right")
        return kept
    raise ValueError(
        "the field 'answer' or 'golden_answers' is missing; files of a test split without answers "
        "cannot judge"
    )


def _paragraphs(context: Any) -> list[tuple[str, str]]:
    """(title, text) of each paragraph, in both published forms of the field."""
    try:
        if isinstance(context, Mapping):
            pairs = list(zip(context["title"], context["sentences"], strict=True))
        else:
            pairs = [(title, sentences) for title, sentences in context]
        return [
            (_text(title), "".join(map(_text, sentences)).strip()) for title, sentences in pairs
        ]
    except (TypeError, KeyError, ValueError) as error:
        raise ValueError(
            f"'context' is a list of [title, sentences], or titles and sentences by these names, "
            f"not {short(context)}"
        ) from error


def _text_of(record: Mapping[str, Any], *names: str) -> str:
    """The text that a record has under the first of these names that it has."""
    for name in names:
        if name in record:
            if not isinstance(record[name], str):
                raise ValueError(f"{name!r} is a text, not {short(record[name])}")
            return record[name]
    given = ", ".join(map(repr, record)) or "no field"
    raise ValueError(f"the field {' or '.join(map(repr, names))} is missing; it has {given}")


def _text(value: Any) -> str:
    if not isinstance(value, str):
        raise TypeError(f"a text is expected, not {value!r}")
    return value


@functools.lru_cache(maxsize=4)
def _opened(path: str, index_directory: str) -> Corpus:
    return Corpus(read_corpus(path), index_directory)


def open_corpus(path: str, index_directory: str = "") -> Corpus:
    """The corpus of a file, made once a process; errors as of `read_corpus`."""
    with _OPENING:  # of several threads that ask first, one makes it
        return _opened(str(path), index_directory)


@functools.lru_cache(maxsize=8)
def opened_questions(path: str) -> Sequence[dict[str, Any]]:
    """Questions of a file, read once a process; errors as of `read_questions`."""
    return tuple(read_questions(path))
