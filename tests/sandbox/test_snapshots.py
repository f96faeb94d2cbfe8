"""Snapshots: restored elsewhere, every continuation is the same; changed ones are refused."""

import collections
import copy
import functools
import random
import re

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from sandbox.content_states import Card, Seat, state_hashes
from sandbox.elsewhere import result, start
from sandbox.environment_cases import CASES, continuations, play_on, prefix

from sepo_jax.domains import Kuhn
from sepo_jax.sandbox.base import BaseEnvironment, ask
from sepo_jax.sandbox.environments import DomainEnvironment
from sepo_jax.sandbox.protocol import SnapshotRefused
from sepo_jax.sandbox.snapshots import (
    MAGIC,
    Header,
    content_hash,
    content_of,
    dump,
    load,
    seal,
    unseal,
)

PREFIXES, CONTINUATIONS = range(3), range(50)
MARKED = [
    pytest.param(name, marks=pytest.mark.slow if case.slow else ()) for name, case in CASES.items()
]


@pytest.mark.parametrize("name", MARKED)
def test_another_process_goes_on_from_a_snapshot_as_the_first_would(name, tmp_path):
    environment = CASES[name].factory(tmp_path)
    snapshots = []
    for seed in PREFIXES:
        prefix(name, environment, seed)
        snapshots.append(environment.snapshot())
    process = start(continuations, name, snapshots, CONTINUATIONS, hash_seed=len(name))
    # The same continuations here, each after a reset and the moves of its prefix: no snapshot.
    expected = [
        [play_on(name, environment, prefix(name, environment, s), k) for k in CONTINUATIONS]
        for s in PREFIXES
    ]
    for snapshot, turns, (again, found) in zip(snapshots, expected, result(process), strict=True):
        assert found == turns
        assert content_of(again) == content_of(snapshot)
        assert len(set(map(str, turns))) > 10  # the continuations do differ


@pytest.fixture(params=list(CASES))
def kept(request, tmp_path):
    """Name of an environment, the environment in mid-episode, and its snapshot."""
    environment = CASES[request.param].factory(tmp_path)
    prefix(request.param, environment, 1)
    return request.param, environment, environment.snapshot()


def refuse_all(environment, snapshots, message):
    """Each is refused, and the episode under way goes on untouched."""
    before = content_of(environment.snapshot())
    for snapshot in snapshots:
        with pytest.raises(SnapshotRefused, match=message):
            environment.restore(snapshot)
    assert content_of(environment.snapshot()) == before


def test_a_snapshot_of_which_any_bit_changed_is_refused(kept):
    _, environment, snapshot = kept
    stream = random.Random(0)
    places = [*range(120), *(stream.randrange(len(snapshot)) for _ in range(60))]
    changed = [bytearray(snapshot) for _ in places]
    for place, copied in zip(places, changed, strict=True):
        copied[place] ^= 1 << stream.randrange(8)
    refuse_all(environment, map(bytes, changed), "not a snapshot|was changed|cut off or changed")


def test_a_snapshot_that_was_cut_off_or_prolonged_is_refused(kept):
    _, environment, snapshot = kept
    lengths = [0, 1, len(MAGIC), len(MAGIC) + 20, len(snapshot) // 2, len(snapshot) - 1]
    refuse_all(environment, [snapshot[:length] for length in lengths], "cut off")
    refuse_all(environment, [snapshot + b"\0"], "cut off or changed")


def test_what_never_was_a_snapshot_is_refused(kept):
    _, environment, _ = kept
    refuse_all(environment, [b"\x80\x05}.", "text", None, {"state": 1}], "not a snapshot")


def test_snapshots_of_other_origin_are_refused(kept):
    _, environment, snapshot = kept
    header, body = unseal(snapshot)
    fields = header.__dict__
    for field, value, said in (
        ("name", "Other", "is of environment 'Other', and this is environment"),
        ("version", "0", "is of version '0', and this is version"),
        ("kind", "photograph", "is of kind 'photograph', and this is kind"),
    ):
        refuse_all(environment, [seal(Header(**fields | {field: value}), body)], said)
    other = seal(Header(**fields | {"content": "0" * 64}), body)
    refuse_all(environment, [other], "is not the one that was kept")
    for broken in (b"", b"\0" * 40, body[: len(body) // 2]):
        said = "cannot be read|no past|not an archive|not the one that was kept"
        refuse_all(environment, [seal(header, broken)], said)


@pytest.mark.parametrize(
    ("domain", "message"),
    [
        (Kuhn(hands=3), "is of version .*, and this is version"),
        (Kuhn(hands=2, faithful=True), "is of version .*, and this is version"),
    ],
)
def test_a_domain_of_other_settings_refuses_a_snapshot(domain, message):
    environment = DomainEnvironment(Kuhn(hands=2))
    environment.reset({"opponent": "NashApprox"}, 0)
    other = DomainEnvironment(domain)
    with pytest.raises(SnapshotRefused, match=message):
        other.restore(environment.snapshot())
    DomainEnvironment(Kuhn(hands=2)).restore(environment.snapshot())


class Forgetful:
    """Pickles without what it counts."""

    def __init__(self):
        self.count = 0

    def __setstate__(self, state):
        self.count = state["count"] + 1


class Holding(BaseEnvironment):
    """Keeps whatever it is given as its state."""

    def start(self, task, seed):
        self.state = task
        return ask("Well?")


@pytest.mark.parametrize(
    ("state", "message"),
    [
        (lambda: 0, "does not pickle"),
        ((n for n in ()), "does not pickle"),
        (type("Local", (), {})(), "does not pickle"),
    ],
)
def test_a_state_that_cannot_be_kept_is_refused_when_it_should_be(state, message, tmp_path):
    environment = Holding(tmp_path)
    environment.reset(state, 0)
    with pytest.raises(SnapshotRefused, match=message):
        environment.snapshot()


def test_a_state_that_pickles_into_another_is_refused_at_the_restore(tmp_path):
    environment = Holding(tmp_path)
    environment.reset(Forgetful(), 0)
    with pytest.raises(SnapshotRefused, match=r"is not the one that was kept.*raise `version`"):
        environment.restore(environment.snapshot())


def test_a_state_that_points_back_is_kept_once_it_is_described(tmp_path):
    class Described(Holding):
        def describe(self, state):
            return len(state)

    circle = [1]
    circle.append(circle)
    plain, described = Holding(tmp_path), Described(tmp_path)
    plain.reset(circle, 0)
    with pytest.raises(SnapshotRefused, match=r"a list in the state contains itself.*describe"):
        plain.snapshot()
    described.reset(circle, 0)
    described.restore(described.snapshot())
    assert described.state[1] is described.state and described.state is not circle


def test_shared_objects_are_named_and_not_copied():
    shared = {"rules": {"large": "x" * 10_000}}
    data = dump([shared["rules"], 1], shared)
    assert len(data) < 100
    again = {"rules": dict(shared["rules"])}
    assert load(data, again)[0] is again["rules"]
    assert content_hash([shared["rules"], 1], shared) == content_hash([again["rules"], 1], again)
    assert content_hash([shared["rules"], 1], shared) != content_hash([shared["rules"], 1])
    with pytest.raises(SnapshotRefused, match="cannot be read back here: KeyError: 'rules'"):
        load(data, {})


# Content hashes


def test_different_contents_have_different_hashes():
    found = state_hashes()
    assert len(set(found)) == len(found)
    assert all(re.fullmatch("[0-9a-f]{64}", text) for text in found)


def test_hashes_do_not_depend_on_the_order_of_making_or_on_identity():
    text = "".join(["a", "b"])
    for one, other in (
        ({"a": 1, "b": 2}, {"b": 2, "a": 1}),
        ({"x", "y", "z"}, {"z", "y", "x"}),
        ([text, text], ["ab", "a" + "b"]),
        ([Card(1)] * 2, [Card(1), Card(1)]),
        ([[1]] * 2, [[1], [1]]),
        (np.arange(6).reshape(2, 3).T, np.array([[0, 3], [1, 4], [2, 5]])),
        (collections.Counter("ab"), collections.Counter("ba")),
        (Seat("n", {"a": {1, 2}}), Seat("n", {"a": {2, 1}})),
    ):
        assert content_hash(one) == content_hash(other)


def test_hashes_are_those_of_every_process():
    processes = [start(state_hashes, hash_seed=seed) for seed in (1, 2)]
    assert [result(process) for process in processes] == [state_hashes()] * 2


values = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats(allow_nan=False) | st.text(max_size=3),
    lambda inner: (
        st.lists(inner, max_size=3)
        | st.tuples(inner, inner)
        | st.dictionaries(st.text(max_size=2), inner, max_size=3)
        | st.frozensets(st.integers(0, 3) | st.text(max_size=1), max_size=3)
    ),
    max_leaves=6,
)


def same(one, other) -> bool:
    """Equality of contents and types."""
    if type(one) is not type(other):
        return False
    if isinstance(one, dict):
        return one.keys() == other.keys() and all(same(one[key], other[key]) for key in one)
    if isinstance(one, list | tuple):
        return len(one) == len(other) and all(map(same, one, other))
    return repr(one) == repr(other) if isinstance(one, float) else one == other


@settings(deadline=None, max_examples=300)
@given(values, values)
def test_hashes_are_equal_exactly_where_contents_are(one, other):
    assert (content_hash(one) == content_hash(other)) == same(one, other)
    assert content_hash(copy.deepcopy(one)) == content_hash(one)
    assert content_hash(load(dump(one, {}), {})) == content_hash(one)


def test_shared_parts_are_hashed_once():
    value = [1]
    for _ in range(200):  # 2^200 parts if each were visited wherever it occurs
        value = [value, value]
    assert content_hash(value) == content_hash(copy.deepcopy(value))


@pytest.mark.parametrize(
    ("value", "message"),
    [
        (lambda: 0, "<lambda> in the state has no name"),
        (open, None),
        (iter(()), None),
        ((n for n in ()), "does not pickle"),
        (functools.reduce(lambda deep, _: [deep], range(5000), 0), "nested too deeply"),
    ],
)
def test_what_has_no_content_is_refused(value, message):
    if message is None:
        content_hash(value)
        return
    with pytest.raises(SnapshotRefused, match=message):
        content_hash(value)
