"""Small ALFWorld games, made from a number: a room, receptacles, objects and a task of six types.

The rules, the texts, what holds what and what can be heated, cooled or cleaned are ALFWorld's own.
A room has the receptacles that its kind always has and some that it may have; which ones together
makes its layout. Layouts of `valid_unseen` are in no other split. `train` and `valid_seen` share
layouts, and no game of one is in the other: what a game is, hashed, decides which it may be in. So
the three splits have no game in common, however many are made.
"""

import functools
import hashlib
import itertools
import random
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from typing import Any

from sepo_jax.domains.alfworld.packages import library
from sepo_jax.domains.base import stream

TASK_TYPES = (
    "pick_and_place_simple",
    "look_at_obj_in_light",
    "pick_clean_then_place_in_recep",
    "pick_heat_then_place_in_recep",
    "pick_cool_then_place_in_recep",
    "pick_two_obj_and_place",
)
SPLITS = ("train", "valid_seen", "valid_unseen")
RECEPTACLES = (5, 9)  # least and most of a room
MOST_OBJECTS = 12
# Kind of room -> receptacles that it always has, those that it may have, and objects.
_ROOMS = {
    "Kitchen": (
        ("CounterTop", "Fridge", "Microwave", "SinkBasin"),
        ("Cabinet", "Cabinet", "DiningTable", "Drawer", "Drawer", "GarbageCan", "Shelf"),
        (
            *("Apple", "Bowl", "Bread", "ButterKnife", "Cup", "DishSponge", "Egg", "Fork"),
            *("Knife", "Lettuce", "Mug", "Pan", "PepperShaker", "Plate", "Pot", "Potato"),
            *("SaltShaker", "SoapBottle", "Spatula", "Spoon", "Tomato"),
        ),
    ),
    "Bathroom": (
        ("CounterTop", "SinkBasin", "Toilet"),
        ("BathtubBasin", "Cabinet", "Cabinet", "Cart", "Drawer", "GarbageCan", "Shelf"),
        (
            *("Candle", "Cloth", "DishSponge", "HandTowel", "PaperTowel", "SoapBar"),
            *("SoapBottle", "SprayBottle", "TissueBox", "ToiletPaper"),
        ),
    ),
    "Bedroom": (
        ("Bed", "Desk"),
        ("ArmChair", "Drawer", "Drawer", "Dresser", "GarbageCan", "Safe", "Shelf", "SideTable"),
        (
            *("AlarmClock", "BasketBall", "Book", "CD", "CellPhone", "CreditCard", "KeyChain"),
            *("Laptop", "Mug", "Pen", "Pencil", "Pillow", "TissueBox"),
        ),
    ),
    "LivingRoom": (
        ("CoffeeTable", "Sofa"),
        ("ArmChair", "Cabinet", "Drawer", "Dresser", "Ottoman", "Safe", "Shelf", "SideTable"),
        (
            *("Book", "Box", "CreditCard", "KeyChain", "Laptop", "Newspaper", "Pillow"),
            *("RemoteControl", "Statue", "TissueBox", "Vase", "Watch", "WateringCan"),
        ),
    ),
}
# What the object of a task must be, and where it becomes so.
TREATMENTS = {
    "pick_clean_then_place_in_recep": ("Cleanable", "SinkBasin"),
    "pick_heat_then_place_in_recep": ("Heatable", "Microwave"),
    "pick_cool_then_place_in_recep": ("Coolable", "Fridge"),
}
_LAMP = "DeskLamp"
_LAMP_PLACES = ("CoffeeTable", "Desk", "Dresser", "SideTable")
# Property in PDDL -> list of ALFWorld's that names the classes with it.
_PROPERTIES = {
    "heatable": "Heatable",
    "coolable": "Coolable",
    "cleanable": "Cleanable",
    "sliceable": "Sliceable",
    "toggleable": "Toggleable",
}
# Types that the rules name, in every room.
_TYPES_OF_RULES = (("Fridge", "Microwave", "SinkBasin"), ("ButterKnife", "Knife"))
_ONE_IN = 4  # layouts that are unseen; and games of the other layouts that are valid_seen


@dataclass(frozen=True)
class Goal:
    """What is to be done, in the classes of `alfworld.gen.constants`; "" for what has no part.

    Attributes:
      task_type: of `TASK_TYPES`.
      object, receptacle, toggle: class of the object, of where it goes, of the lamp.
    """

    task_type: str
    object: str
    receptacle: str = ""
    toggle: str = ""


@dataclass(frozen=True)
class MadeGame:
    """A game in a small room.

    Attributes:
      goal, sentence: what is to be done, and in words.
      receptacles: class of each.
      objects: class of each, and the place in `receptacles` of what it is in.
    """

    goal: Goal
    sentence: str
    receptacles: tuple[str, ...]
    objects: tuple[tuple[str, int], ...]

    def data(self) -> dict[str, Any]:
        """What a .tw-pddl file holds: "pddl_domain", "grammar", "pddl_problem"."""
        rules = library()
        return {
            "pddl_domain": rules.domain,
            "grammar": rules.grammar.replace("UNKNOWN GOAL", self.sentence),
            "pddl_problem": _problem(self),
        }


def make_game(
    split: str, task_type: str, number: int, num_receptacles: int, num_objects: int
) -> MadeGame:
    """The game of a number.

    Args:
      split: of `SPLITS`.
      task_type: of `TASK_TYPES`.
      number: from 0; each is a game, and two of many may be alike.
      num_receptacles: of the room, within `RECEPTACLES`.
      num_objects: in it, those of the task and a lamp among them; at most `MOST_OBJECTS`.
    """
    for attempt in itertools.count():
        rng = stream(number, "alfworld", split, task_type, num_receptacles, num_objects, attempt)
        game = _drawn(rng, split, task_type, num_receptacles, num_objects)
        if game is not None and (split == "valid_unseen" or _is_seen(game) == (split != "train")):
            return game
    raise AssertionError  # the count has no end


def _is_seen(game: MadeGame) -> bool:
    """Whether a game in a layout of the train split is in `valid_seen`."""
    what = repr((game.goal, game.receptacles, sorted(game.objects)))
    return int.from_bytes(hashlib.sha256(what.encode()).digest()[:8], "big") % _ONE_IN == 0


@functools.cache
def layouts(kind: str, num_receptacles: int, unseen: bool) -> tuple[tuple[str, ...], ...]:
    """Sets of receptacles that a kind of room may have."""
    always, perhaps, _ = _ROOMS[kind]
    chosen = sorted(set(itertools.combinations(perhaps, num_receptacles - len(always))))
    return tuple(
        (*always, *more)
        for place, more in enumerate(chosen)
        if (place % _ONE_IN == _ONE_IN - 1) == unseen
    )


def _drawn(
    rng: random.Random, split: str, task_type: str, num_receptacles: int, num_objects: int
) -> MadeGame | None:
    """A game, or None where the drawn room has none of this type."""
    rules = library()
    kind = rng.choice(sorted(rules.rooms_of[task_type] & _ROOMS.keys()))
    receptacles = rng.choice(layouts(kind, num_receptacles, split == "valid_unseen"))
    goals = _goals(task_type, receptacles, _ROOMS[kind][2])
    if not goals:
        return None
    # Each object alike often, however many places it may go to.
    name = rng.choice(sorted({goal.object for goal in goals}))
    goal = rng.choice([goal for goal in goals if goal.object == name])
    objects = []
    if goal.toggle:
        tables = [i for i, each in enumerate(receptacles) if each in _LAMP_PLACES]
        objects.append((goal.toggle, rng.choice(tables)))
    starts = _places(goal.object, receptacles, goal.receptacle)
    copies = 2 if task_type == "pick_two_obj_and_place" else 1
    objects += [(goal.object, rng.choice(starts)) for _ in range(copies)]
    others = [each for each in _ROOMS[kind][2] if each != goal.object]
    for other in rng.sample(others, max(min(num_objects - len(objects), len(others)), 0)):
        if places := _places(other, receptacles, ""):
            objects.append((other, rng.choice(places)))
    words = {"obj": goal.object, "recep": goal.receptacle, "toggle": goal.toggle}
    template = rng.choice(rules.goals[task_type]["templates"])
    sentence = template.format(**{key: word.lower() for key, word in words.items()})
    return MadeGame(goal, sentence, receptacles, tuple(objects))


def _places(name: str, receptacles: Sequence[str], without: str) -> list[int]:
    """Places of receptacles that an object may be in, but for those of one class."""
    holds = library().holds
    return [
        place
        for place, each in enumerate(receptacles)
        if each != without and name in holds.get(each, ())
    ]


def _goals(task_type: str, receptacles: Sequence[str], objects: Iterable[str]) -> list[Goal]:
    """Goals of a type that a room allows: the object may be somewhere, and go where it shall."""
    rules = library()
    if task_type == "look_at_obj_in_light":
        found = [each for each in objects if _places(each, receptacles, "")]
        return [Goal(task_type, each, toggle=_LAMP) for each in found]
    treatment, tool = TREATMENTS.get(task_type, ("", ""))
    return [
        Goal(task_type, name, target)
        for name in objects
        if not treatment or name in rules.treatable[treatment]
        for target in sorted(set(receptacles) - {tool})
        if name in rules.holds.get(target, ()) and _places(name, receptacles, target)
    ]


def _identifiers(classes: Sequence[str]) -> list[str]:
    """PDDL identifiers; ALFWorld reads names and numbers out of them."""
    counts: dict[str, int] = {}
    found = []
    for name in classes:
        counts[name] = counts.get(name, 0) + 1
        number = f"_bar_{counts[name]:02d}"
        basin = name.removesuffix("Basin")
        found.append(f"{basin}{number}_bar_{name}" if basin != name else f"{name}{number}")
    return found


def _problem(game: MadeGame) -> str:
    """The game as a PDDL problem; each receptacle has a location of its own, and so has the
    agent."""
    receptacles = _identifiers(game.receptacles)
    objects = _identifiers([name for name, _ in game.objects])
    kinds, classes = (
        sorted({*present, *named})
        for present, named in zip(
            (game.receptacles, [name for name, _ in game.objects]), _TYPES_OF_RULES, strict=True
        )
    )
    declared = {
        "agent": ["agent1"],
        "receptacle": receptacles,
        "object": objects,
        "location": [f"loc_bar_{place:02d}" for place in range(len(receptacles) + 1)],
        "rtype": [f"{name}Type" for name in kinds],
        "otype": [f"{name}Type" for name in classes],
    }
    listed = [f"{name} - {kind}" for kind, names in declared.items() for name in names]
    facts = [
        "(= (total-cost) 0)",
        "(atLocation agent1 loc_bar_00)",
        *_contents(kinds, classes),
        *_receptacle_facts(game.receptacles, receptacles),
        *_object_facts(game.objects, objects, receptacles),
    ]
    goal = game.goal
    names = {"obj": goal.object, "recep": goal.receptacle, "toggle": goal.toggle}
    wanted = library().goals[goal.task_type]["pddl"].format(**names).replace("#", "-")
    head = "(define (problem small_room) (:domain alfred)\n(:objects\n"
    lines = "\n".join(listed)
    return f"{head}{lines}\n)\n(:init\n" + "\n".join(facts) + f"\n)\n{wanted}"


def _contents(kinds: Sequence[str], classes: Sequence[str]) -> list[str]:
    holds = library().holds
    return [
        f"(canContain {kind}Type {name}Type)"
        for kind in kinds
        for name in classes
        if name in holds.get(kind, ())
    ]


def _receptacle_facts(classes: Sequence[str], identifiers: Sequence[str]) -> list[str]:
    facts = []
    for place, (kind, name) in enumerate(zip(classes, identifiers, strict=True), start=1):
        facts.append(f"(receptacleType {name} {kind}Type)")
        facts.append(f"(receptacleAtLocation {name} loc_bar_{place:02d})")
        if kind in library().openable:
            facts.append(f"(openable {name})")
    return facts


def _object_facts(
    objects: Sequence[tuple[str, int]], identifiers: Sequence[str], receptacles: Sequence[str]
) -> list[str]:
    holds, treatable = library().holds, library().treatable
    facts = []
    for (kind, place), name in zip(objects, identifiers, strict=True):
        facts.append(f"(objectType {name} {kind}Type)")
        facts.append(f"(inReceptacle {name} {receptacles[place]})")
        facts.append(f"(objectAtLocation {name} loc_bar_{place + 1:02d})")
        if kind not in treatable["Toggleable"]:
            facts.append(f"(pickupable {name})")
        if kind in holds:
            facts.append(f"(isReceptacleObject {name})")
        facts += [f"({p} {name})" for p, listed in _PROPERTIES.items() if kind in treatable[listed]]
    return facts
