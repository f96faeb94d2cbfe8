"""Texts of a TextWorld grammar, derived as `ContextSensitiveGrammar.derive` does, but faster.

That one parses every template and every condition anew whenever it is used, and copies the whole
context for every symbol of it. Here each is parsed once a process, by its parser, and a context is
only read.
"""

import functools
import threading
from collections.abc import Iterator, Mapping, Sequence
from typing import Any, NamedTuple

from textworld.envs.pddl import textgen
from textworld.logic import Placeholder, Rule, State, Variable

_PARSING = threading.RLock()  # the parsers keep a state of their own


def _one_at_a_time(parse):
    @functools.lru_cache(maxsize=4096)
    @functools.wraps(parse)
    def parsed(text: str) -> Any:
        with _PARSING:
            return parse(text)

    return parsed


@_one_at_a_time
def parse_symbols(text: str) -> tuple[textgen.Symbol, ...]:
    """Symbols of a template; they are shared and must not be changed."""
    return tuple(textgen._parse_and_convert(text, rule_name="symbols"))


@_one_at_a_time
def parse_query(condition: str) -> Rule:
    """A condition as a rule to be matched; it is shared and must not be changed."""
    return Rule.parse_conjunctive_query(condition)


def predicates_of(template: str) -> set[str] | None:
    """Predicates that decide what a template becomes; None where it names symbols of the grammar,
    which may ask for any."""
    found: set[str] = set()
    for symbol in parse_symbols(template):
        inner = symbol.symbol if isinstance(symbol, textgen.ListSymbol) else symbol
        if isinstance(inner, textgen.ConditionalSymbol):
            if inner.given:
                found |= {each.name for each in parse_query(inner.given).preconditions}
            inner = inner.expression
        if isinstance(inner, textgen.NonterminalSymbol):
            return None
    return found


class _Context(NamedTuple):
    """Where a text is derived: the state, what its variables stand for, and their entities."""

    state: State
    mapping: Mapping[Placeholder, Variable]
    entities: Mapping[str, Any]


class Writer:
    """Derives the texts of a game.

    Args:
      rules: productions of the grammar by the symbol that they replace.
      entities: of the game, by the name of the variable.
    """

    def __init__(
        self, rules: Mapping[str, Sequence[textgen.ProductionRule]], entities: Mapping[str, Any]
    ):
        self._rules, self._entities = rules, entities

    def write(self, text: str, state: State, mapping: Mapping[Placeholder, Variable]) -> str:
        """The text that a template or "#symbol#" becomes in a state.

        Args:
          text: what is derived.
          state: whose facts decide.
          mapping: what variables of the template stand for.
        """
        context = _Context(state, mapping, self._named(mapping))
        return self._joined(parse_symbols(text), context)

    def _named(self, mapping: Mapping[Placeholder, Variable]) -> dict[str, Any]:
        return {each.name: self._entities[found.name] for each, found in mapping.items()}

    def _joined(self, symbols: Sequence[textgen.Symbol], context: _Context) -> str:
        return "".join(self._text(symbol, context) for symbol in symbols)

    def _text(self, symbol: textgen.Symbol, context: _Context) -> str:
        if isinstance(symbol, textgen.TerminalSymbol):
            return str(symbol)
        if isinstance(symbol, textgen.NonterminalSymbol):
            return self._production(str(symbol), context)
        if isinstance(symbol, textgen.ListSymbol):
            return self._list(self._texts(symbol.symbol, context), context)
        return "".join(self._texts(symbol, context))

    def _texts(self, symbol: textgen.Symbol, context: _Context) -> list[str]:
        """Texts of a symbol, one for each way in which its condition holds."""
        if isinstance(symbol, textgen.EvalSymbol):
            # An expression of the game file, such as "o.indefinite + ' ' + o.name".
            return [str(eval(symbol.expression, {}, dict(context.entities)))]
        contexts = self._matches(symbol.given, context) if symbol.given else [context]
        return [self._text(symbol.expression, each) for each in contexts]

    def _list(self, texts: Sequence[str], context: _Context) -> str:
        if not texts:
            return self._production("list_empty", context)
        if len(texts) == 1:
            return texts[0]
        between = self._production("list_separator", context)
        last = self._production("list_last_separator", context)
        return between.join(texts[:-1]) + last + texts[-1]

    def _production(self, name: str, context: _Context) -> str:
        """Text of the first rule of a symbol whose condition holds."""
        for rule in self._rules.get(name, ()):
            if not rule.condition or any(True for _ in self._found(rule.condition, context)):
                return self._joined(rule.rhs, context)
        raise ValueError(f"the grammar has no rule for #{name}# here")

    def _matches(self, condition: str, context: _Context) -> Iterator[_Context]:
        """Contexts in which a condition holds, in the order of the facts' names."""
        for found in self._found(condition, context):
            entities = {**context.entities, **self._named(found)}
            yield _Context(context.state, {**context.mapping, **found}, entities)

    def _found(self, condition: str, context: _Context) -> Iterator[Mapping[Placeholder, Variable]]:
        return context.state.all_assignments(parse_query(condition), context.mapping)
