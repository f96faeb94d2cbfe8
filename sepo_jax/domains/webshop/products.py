"""What a web shop holds: products, goals of its customers, and the search over the products."""

import threading
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass

from sepo_jax.domains.bm25 import SearchIndex
from sepo_jax.names import check_option

SPLITS = ("train", "eval", "test")
MOST_RESULTS = 50  # that a search finds


@dataclass(frozen=True, slots=True)
class Product:
    """A product.

    Attributes:
      id: code, unique whatever its case.
      title: as pages show it.
      query: what people search who look for its kind.
      category: path of categories, parted by "›".
      nouns: words of the title that say what it is, lower case; they count in the reward.
      attributes: phrases that are true of it.
      features: bullet points. description: text.
      options: option -> its values, lower case; a buyer chooses a value of each.
      price: in dollars. price_text: as pages show it.
    """

    id: str
    title: str
    query: str
    category: str
    nouns: tuple[str, ...]
    attributes: tuple[str, ...]
    features: tuple[str, ...]
    description: str
    options: Mapping[str, tuple[str, ...]]
    price: float
    price_text: str

    def text(self) -> str:
        """What search looks at: title, description, first feature and options, lower case."""
        options = ", and ".join(f"{name}: {', '.join(v)}" for name, v in self.options.items())
        return " ".join([self.title, self.description, *self.features[:1], options]).lower()


@dataclass(frozen=True, slots=True)
class Goal:
    """What a customer wants.

    Attributes:
      product: id of a product that is just right.
      instruction: says it in words.
      attributes: phrases that should be true of what is bought; at least one.
      options: values that should be chosen.
      price_upper: highest price, above 0.
    """

    product: str
    instruction: str
    attributes: tuple[str, ...]
    options: tuple[str, ...]
    price_upper: float


class Shop:
    """Products and goals; nothing of it changes.

    Args:
      products: each id once.
      goals: split -> goals; each of a product that is there.

    Attributes:
      products: lower-case id -> product.
      goals: split -> goals, for each of `SPLITS`.
    """

    def __init__(self, products: Iterable[Product], goals: Mapping[str, Sequence[Goal]]):
        self.products = {product.id.lower(): product for product in products}
        self.goals = {split: tuple(goals.get(split, ())) for split in SPLITS}
        self._ids = tuple(self.products)
        self._places = {name: place for place, name in enumerate(self._ids)}
        self._indexing = threading.Lock()
        self._built: SearchIndex | None = None

    def goal(self, split: str, number: int) -> Goal:
        """A goal; ValueError for an unknown split or a number that it does not have."""
        goals = self.goals_of(split)
        if not isinstance(number, int) or not 0 <= number < len(goals):
            raise ValueError(
                f"goal {number!r} of split {split!r}: it is a number from 0 to {len(goals) - 1}"
            )
        return goals[number]

    def goals_of(self, split: str) -> tuple[Goal, ...]:
        """Goals of a split; ValueError for an unknown or an empty one."""
        goals = self.goals[check_option("split of goals", split, SPLITS)]
        if not goals:
            counts = ", ".join(f"{name} {len(these)}" for name, these in self.goals.items())
            raise ValueError(
                f"the shop has no goals in split {split!r} ({counts}); take more products"
            )
        return goals

    def shifted(self, name: str, shift: int) -> str:
        """The lower-case id that stands `shift` places after another in the shop's order, which
        goes on from its beginning."""
        return self._ids[(self._places[name] + shift) % len(self._ids)] if shift else name

    def search(self, query: str) -> tuple[str, ...]:
        """Lower-case ids of at most `MOST_RESULTS` products, best first."""
        return self._index().top(query.lower(), MOST_RESULTS)

    def _index(self) -> SearchIndex:
        with self._indexing:  # of several threads that search first, one builds
            if self._built is None:
                texts = [product.text() for product in self.products.values()]
                self._built = SearchIndex(list(self.products), texts)
            return self._built
