"""A generated world of facts, the documents that tell them, and questions of one hop and more.

People, works, companies, cities and countries have facts, each a relation to one other thing, so a
walk along relations ends at one place and a question that names the walk has one answer. The
document of a thing tells its own facts and no others: a walk of h relations needs h documents.
Other documents name the same things and tell none of the facts.

The world falls into two parts that no fact connects, the second half as large as the first.
Everything is a function of a number and of how many people there are.
"""

import functools
import itertools
import random
from collections.abc import Iterator, Mapping, Sequence
from types import MappingProxyType
from typing import Any, NamedTuple

from sepo_jax.domains.base import check_integer, stream
from sepo_jax.domains.search.data import Corpus, Document

PARTS = (0, 1)
COMPARED = "born"
# Kind of thing -> relation -> kind of what it leads to.
RELATIONS: Mapping[str, Mapping[str, str]] = {
    "work": {"author": "person"},
    "person": {"birthplace": "city", "employer": "company", COMPARED: "year"},
    "company": {"founder": "person", "seat": "city"},
    "city": {"country": "country"},
    "country": {},
}
HOPS = {"1_hop": 1, "2_hops": 2, "3_hops": 3}
COMPARISONS = {f"compare_{count}": count for count in (2, 3, 4, 5)}
KINDS = (*HOPS, *COMPARISONS)
LEAST_PEOPLE, MOST_PEOPLE = 30, 384
_FIRST = (
    *("Ada", "Ben", "Cal", "Dora", "Emil", "Fay", "Gus", "Hana", "Ivo", "June"),
    *("Karl", "Lea", "Max", "Nell", "Otto", "Pia", "Rolf", "Sara", "Tom", "Vera"),
)
_LAST = (
    *("Abbot", "Brook", "Carver", "Dahl", "Ember", "Frost", "Grant", "Hale", "Irving", "Jansen"),
    *("Keller", "Lowe", "Marsh", "Nolan", "Odell", "Price", "Quinn", "Reed", "Stone", "Vance"),
)
_WORK_FIRST = (
    *("Red", "Blue", "Green", "Gold", "White", "Black", "Silver", "Silent"),
    *("Hidden", "Broken", "Distant", "Early", "Final", "Frozen", "Lost", "Open"),
)
_WORK_LAST = (
    *("River", "Garden", "Harbor", "Window", "Mirror", "Island", "Winter", "Summer"),
    *("Bridge", "Letter", "Valley", "Forest", "Lantern", "Mountain", "Shadow", "Voyage"),
)
_COMPANY_FIRST = (
    *("Korvo", "Lumen", "Nadir", "Orion", "Pavo", "Quanta", "Rigel", "Sirius"),
    *("Talos", "Umbra", "Vega", "Zenith", "Argo", "Boreal", "Cetus", "Draco"),
)
_COMPANY_LAST = ("Mills", "Works", "Lines", "Labs", "Motors", "Foods")
_CITY_FIRST = (
    *("Ash", "Birk", "Clay", "Dorn", "Elm", "Fern", "Glen", "Holm"),
    *("Kirk", "Lind", "Moor", "North", "Oak", "Pine", "Rock", "Thorn"),
)
_CITY_LAST = ("ford", "ton", "bury", "wick", "mouth", "dale")
_COUNTRY_FIRST = (
    "Alt",
    "Bor",
    "Cor",
    "Del",
    "Est",
    "Fal",
    "Gor",
    "Hel",
    "Jor",
    "Kal",
    "Lor",
    "Mer",
)
_COUNTRY_LAST = ("ania", "mark", "stan", "via")
_FORMS = ("novel", "play", "song", "film")
_GOODS = ("glass", "paper", "boats", "tea")
_YEARS = tuple(str(year) for year in range(1900, 1980, 4))
_COMPARED_WALKS = ((COMPARED,), ("author", COMPARED), ("founder", COMPARED))
_SHARES = (2, 1)  # of the parts
_TRIES = 10_000


class Question(NamedTuple):
    """A question as what has to be walked.

    Attributes:
      kind: of `KINDS`.
      chains: for each thing that it names: the thing, then relations; of a comparison they lead to
        years of birth.
    """

    kind: str
    chains: tuple[tuple[str, ...], ...]


class World:
    """Facts and documents; nothing of it changes.

    Args:
      seed: number of the world.
      people: how many there are, with half as many works and fewer of the rest.

    Attributes:
      kinds: thing -> its kind. parts: thing -> its part of the world.
      facts: thing -> relation -> thing, or year.
      documents: in an order that tells nothing. corpus: searches them.

    Raises:
      ValueError: too few people for two parts with all kinds of things, or more than have names.
    """

    def __init__(self, seed: int = 0, people: int = 120):
        seed, people = check_world(seed, people)
        rng = stream(seed, "search world", people)
        counts = {
            "person": people,
            "work": people // 2,
            "company": people // 5,
            "city": people // 4,
            "country": min(people // 10, 40),
        }
        named = {kind: _names(kind, count, rng) for kind, count in counts.items()}
        self.kinds = {name: kind for kind, names in named.items() for name in names}
        self.parts: dict[str, int] = {}
        self.facts: dict[str, Mapping[str, str]] = {}
        for names in named.values():
            first = len(names) - len(names) // sum(_SHARES)
            self.parts |= {name: int(place >= first) for place, name in enumerate(names)}
        for name, kind in self.kinds.items():
            self.facts[name] = MappingProxyType(
                {
                    relation: self._object(named, self.parts[name], to, rng)
                    for relation, to in RELATIONS[kind].items()
                }
            )
        texts = [*self._tellings(rng), *self._distractions(rng)]
        rng.shuffle(texts)
        self.documents = tuple(
            Document(str(place), *text) for place, text in enumerate(texts, start=1)
        )
        self.corpus = Corpus(self.documents)

    def _object(
        self, named: Mapping[str, Sequence[str]], part: int, kind: str, rng: random.Random
    ) -> str:
        if kind == "year":
            return rng.choice(_YEARS)
        return rng.choice([name for name in named[kind] if self.parts[name] == part])

    def _tellings(self, rng: random.Random) -> Iterator[tuple[str, str]]:
        """(title, text) of the documents that tell facts."""
        for name, kind in self.kinds.items():
            if not self.facts[name]:
                continue
            opening = {
                "person": "",
                "work": f" is a {rng.choice(_FORMS)}.",
                "company": f" makes {rng.choice(_GOODS)}.",
                "city": f" is a {rng.choice(('large', 'small'))} city.",
            }[kind]
            # The year of birth is a person's opening.
            relations = sorted(self.facts[name], key=lambda each: each != COMPARED)
            told = [self.statement(name, relation) for relation in relations]
            yield name, f"{name}{opening} {' '.join(told)}"

    def statement(self, name: str, relation: str) -> str:
        """How the document of a thing, which begins with its name, tells a fact."""
        value = self.facts[name][relation]
        born = relation == COMPARED
        return f"was born in {value}." if born else f"{relation.capitalize()}: {value}."

    def _distractions(self, rng: random.Random) -> Iterator[tuple[str, str]]:
        """(title, text) of documents that name the same things: half of them, once each."""
        people = [name for name, kind in self.kinds.items() if kind == "person"]
        cities = [name for name, kind in self.kinds.items() if kind == "city"]
        for name, kind in self.kinds.items():
            happened = {
                "person": f"met {rng.choice(people)}",
                "work": "was shown",
                "company": "opened a shop",
            }.get(kind)
            if happened and rng.random() < 0.5:
                city = rng.choice(cities)
                yield f"{city} news", f"{name} {happened} in {city}."

    def part(self, question: Question) -> int:
        """The part of the world that a question is about."""
        return self.parts[question.chains[0][0]]

    def walk(self, chain: Sequence[str]) -> tuple[str, ...]:
        """What a walk passes, from its first thing to its end.

        Raises:
          ValueError: a thing or relation that is not there.
        """
        passed = [chain[0]]
        for relation in chain[1:]:
            if relation not in self.facts.get(passed[-1], {}):
                raise ValueError(f"this world knows no {relation} of {passed[-1]!r}")
            passed.append(self.facts[passed[-1]][relation])
        return tuple(passed)

    def answer(self, question: Question) -> str:
        """Where the walk ends; of a comparison, who of those at the end was born first."""
        walks = [self.walk(chain) for chain in question.chains]
        if question.kind in HOPS:
            return walks[0][-1]
        return min(walks, key=lambda walk: walk[-1])[-2]

    def task(self, question: Question) -> dict[str, Any]:
        """The question as a task of the search team."""
        return {
            "question": question_text(question),
            "answers": [self.answer(question)],
            "kind": question.kind,
            "chains": [list(chain) for chain in question.chains],
        }

    @functools.cached_property
    def lookups(self) -> Mapping[str, tuple[Question, ...]]:
        """Kind of `HOPS` -> all questions of it. No walk passes a thing twice: its question would
        name its own answer, or need fewer documents."""
        found: dict[str, list[Question]] = {kind: [] for kind in HOPS}
        for start in self.kinds:
            walks = [(start,)]
            for kind in HOPS:
                walks = [(*walk, relation) for walk in walks for relation in self._onward(walk)]
                found[kind] += [Question(kind, (walk,)) for walk in walks]
        return {kind: tuple(questions) for kind, questions in found.items()}

    @functools.cached_property
    def _starts(self) -> Mapping[tuple[str, int], list[str]]:
        """(relation, part) -> things there that have the relation."""
        found: dict[tuple[str, int], list[str]] = {}
        for name, facts in self.facts.items():
            for relation in facts:
                found.setdefault((relation, self.parts[name]), []).append(name)
        return found

    def _onward(self, chain: tuple[str, ...]) -> list[str]:
        passed = self.walk(chain)
        facts = self.facts[passed[-1]]
        return [each for each, to in facts.items() if each != COMPARED and to not in passed]

    def comparison(
        self, rng: random.Random, count: int, parts: Sequence[int] = PARTS
    ) -> Question | None:
        """A drawn comparison of so many people of one part who differ in their years of birth; None
        where the draw holds none, which is rare."""
        part = rng.choices(PARTS, [_SHARES[each] * (each in parts) for each in PARTS])[0]
        chains = []
        for _ in range(count):
            relations = rng.choice(_COMPARED_WALKS)
            chains.append((rng.choice(self._starts[relations[0], part]), *relations))
        passed = [self.walk(chain) for chain in chains]
        years = {walk[-1] for walk in passed}
        # Nobody is meant twice, nor meant by one thing and named by another.
        apart = len(set(itertools.chain(*(walk[:-1] for walk in passed)))) == sum(
            len(walk) - 1 for walk in passed
        )
        if len(years) < count or not apart:
            return None
        return Question(f"compare_{count}", tuple(chains))

    def comparisons(
        self, rng: random.Random, kind: str, parts: Sequence[int] = PARTS
    ) -> Iterator[Question]:
        """Comparisons of a kind drawn one after the other, without end.

        Raises:
          ValueError: none is found.
        """
        while True:
            for _ in range(_TRIES):
                found = self.comparison(rng, COMPARISONS[kind], parts)
                if found is not None:
                    yield found
                    break
            else:
                raise ValueError(f"no question of kind {kind!r} is in this world; take more people")


def check_world(seed: int, people: int) -> tuple[int, int]:
    """Both, where a world can be made of them; ValueError for numbers out of range."""
    people = check_integer("people", people, minimum=LEAST_PEOPLE)
    if people > MOST_PEOPLE:
        raise ValueError(f"people={people}, but names are enough for {MOST_PEOPLE}")
    return check_integer("world", seed, minimum=0), people


def question_text(question: Question) -> str:
    """The question in words."""
    if question.kind in HOPS:
        (chain,) = question.chains
        return f"Name {_phrase(chain)}."
    *most, last = (_phrase(chain[:-1]) for chain in question.chains)
    return f"Who was born first: {', '.join(most)} or {last}?"


def _phrase(chain: Sequence[str]) -> str:
    """ "the country of the birthplace of Ada Brook"."""
    return " of ".join([*(f"the {relation}" for relation in reversed(chain[1:])), chain[0]])


def _names(kind: str, count: int, rng: random.Random) -> list[str]:
    """Different names, of as few words as give a fifth more names than are needed."""
    first, last, joint = {
        "person": (_FIRST, _LAST, " "),
        "work": (_WORK_FIRST, _WORK_LAST, " "),
        "company": (_COMPANY_FIRST, _COMPANY_LAST, " "),
        "city": (_CITY_FIRST, _CITY_LAST, ""),
        "country": (_COUNTRY_FIRST, _COUNTRY_LAST, ""),
    }[kind]
    words = 1
    while len(first[:words]) * len(last[:words]) < min(1.2 * count, len(first) * len(last)):
        words += 1
    pairs = itertools.product(first[:words], last[:words])
    return rng.sample([joint.join(pair) for pair in pairs], count)


@functools.lru_cache(maxsize=4)
def make_world(seed: int = 0, people: int = 120) -> World:
    """The world of a number, made once a process; arguments and errors as of `World`."""
    return World(seed, people)
