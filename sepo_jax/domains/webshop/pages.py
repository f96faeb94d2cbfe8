"""Pages of a web shop as text, what can be clicked on them, and where a click or search leads.

A page is a value; nothing here has state. Texts join their fields by " [SEP] ", as the text mode
of WebShop does.
"""

import re
from collections.abc import Mapping, Sequence
from typing import NamedTuple

from sepo_jax.domains.webshop.products import Product, Shop

SEPARATOR = " [SEP] "
START, RESULTS, PRODUCT = "start", "results", "product"
SUB_PAGES = ("description", "features")
BACK, PREVIOUS, NEXT, BUY = "back to search", "< prev", "next >", "buy now"
_SHOWN = {
    BACK: "Back to Search",
    PREVIOUS: "< Prev",
    NEXT: "Next >",
    BUY: "Buy Now",
    "description": "Description",
    "features": "Features",
}
# What may stand around the action on its line.
_MARKUP = " \t*_`\"'>~-"
_TAG = re.compile(r"</?(?:action|answer|code|b|strong)>", re.IGNORECASE)
_LABEL = re.compile(r"[a-z]+(?: [a-z]+){0,2}:", re.IGNORECASE)
_LINE = re.compile(r"(search|click) ?\[(.*)\]", re.IGNORECASE)
_ACTION = re.compile(r"\b(?:search|click)\s?\[", re.IGNORECASE)
_PRICE = re.compile(r",?\s*(?:and )?price (?:lower than|below)\b.*", re.IGNORECASE | re.DOTALL)
_NOT_SEARCHED = frozenset(
    [
        *("a", "am", "an", "and", "any", "are", "as", "at", "be", "but", "buy", "can", "color"),
        *("colour", "do", "find", "for", "from", "get", "give", "good", "have", "i", "i'd"),
        *("i'm", "im", "in", "is", "it", "like", "look", "looking", "made", "me", "my", "need"),
        *("of", "on", "one", "or", "please", "product", "should", "size", "some", "something"),
        *("that", "the", "them", "these", "this", "to", "want", "which", "with", "would", "you"),
    ]
)


class Action(NamedTuple):
    """What a reply does: `kind` is "search" or "click", `argument` lower-case words."""

    kind: str
    argument: str


class Page(NamedTuple):
    """What the customer looks at.

    Attributes:
      kind: `START`, `RESULTS`, `PRODUCT` or one of `SUB_PAGES`.
      keywords: that were searched. results: lower-case ids that they found, best first.
      number: of the page of results, from 1.
      product: id of the product that is shown, "" for none.
      chosen: (option, value) pairs, in the order in which they were first chosen.
    """

    kind: str = START
    keywords: str = ""
    results: tuple[str, ...] = ()
    number: int = 1
    product: str = ""
    chosen: tuple[tuple[str, str], ...] = ()


class Layout(NamedTuple):
    """How pages look.

    Attributes:
      results: on a page.
      title_words: of a title at most, 0 for all.
      shift: a product is shown under the id of the one so many places on (`Shop.shifted`).
      brackets: whether what can be clicked is shown in brackets, as it is clicked.
    """

    results: int
    title_words: int = 0
    shift: int = 0
    brackets: bool = False

    def clickable(self, text: str) -> str:
        """What can be clicked, as pages show it."""
        return f"[{text}]" if self.brackets else text

    def on_page(self, page: Page) -> tuple[str, ...]:
        """The results that a page of them shows."""
        return page.results[(page.number - 1) * self.results :][: self.results]

    def title(self, product: Product) -> str:
        """A title as pages show it."""
        words = product.title.split()
        return " ".join(words[: self.title_words or None])


def parse_action(text: str) -> Action | None:
    """The action on the last line that is one, or None.

    Lines may label an action ("Action: click[buy now]") and mark it up; other lines are reasoning
    and say nothing. A line with two actions, or without words inside the brackets, gives None.
    """
    for line in reversed(text.splitlines()):
        found = _LINE.fullmatch(_bare(line))
        if found is None:
            continue
        argument = " ".join(found[2].lower().split())
        if not argument or _ACTION.search(argument):
            return None
        return Action(found[1].lower(), argument)
    return None


def _bare(line: str) -> str:
    """A line without label, tags, markup and the full stop at its end."""
    line = _TAG.sub("", line).strip(_MARKUP)
    label = _LABEL.match(line)
    return line[label.end() if label else 0 :].strip(_MARKUP).rstrip(".;!" + _MARKUP)


def clickables(shop: Shop, page: Page, layout: Layout) -> list[str]:
    """What can be clicked, lower case, in the order of the page."""
    if page.kind == START:
        return []
    found = [BACK]
    if page.kind != RESULTS or page.number > 1:
        found.append(PREVIOUS)
    if page.kind == RESULTS:
        more = page.number * layout.results < len(page.results)
        shown = (shop.shifted(name, layout.shift) for name in layout.on_page(page))
        return [*found, *([NEXT] if more else []), *shown]
    if page.kind == PRODUCT:
        options = shop.products[page.product].options.values()
        return list(dict.fromkeys([*found, *(v for o in options for v in o), *SUB_PAGES, BUY]))
    return found


def follow(shop: Shop, page: Page, action: Action, layout: Layout) -> Page | None:
    """The page that an action leads to; None where it is not possible, and for `BUY`, which leads
    to none. A search is possible everywhere, as in the public code."""
    if action.kind == "search":
        return Page(RESULTS, action.argument, shop.search(action.argument))
    name = clicked(shop, page, action, layout)
    if name is None or name == BUY:
        return None
    if name == BACK:
        return Page()
    if name == NEXT:
        return page._replace(number=page.number + 1)
    if name == PREVIOUS:
        return _previous(page)
    if name in SUB_PAGES:
        return page._replace(kind=name)
    if page.kind == RESULTS:
        return page._replace(kind=PRODUCT, product=shop.shifted(name, -layout.shift))
    return page._replace(chosen=_choose(shop.products[page.product].options, page.chosen, name))


def clicked(shop: Shop, page: Page, action: Action, layout: Layout) -> str | None:
    """The clickable that an action names, None for what is none; "next" is "next >"."""
    if action.kind != "click":
        return None
    names = clickables(shop, page, layout)
    if action.argument in names:
        return action.argument
    return next((name for name in names if name.strip("<> ") == action.argument), None)


def _previous(page: Page) -> Page:
    if page.kind == RESULTS:
        return page._replace(number=page.number - 1)
    if page.kind == PRODUCT:
        return page._replace(kind=RESULTS, product="", chosen=())
    return page._replace(kind=PRODUCT)


def _choose(
    options: Mapping[str, Sequence[str]], chosen: Sequence[tuple[str, str]], value: str
) -> tuple[tuple[str, str], ...]:
    """The choices with one more. A value of several options is of the last, as in the public
    code."""
    name = [option for option, values in options.items() if value in values][-1]
    return tuple({**dict(chosen), name: value}.items())


def page_text(shop: Shop, page: Page, layout: Layout) -> str:
    """A page as text; what can be clicked on it stands in it."""
    if page.kind == START:
        return "Search"
    buttons = clickables(shop, page, layout)
    shown = {name: layout.clickable(text) for name, text in _SHOWN.items()}
    fields = [shown[name] for name in buttons if name in (BACK, PREVIOUS)]
    if page.kind == RESULTS:
        fields.append(f"Page {page.number} (Total results: {len(page.results)})")
        fields += [shown[name] for name in buttons if name == NEXT]
        for name in layout.on_page(page):
            product = shop.products[name]
            code = shop.products[shop.shifted(name, layout.shift)].id
            fields += [layout.clickable(code), layout.title(product), product.price_text]
        return SEPARATOR.join(fields)
    product = shop.products[page.product]
    if page.kind == "description":
        return SEPARATOR.join([*fields, product.description or "No Description"])
    if page.kind == "features":
        return SEPARATOR.join([*fields, *product.features])
    for option, values in product.options.items():
        fields += [option, *map(layout.clickable, values)]
    fields += [layout.title(product), f"Price: {product.price_text}"]
    fields += [shown[name] for name in (*SUB_PAGES, BUY)]
    return SEPARATOR.join(fields + ([choices_text(page)] if page.chosen else []))


def choices_text(page: Page) -> str:
    """What was chosen so far."""
    return SEPARATOR.join(["Selected", *(f"{option}: {value}" for option, value in page.chosen)])


def keywords(instruction: str) -> str:
    """Words of an instruction that are worth a search: not its price, nor function words; all of it
    where none is left."""
    words = re.findall(r"[^\W_][\w.'’-]*", _PRICE.sub("", instruction).lower())
    found = [word.rstrip(".'’-") for word in words if word not in _NOT_SEARCHED]
    return " ".join(found or instruction.lower().split())
