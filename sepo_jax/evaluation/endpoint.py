"""Replies of a model behind an OpenAI-compatible endpoint (`/chat/completions`).

    endpoint = Endpoint("http://localhost:8000/v1", "qwen3-4b")
    replies = ask(endpoint, prompts)          # a text for each, None where every try failed

Needs the openai package. The key is read from the environment variable OPENAI_API_KEY and goes
nowhere but into the request; servers that ask for none need none.
"""

import contextlib
import json
import math
import os
import threading
from collections.abc import Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from types import ModuleType
from typing import Any
from urllib.parse import urlsplit

from tqdm import tqdm

HINT = "scoring an endpoint needs the openai package: pip install 'sepo_jax[endpoint]'"
KEY_VARIABLE = "OPENAI_API_KEY"
MOST_FAILED = 0.1
_NO_KEY = "none"  # the client wants one; servers without keys do not look at it
_SHOWN = 300


class EndpointError(OSError):
    """An endpoint that cannot be asked: wrong URL, key or model, or no reply that can be read."""


@dataclass(frozen=True)
class Endpoint:
    """Where and how to ask.

    Attributes:
      url: base URL, the part before /chat/completions.
      model: name of the model as the server knows it.
      temperature: of sampling; 0 for the most probable tokens.
      max_tokens: most tokens of a reply.
      concurrency: requests under way at once.
      timeout: seconds without a byte from the server that end a try; a server that sends blanks
        while a request waits in its queue is waited for.
      retries: further tries, with growing pauses, after a time-out, a lost connection, a server
        error or "too many requests".

    Raises:
      ValueError: a URL without http(s) and host, no model, numbers out of range.
    """

    url: str
    model: str
    temperature: float = 0.0
    max_tokens: int = 1024
    concurrency: int = 8
    timeout: float = 120.0
    retries: int = 4

    def __post_init__(self):
        parts = urlsplit(self.url)
        if parts.scheme not in ("http", "https") or not parts.netloc:
            raise ValueError(
                f"endpoint {self.url!r} is no URL; give one such as http://localhost:8000/v1"
            )
        if parts.username or parts.password:
            raise ValueError(f"put no key into the endpoint's URL; set {KEY_VARIABLE}")
        if not self.model:
            raise ValueError("model is empty; name the model that the endpoint is to run")
        for name, least in (("max_tokens", 1), ("concurrency", 1), ("retries", 0)):
            value = getattr(self, name)
            if not isinstance(value, int) or value < least:
                raise ValueError(f"{name} must be a whole number from {least} on, not {value!r}")
        if not 0 < self.timeout < math.inf:
            raise ValueError(f"timeout must be seconds above 0, not {self.timeout}")
        if not 0 <= self.temperature < math.inf:
            raise ValueError(f"temperature must be at least 0, not {self.temperature}")


def ask(
    endpoint: Endpoint, prompts: Sequence[Sequence[Mapping[str, str]]], *, progress: str = ""
) -> list[str | None]:
    """One reply to each prompt.

    The first prompt is asked alone, so that a wrong URL, key or model ends at once.

    Args:
      endpoint: where to ask.
      prompts: chats, lists of {"role", "content"}.
      progress: label of a progress bar; "" for none.

    Returns:
      Texts in the order of the prompts, "" where a message has no text; None where a prompt got no
      answer in all its tries.

    Raises:
      ImportError: the openai package is missing.
      EndpointError: the first prompt gets no answer, a request is refused, or more than a tenth of
        the prompts get no answer; what is no chat completion is none.
    """
    if not prompts:
        return []
    with contextlib.ExitStack() as stack:
        bar = stack.enter_context(tqdm(total=len(prompts), desc=progress, disable=not progress))
        asker = stack.enter_context(contextlib.closing(_Asker(endpoint, _openai())))
        first = asker.reply(prompts[0])
        bar.update()
        rest = _in_parallel(asker, prompts[1:], len(prompts), bar)
    return [first, *rest]


def _in_parallel(asker: "_Asker", prompts, total: int, bar) -> list[str | None]:
    """Replies to the other prompts; what has not begun is left when one of them ends it all."""
    with ThreadPoolExecutor(asker.endpoint.concurrency) as threads:
        tasks = [threads.submit(asker.reply_or_none, prompt, total) for prompt in prompts]
        for task in tasks:
            task.add_done_callback(lambda _: bar.update())
        try:
            return [task.result() for task in tasks]
        except BaseException:
            asker.end = asker.end or EndpointError("interrupted")
            threads.shutdown(wait=False, cancel_futures=True)
            raise


def _openai() -> ModuleType:
    try:
        import openai
    except ImportError as error:
        raise ImportError(HINT) from error
    return openai


class _NoAnswer(EndpointError):
    """Every try timed out, lost its connection or met a server error, or the answer is garbage."""


class _Asker:
    """A client and what it has learned of its server; used by several threads."""

    def __init__(self, endpoint: Endpoint, openai: ModuleType):
        self.endpoint, self._openai = endpoint, openai
        self._key = os.environ.get(KEY_VARIABLE) or _NO_KEY
        self._client = openai.OpenAI(
            api_key=self._key,
            base_url=endpoint.url,
            timeout=endpoint.timeout,
            max_retries=endpoint.retries,
        )
        # Newer models of OpenAI know the limit by another name; all others by this one.
        self._limit = "max_tokens"
        self._failed, self._lock = 0, threading.Lock()
        self.end: EndpointError | None = None  # what ended it; nothing is asked any more

    def close(self) -> None:
        self._client.close()

    def reply_or_none(self, prompt, total: int) -> str | None:
        """As `reply`, None in place of `_NoAnswer` until there are too many of them."""
        if self.end is not None:
            raise self.end
        try:
            return self.reply(prompt)
        except _NoAnswer as error:
            with self._lock:
                self._failed += 1
                failed = self._failed
            if failed <= max(1, MOST_FAILED * total):
                return None
            fault = EndpointError(f"{failed} of {total} prompts got no answer; the last: {error}")
        except EndpointError as error:
            fault = error
        self.end = self.end or fault
        raise self.end

    def reply(self, prompt) -> str:
        """The text of one reply; EndpointError, whose cause may hold the key and is dropped."""
        openai = self._openai
        try:
            return self._text(self._request(prompt))
        except (openai.APITimeoutError, openai.APIConnectionError, openai.APIStatusError) as error:
            fault = self._fault(error)
        raise fault

    def _request(self, prompt) -> str:
        """Body of the server's response."""
        endpoint = self.endpoint
        try:
            response = self._client.chat.completions.with_raw_response.create(
                model=endpoint.model,
                messages=list(prompt),
                temperature=endpoint.temperature,
                **{self._limit: endpoint.max_tokens},
            )
        except self._openai.BadRequestError as error:
            newer = "max_completion_tokens"
            if self._limit == newer or newer not in str(error):
                raise
            self._limit = newer
            return self._request(prompt)
        return response.http_response.text

    def _text(self, body: str) -> str:
        try:
            content: Any = json.loads(body)["choices"][0]["message"]["content"]
        except (ValueError, LookupError, TypeError, RecursionError):
            content = ()
        if content is not None and not isinstance(content, str):
            raise _NoAnswer(
                f"{self.endpoint.url} answers with something else than a chat completion: "
                f"{self._shown(body)!r}. Is it the base URL, which mostly ends in /v1?"
            )
        return content or ""

    def _fault(self, error: Exception) -> EndpointError:
        """What to tell the user of an error of the client."""
        openai, endpoint = self._openai, self.endpoint
        tries = f"{endpoint.retries + 1} tries"
        if isinstance(error, openai.APITimeoutError):
            return _NoAnswer(
                f"{endpoint.url} gave no answer within {endpoint.timeout:g} s in {tries}"
            )
        if isinstance(error, openai.APIConnectionError):
            return _NoAnswer(
                f"no connection to {endpoint.url} in {tries} "
                f"({self._shown(error.__cause__ or error)}): is the URL right and the server up?"
            )
        status, said = error.status_code, self._shown(error)
        if status in (401, 403):
            known = "the key in it is refused" if self._key != _NO_KEY else "it is not set"
            return EndpointError(
                f"{endpoint.url} wants a key ({status}): set {KEY_VARIABLE}; {known}"
            )
        if status == 404:
            return EndpointError(
                f"{endpoint.url} has no chat completions of model {endpoint.model!r} (404: {said}):"
                " check the URL, which mostly ends in /v1, and the name of the model"
            )
        if status in (408, 409, 429) or status >= 500:
            return _NoAnswer(f"{endpoint.url} answered {status} in {tries}: {said}")
        return EndpointError(f"{endpoint.url} refuses the request ({status}): {said}")

    def _shown(self, said: object) -> str:
        """A server's words in one line, cut, without the key."""
        text = " ".join(str(said).split())
        if self._key != _NO_KEY:
            text = text.replace(self._key, "***")
        return text if len(text) <= _SHOWN else text[:_SHOWN] + "..."
