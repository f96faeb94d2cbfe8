"""Games of TextWorld's PDDL kind, as ALFWorld has them, fast enough to be forked and replayed.

The parts are upstream's own: the translator and the search library of fast_downward, the grammar's
parser, the matching of facts, ALFWorld's names. `PddlEnv` puts them together for one player at a
time and derives everything anew at each step. `PddlGame` shows the same texts, commands and ends
(tests compare them), with three differences.

A game is a tree of `Position`s that any number of episodes walk at once: each keeps the number that
the library gave its state, and the facts. Going back to one is a call that takes microseconds, and
what was played before is looked up. Numbers are good for as long as the library holds the game,
and a library is given to another game only when nobody holds the first any more.

A command's text is derived once where nothing that happens can change it, and the text that follows
an action only when it is asked for, so that a long past is replayed quickly.

The game is translated once, without the second translation that upstream's planner needs.
"""

import ctypes
import functools
import re
import sys
import threading
import weakref
from collections import OrderedDict
from collections.abc import Iterable, Iterator, Mapping, Sequence
from typing import Any, NamedTuple

import fast_downward
from textworld.envs.pddl import logic
from textworld.generator.game import EntityInfo
from textworld.logic import Placeholder, Proposition, State, Type, TypeHierarchy, Variable

from sepo_jax.domains.alfworld.data import GameFile
from sepo_jax.domains.alfworld.packages import library
from sepo_jax.domains.alfworld.text import Writer, predicates_of

# Games that a process keeps loaded when nobody plays them. Each has a copy of the library: some
# 3 MB of memory, and 33 MB of the disk of temporary files.
MOST_GAMES = 16
MOST_POSITIONS = 4_000  # of a game that are remembered, some 3 KB each
_TASK = "Your task is to: "
_SENTENCE = re.compile(rf'{_TASK}([\w ,.\'-]*[\w.])(?=")')
_PLACE_OF_SENTENCE = "UNKNOWN GOAL."
_LOADING = threading.RLock()
_FREE: list[Any] = []  # libraries that hold no game any more
_GAMES: OrderedDict[str, "PddlGame"] = OrderedDict()

Facts = Mapping[Any, frozenset[Proposition]]
"""Signature -> facts of it."""


def open_game(file: GameFile) -> "PddlGame":
    """A game that is loaded, once a process for all who play it; the last `MOST_GAMES` are kept.

    Raises:
      ValueError: what is no such game.
    """
    with _LOADING:
        if file.digest not in _GAMES:
            _GAMES[file.digest] = PddlGame(file.data)
        _GAMES.move_to_end(file.digest)
        while len(_GAMES) > MOST_GAMES:
            _GAMES.popitem(last=False)
        return _GAMES[file.digest]


class _Operator(NamedTuple):
    """An action that can be taken: its name in the library, number there, and effects at most."""

    name: str
    number: int
    effects: int


class Position:
    """A state of a game and how it was reached; made by `PddlGame`.

    Attributes:
      state: its number in the library.
      facts: what holds there, with "not_" of what an action made false.
      won: whether the goal is reached.
    """

    __slots__ = ("_by", "_children", "_operators", "_owner", "_text", "facts", "state", "won")

    def __init__(self, owner: object, state: int, facts: Facts, won: bool, by: str):
        self._owner, self.state, self.facts, self.won = owner, state, facts, won
        self._by = by  # name of the operator that led here
        self._text: str | None = None
        self._operators: dict[str, _Operator] | None = None
        self._children: dict[str, Position] = {}


class _Facts(State):
    """Facts to match conditions with; unlike its base it tracks no variables."""

    def __init__(self, types: TypeHierarchy):
        self._logic = _Types(types)
        self._facts: Facts = {}


class _Types(NamedTuple):
    types: TypeHierarchy


class PddlGame:
    """A game that is loaded; any thread may use it.

    Args:
      data: "pddl_domain", "pddl_problem" and "grammar" of a .tw-pddl file.

    Attributes:
      start: its first position.
      names: name of each thing by its PDDL identifier.

    Raises:
      ValueError: what is no such game, or one whose goal nothing can reach.
    """

    def __init__(self, data: Mapping[str, Any]):
        self._lock = threading.RLock()
        grammar, self._sentence = _without_sentence(data["grammar"])
        with _LOADING:
            parsed = _parsed_grammar(grammar)
            task, text = _translated(data["pddl_domain"], data["pddl_problem"])
            self._library = _FREE.pop() if _FREE else _load_library()
        weakref.finalize(self, _FREE.append, self._library).atexit = False
        self._library.load_sas(text.encode())
        self._templates = {name: action.template for name, action in parsed.actions.items()}
        self._feedback = {name: action.feedback_rule for name, action in parsed.actions.items()}
        self._parameters = {
            action.name: [(each.name.strip("?"), each.type_name) for each in action.parameters]
            for action in task.actions
        }
        self._fixed = _fixed_templates(self._templates, task.actions)
        self._types = {each.name: each.type_name for each in task.objects}
        self._facts = _Facts(_type_hierarchy(task.types))
        try:
            facts = self._first_facts(task.init)
        except KeyError as error:  # of a name without type
            raise _no_game(error) from error
        entities = _named_entities(facts)
        self.names = {name: entity.name for name, entity in entities.items()}
        self._writer = Writer(parsed.grammar._rules, entities)
        self._known_operators: dict[_Operator, _Operator] = {}  # so that each is kept once
        self._commands: dict[str, str] = {}
        self._mappings: dict[str, Mapping[Placeholder, Variable]] = {}
        self._known = 1
        self._owner = object()
        self.start = self._position(facts, "")

    def text(self, position: Position) -> str:
        """What is said on arriving at a position: the introduction at the start."""
        with self._lock:
            if position._text is None:
                position._text = self._derived(position)
            return position._text

    def commands(self, position: Position) -> tuple[str, ...]:
        """Commands that can be played, in alphabetical order."""
        with self._lock:
            return tuple(sorted(self._operators(position)))

    def play(self, position: Position, command: str) -> Position:
        """Where a command leads; ValueError for one that cannot be played."""
        with self._lock:
            if command not in position._children:
                operators = self._operators(position)
                if command not in operators:
                    raise ValueError(f"{command!r} cannot be played here; see `commands`")
                self._remember(position, command, self._applied(position, operators[command]))
            return position._children[command]

    def walk(self, commands: Iterable[str]) -> Position:
        """Where commands lead from the start; ValueError for one that cannot be played."""
        position = self.start
        for command in commands:
            position = self.play(position, command)
        return position

    def facts(self, position: Position, predicate: str) -> Iterator[tuple[str, ...]]:
        """Identifiers of what a predicate holds for at a position, in alphabetical order."""
        named = [each for signature, each in position.facts.items() if signature.name == predicate]
        return iter(sorted(fact.names for found in named for fact in found))

    def _remember(self, position: Position, command: str, reached: Position) -> None:
        if self._known >= MOST_POSITIONS:
            # Episodes hold those that they are at; the others are played again when needed.
            self.start._children.clear()
            self._known = 1
        self._known += 1
        position._children[command] = reached

    def _first_facts(self, init: Iterable[Any]) -> Facts:
        atoms = (logic.Atom * self._library.get_state_size())()
        self._library.get_state(atoms)
        facts = [atom.get_fact(self._types) for atom in atoms]
        found: dict[Any, set[Proposition]] = {}
        for fact in [*_stated(init, self._types), *facts]:
            if not fact.is_negation:
                found.setdefault(fact.signature, set()).add(fact)
        return {signature: frozenset(each) for signature, each in found.items()}

    def _go_to(self, position: Position) -> None:
        # The library takes any number, plays on in a state of another game, or ends the process.
        if position._owner is not self._owner:
            raise ValueError("this position is of another game, or of another loading of this one")
        self._library.set_state_id(position.state)

    def _operators(self, position: Position) -> dict[str, _Operator]:
        """Command -> operator; of several with one text the first, as upstream has it."""
        if position._operators is None:
            self._go_to(position)
            count = self._library.get_applicable_operators_count()
            found = (fast_downward.Operator * count)()
            self._library.get_applicable_operators(found)
            operators: dict[str, _Operator] = {}
            for each in found:
                operator = _Operator(each.name, each.id, each.nb_effect_atoms)
                operator = self._known_operators.setdefault(operator, operator)
                operators.setdefault(self._command(operator.name, position), operator)
            position._operators = operators
        return position._operators

    def _applied(self, position: Position, operator: _Operator) -> Position:
        self._go_to(position)
        effects = (logic.Atom * operator.effects)()
        self._library.apply_operator(operator.number, effects)
        facts = dict(position.facts)
        for effect in effects:
            fact = effect.get_fact(self._types)
            gone = fact.negate()
            facts[gone.signature] = facts.get(gone.signature, frozenset()) - {gone}
            facts[fact.signature] = facts.get(fact.signature, frozenset()) | {fact}
        return self._position(facts, operator.name)

    def _position(self, facts: Facts, by: str) -> Position:
        """The position of the library's present state."""
        won = bool(self._library.check_goal())
        return Position(self._owner, self._library.get_state_id(), facts, won, by)

    def _derived(self, position: Position) -> str:
        self._facts._facts = position.facts
        if not position._by:
            text = self._writer.write("#intro#", self._facts, {})
            return text.replace(_TASK + _PLACE_OF_SENTENCE, _TASK + self._sentence)
        feedback = self._feedback[position._by.split()[0]]
        return self._writer.write(feedback, self._facts, self._mapping(position._by))

    def _command(self, operator: str, position: Position) -> str:
        if operator in self._commands:
            return self._commands[operator]
        name = operator.split()[0]
        self._facts._facts = position.facts
        mapping = self._mapping(operator)
        command = self._writer.write(self._templates[name], self._facts, mapping)
        if name in self._fixed:
            self._commands[operator] = command
        return command

    def _mapping(self, operator: str) -> Mapping[Placeholder, Variable]:
        """What the parameters of an operator stand for."""
        if operator not in self._mappings:
            name, *things = operator.split()
            # The translator adds parameters of its own behind those that the rules name.
            pairs = zip(self._parameters[name], things, strict=False)
            self._mappings[operator] = {
                Placeholder(parameter, kind): Variable(thing, kind)
                for (parameter, kind), thing in pairs
            }
        return self._mappings[operator]


def _load_library() -> Any:
    """A copy of the search library of its own, with the functions that its Python interface
    leaves out."""
    found = fast_downward.load_lib()
    found.get_state_id.argtypes, found.get_state_id.restype = [], int
    found.set_state_id.argtypes, found.set_state_id.restype = [ctypes.c_int], None
    return found


def _translated(domain: str, problem: str) -> tuple[Any, str]:
    """The task that PDDL describes and its SAS text; one call at a time."""
    arguments = sys.argv
    try:
        return fast_downward.pddl2sas(domain, problem)
    except (Exception, SystemExit) as error:
        raise _no_game(error) from error
    finally:
        sys.argv = arguments  # the translator puts its own in their place


def _no_game(error: BaseException) -> ValueError:
    return ValueError(
        f"the PDDL of a game cannot be translated ({error!r}): a type or constant is missing, or "
        "nothing can ever reach the goal"
    )


def _without_sentence(grammar: str) -> tuple[str, str]:
    """A grammar with a mark where the task stands, so that games share one, and the task; a task
    in unusual characters stays where it is, and is given as ""."""
    found = list(_SENTENCE.finditer(grammar))
    if len(found) != 1:
        return grammar, ""
    start, end = found[0].span(1)
    return grammar[:start] + _PLACE_OF_SENTENCE + grammar[end:], found[0][1]


@functools.lru_cache(maxsize=16)
def _parsed_grammar(grammar: str) -> logic.GameLogic:
    """A grammar's rules and actions, which are only read."""
    return logic.GameLogic(domain="", grammar=grammar)


def _fixed_templates(templates: Mapping[str, str], actions: Sequence[Any]) -> set[str]:
    """Actions whose commands read alike in every state: no action changes what they ask for."""
    changing = {effect.literal.predicate for action in actions for effect in action.effects}
    fixed = set()
    for name, template in templates.items():
        asked = predicates_of(template)
        if asked is not None and not changing & {each.removeprefix("not_") for each in asked}:
            fixed.add(name)
    return fixed


def _type_hierarchy(types: Iterable[Any]) -> TypeHierarchy:
    """Types of a game; the first of a name counts, as upstream has it."""
    hierarchy = TypeHierarchy()
    for each in types:
        if each.name not in {known.name for known in hierarchy}:
            hierarchy.add(Type(each.name, each.supertype_names))
    return hierarchy


def _stated(init: Iterable[Any], types: Mapping[str, str]) -> Iterator[Proposition]:
    """Facts of a problem, without equalities and numbers."""
    for atom in init:
        if isinstance(atom, fast_downward.translate.pddl.conditions.Atom) and atom.predicate != "=":
            arguments = [Variable(name, types[name]) for name in atom.args]
            yield Proposition(atom.predicate, arguments)


def _named_entities(facts: Facts) -> dict[str, EntityInfo]:
    """The things of a game by identifier, with the names that ALFWorld gives them."""
    named = (each for known in facts.values() for fact in known for each in fact.arguments)
    entities = {each.name: EntityInfo(each.name, each.type) for each in named}
    names = library().demangler(game_infos=entities, shuffle=False)
    for name, entity in entities.items():
        entity.name = names.demangle_alfred_name(name)
        entity.definite, entity.indefinite = "the", "a"
    return entities
