"""Files of conversations: what is written is read again, and bad lines are named."""

import json
from itertools import islice

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from sepo_jax.domains import Kuhn
from sepo_jax.domains.chat_files import chat_line, read_chat_jsonl
from sepo_jax.domains.traces import Trace, play_experts

USER = {"role": "user", "content": "Your move?"}
REPLY = {"role": "assistant", "content": "BET"}


def line(*messages, **fields):
    return json.dumps({"messages": list(messages), **fields})


@pytest.fixture
def write(tmp_path):
    def write(content):
        path = tmp_path / "chats.jsonl"
        path.write_bytes(content if isinstance(content, bytes) else content.encode())
        return path

    return write


def test_what_is_written_is_read_again(write):
    domain = Kuhn(hands=6)
    traces = list(islice(play_experts(domain, 2, reason=domain.reason), 60))
    path = write("".join(chat_line(trace, domain.name) for trace in traces))
    assert read_chat_jsonl(path) == domain.expert_traces(60, 2, rationale=True)


def test_a_line_names_where_its_decision_was_taken():
    trace = next(play_experts(Kuhn(), 0))
    record = json.loads(chat_line(trace, "kuhn"))
    assert [m["role"] for m in record["messages"]] == ["system", "user", "assistant"]
    assert record["messages"][2]["content"] == trace.reply
    assert list(record) == ["messages", "game", "expert", "opponent", "episode", "round"]
    assert [record[name] for name in ("game", "episode", "round")] == ["kuhn", 0, 0]
    assert (record["expert"], record["opponent"]) == (trace.expert, trace.opponent)


texts = st.text(st.characters(exclude_categories=["Cs"]))


@settings(deadline=None)
@given(st.lists(st.tuples(texts, texts.filter(str.strip)), min_size=1, max_size=5))
def test_any_text_survives(tmp_path_factory, pairs):
    """Line ends of all kinds, quotes, NUL and what lies beyond the 16-bit plane among it."""
    path = tmp_path_factory.mktemp("texts") / "chats.jsonl"
    traces = [
        Trace(({"role": "user", "content": prompt},), reply, "BET", "e", "o", 0, 0, 0.0)
        for prompt, reply in pairs
    ]
    path.write_bytes("".join(chat_line(trace, "g") for trace in traces).encode())
    assert read_chat_jsonl(path) == [(list(t.messages), t.reply) for t in traces]


def test_files_of_others_are_read(write):
    """Several turns, no system message, fields of their own, CR LF, no line end after the last."""
    earlier = {"role": "assistant", "content": ""}
    path = write(
        line(USER, REPLY, source="x", weight=2)
        + "\r\n"
        + line({"role": "system", "content": "Rules."}, USER, earlier, USER | {"name": "A"}, REPLY)
    )
    assert read_chat_jsonl(path) == [
        ([USER], "BET"),
        ([{"role": "system", "content": "Rules."}, USER, earlier, USER], "BET"),
    ]


GOOD = line(USER, REPLY) + "\n"
SYSTEM = {"role": "system", "content": "Rules."}


@pytest.mark.parametrize(
    ("content", "message"),
    [
        (GOOD + "{'messages': 1}\n", "line 2: not JSON: .* at column 2"),
        (GOOD + GOOD + '{"messages": [', "line 3: not JSON"),
        (GOOD + "\n" + GOOD, "line 2: the line is blank"),
        (GOOD + "7\n", "line 2: expected a JSON object, not 7"),
        ('{"conversations": []}', 'line 1: expected an object with the field "messages"'),
        ('{"messages": []}', 'line 1: "messages" must be a list with messages'),
        ('{"messages": {"role": "user"}}', 'line 1: "messages" must be a list'),
        (line("hello", REPLY), 'line 1: message 0 needs the field "role"'),
        (line(USER, {"role": "assistant"}), 'line 1: message 1 needs the field "content"'),
        (line(USER, {"role": "assistant", "content": None}), 'needs the field "content", a text'),
        (line(USER, {"role": "assistant", "content": [{"text": "BET"}]}), '"content", a text'),
        (
            line({"role": "tool", "content": "x"}, REPLY),
            "message 0 has the role 'tool'; allowed: s",
        ),
        (line(USER), "line 1: the roles are user; expected"),
        (line(SYSTEM), "the roles are system; expected"),
        (line(REPLY), "the roles are assistant; expected"),
        (line(SYSTEM, REPLY), "the roles are system, assistant; expected"),
        (line(USER, SYSTEM, REPLY), "the roles are user, system, assistant; expected"),
        (line(REPLY, USER), "the roles are assistant, user; expected"),
        (line(USER, USER, REPLY), "the roles are user, user, assistant; expected"),
        (line(USER, REPLY, REPLY), "the roles are user, assistant, assistant; expected"),
        (line(USER, REPLY | {"content": " \n"}), "line 1: the assistant's last message is empty"),
        (line(USER, REPLY | {"content": "\ud800"}), "line 1: half a surrogate pair"),
        (b"\xef\xbb\xbf" + GOOD.encode(), "line 1: the file begins with a byte order mark"),
        (GOOD.encode("utf-16"), "line 1: the file begins with a byte order mark"),
        (GOOD.encode() + '{"messages": "é"}'.encode("latin-1"), "line 2: not UTF-8 at byte 15"),
        ("[" * 100_000, "line 1: (JSON nested too deeply|not JSON)"),
        ("", "chats.jsonl is empty"),
    ],
)
def test_bad_lines_are_named(write, content, message):
    path = write(content)
    with pytest.raises(ValueError, match=message) as caught:
        read_chat_jsonl(path)
    assert str(caught.value).startswith(str(path))


def test_no_file(tmp_path):
    with pytest.raises(FileNotFoundError, match=r"no file .*absent\.jsonl of conversations"):
        read_chat_jsonl(tmp_path / "absent.jsonl")
