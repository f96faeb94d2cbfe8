"""Replies over real HTTP: what is sent, what is tried again, what ends with which message."""

import builtins
import json
import socket
import time
import traceback

import pytest
from chat_server import after, completion, error, serve

from sepo_jax.evaluation.endpoint import KEY_VARIABLE, Endpoint, EndpointError, _Asker, ask

openai = pytest.importorskip("openai")
KEY = "sk-secret-0123456789"
PROMPT = [{"role": "user", "content": "Say something."}]


def prompts(count):
    return [[{"role": "user", "content": str(number)}] for number in range(count)]


def echo(request):
    return completion(f"you said {request['messages'][0]['content']}")


@pytest.fixture(autouse=True)
def short_pauses(monkeypatch):
    """The client's pauses between tries, which start at half a second, take no time here."""
    from openai import _base_client

    for name in ("INITIAL_RETRY_DELAY", "MAX_RETRY_DELAY"):
        monkeypatch.setattr(_base_client, name, 0.01)
    monkeypatch.setenv(KEY_VARIABLE, KEY)


def test_replies_in_order_and_what_is_sent():
    with serve(echo, pause=0.05) as served:
        endpoint = Endpoint(served.url, "m", temperature=0.5, max_tokens=7, concurrency=3)
        assert ask(endpoint, prompts(10)) == [f"you said {number}" for number in range(10)]
    assert 2 <= served.most_at_once <= 3
    assert served.requests[0] == {
        "model": "m",
        "messages": [{"role": "user", "content": "0"}],
        "temperature": 0.5,
        "max_tokens": 7,
    }
    assert {headers["authorization"] for headers in served.headers} == {f"Bearer {KEY}"}
    assert ask(endpoint, []) == []


def test_no_key_is_needed(monkeypatch):
    monkeypatch.delenv(KEY_VARIABLE)
    with serve(lambda _: completion(None)) as served:
        assert ask(Endpoint(served.url, "m"), [PROMPT]) == [""]


@pytest.mark.parametrize("status", [500, 503, 429])
def test_two_failures_then_an_answer(status):
    with serve(after(2, error(status), echo)) as served:
        assert ask(Endpoint(served.url, "m", retries=2), [PROMPT]) == ["you said Say something."]
    assert len(served.requests) == 3


def test_failures_of_every_try():
    with serve(after(3, error(500, "out of memory"), echo)) as served:
        with pytest.raises(EndpointError, match=r"answered 500 in 3 tries: .*out of memory"):
            ask(Endpoint(served.url, "m", retries=2), prompts(5))
        assert len(served.requests) == 3  # nothing else was asked


def test_a_server_that_hangs():
    with serve(echo, pause=60) as served:
        begin = time.perf_counter()
        with pytest.raises(EndpointError, match=r"no answer within 1 s in 2 tries"):
            ask(Endpoint(served.url, "m", timeout=1.0, retries=1), prompts(3))
        assert time.perf_counter() - begin < 30
        assert len(served.requests) == 2


def test_a_few_prompts_without_an_answer_are_none():
    def sometimes(request):
        return error(500) if request["messages"][0]["content"] == "7" else echo(request)

    with serve(sometimes) as served:
        replies = ask(Endpoint(served.url, "m", retries=1), prompts(20))
    assert [number for number, reply in enumerate(replies) if reply is None] == [7]
    assert len(served.requests) == 21


def test_many_prompts_without_an_answer_end_it():
    def only_the_first(request):
        return echo(request) if request["messages"][0]["content"] == "0" else error(500)

    with serve(only_the_first) as served:
        with pytest.raises(EndpointError, match=r"3 of 20 prompts got no answer; the last: .*500"):
            ask(Endpoint(served.url, "m", retries=0, concurrency=1), prompts(20))
        assert len(served.requests) == 4  # the first, and three others


def test_a_refusal_ends_it():
    def refuses_the_last(request):
        refused = request["messages"][0]["content"] == "3"
        return error(400, "too long") if refused else echo(request)

    with (
        serve(refuses_the_last) as served,
        pytest.raises(EndpointError, match=r"refuses the request \(400\): .*too long"),
    ):
        ask(Endpoint(served.url, "m"), prompts(4))


@pytest.mark.parametrize(
    "body",
    ["<html>It works!</html>", "", "[]", "{}", '{"choices": []}', '{"choices": [{"message": 3}]}',
     '{"choices": [{"message": {"content": 3}}]}', "null", "[" * 100_000, '{"choices": NaN}'],
    ids=lambda body: body[:40],
)  # fmt: skip
def test_garbage_is_named(body):
    with (
        serve(lambda _: (200, body)) as served,
        pytest.raises(EndpointError, match=r"something else than a chat completion.*base URL"),
    ):
        ask(Endpoint(served.url, "m"), prompts(2))


def test_a_wrong_key_is_never_shown():
    answer = error(401, f"Incorrect API key provided: {KEY}")
    with serve(lambda _: answer) as served:
        with pytest.raises(EndpointError, match=r"wants a key \(401\): set OPENAI_API_KEY") as info:
            ask(Endpoint(served.url, "m"), prompts(2))
        assert len(served.requests) == 1
    assert KEY not in "".join(traceback.format_exception(info.value))
    with (
        serve(lambda _: error(400, f"bad {KEY}")) as served,
        pytest.raises(EndpointError, match=r"bad \*\*\*") as info,
    ):
        ask(Endpoint(served.url, "m"), prompts(2))
    assert KEY not in "".join(traceback.format_exception(info.value))


def test_a_missing_key_is_said(monkeypatch):
    monkeypatch.delenv(KEY_VARIABLE)
    with (
        serve(lambda _: error(401)) as served,
        pytest.raises(EndpointError, match="set OPENAI_API_KEY; it is not set"),
    ):
        ask(Endpoint(served.url, "m"), [PROMPT])


def test_a_wrong_path():
    with serve(echo) as served:
        wrong = served.url.removesuffix("/v1")
        with pytest.raises(EndpointError, match=r"404.*check the URL, which mostly ends in /v1"):
            ask(Endpoint(wrong, "m"), [PROMPT])


def test_a_wrong_host():
    with socket.socket() as unused:
        unused.bind(("127.0.0.1", 0))
        url = f"http://127.0.0.1:{unused.getsockname()[1]}/v1"
    with pytest.raises(EndpointError, match=f"no connection to {url} in 2 tries"):
        ask(Endpoint(url, "m", retries=1), [PROMPT])


def test_models_that_know_the_limit_by_its_newer_name():
    def newer(request):
        if "max_tokens" in request:
            return error(400, "Unsupported parameter: use 'max_completion_tokens' instead.")
        return completion(json.dumps(request["max_completion_tokens"]))

    with serve(newer) as served:
        assert ask(Endpoint(served.url, "m", max_tokens=9), prompts(3)) == ["9"] * 3
    assert len(served.requests) == 4


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"url": "localhost:8000/v1"}, "no URL; give one such as http://localhost:8000/v1"),
        ({"url": "http://"}, "no URL"),
        ({"url": f"http://me:{KEY}@host/v1"}, "put no key into the endpoint's URL"),
        ({"model": ""}, "model is empty"),
        ({"max_tokens": 0}, "max_tokens must be a whole number from 1 on, not 0"),
        ({"concurrency": 0}, "concurrency must be"),
        ({"retries": -1}, "retries must be a whole number from 0 on"),
        ({"timeout": 0.0}, "timeout must be seconds above 0"),
        ({"temperature": -1.0}, "temperature must be at least 0"),
    ],
)
def test_bad_settings(change, message):
    with pytest.raises(ValueError, match=message) as info:
        Endpoint(**{"url": "http://host/v1", "model": "m", **change})
    assert KEY not in str(info.value)


def test_without_the_package(monkeypatch):
    real = builtins.__import__

    def missing(name, *arguments, **options):
        if name == "openai":
            raise ImportError(name)
        return real(name, *arguments, **options)

    monkeypatch.setattr(builtins, "__import__", missing)
    with pytest.raises(ImportError, match=r"pip install 'sepo_jax\[endpoint\]'"):
        ask(Endpoint("http://host/v1", "m"), [PROMPT])


def test_the_client_is_closed():
    asker = _Asker(Endpoint("http://host/v1", "m"), openai)
    asker.close()
    assert asker._client.is_closed()
