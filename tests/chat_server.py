"""A local server of chat completions, whose answers a test scripts."""

import contextlib
import json
import threading
from collections.abc import Callable, Iterator
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer

import numpy as np

from sepo_jax.domains.matrix_game import reply
from sepo_jax.games.solve import solve_zero_sum

Answer = tuple[int, str]
"""HTTP status and body."""


def completion(text: str | None) -> Answer:
    """What a server answers whose model says `text`."""
    message = {"role": "assistant", "content": text}
    body = {
        "id": "1",
        "object": "chat.completion",
        "created": 0,
        "model": "scripted",
        "choices": [{"index": 0, "finish_reason": "stop", "message": message}],
    }
    return 200, json.dumps(body)


def error(status: int, message: str = "no") -> Answer:
    """What a server answers that does not."""
    return status, json.dumps({"error": {"message": message}})


def oracle(request: dict) -> Answer:
    """The exact equilibrium of the payoff table that stands in the prompt."""
    rows = request["messages"][-1]["content"].splitlines()[3:]
    table = np.array([row.partition(": ")[2].split() for row in rows], float)
    solution = solve_zero_sum(table)
    return completion(f"The equilibrium is:\n{reply(solution.row, solution.col)}")


class Served:
    """The server's address and what it was asked.

    Attributes:
      url: base URL. requests: bodies in the order of arrival. headers: of the same requests.
      most_at_once: most requests that were under way together.
    """

    def __init__(self, url: str):
        self.url = url
        self.requests: list[dict] = []
        self.headers: list[dict[str, str]] = []
        self.most_at_once = 0
        self.under_way = 0
        self.lock = threading.Lock()


@contextlib.contextmanager
def serve(answer: Callable[[dict], Answer], pause: float = 0.0) -> Iterator[Served]:
    """Serves POST /v1/chat/completions on this machine until the block ends.

    Args:
      answer: request body -> status and body; called in the threads of the requests.
      pause: seconds that every answer takes; the end of the block cuts it short.
    """
    ended = threading.Event()

    class Handler(BaseHTTPRequestHandler):
        def do_POST(self):
            size = int(self.headers["Content-Length"])
            request = json.loads(self.rfile.read(size))
            if self.path != "/v1/chat/completions":
                return self.send(*error(404, f"no route {self.path}"))
            with served.lock:
                served.requests.append(request)
                served.headers.append({k.lower(): v for k, v in self.headers.items()})
                served.under_way += 1
                served.most_at_once = max(served.most_at_once, served.under_way)
            ended.wait(pause)
            with served.lock:
                served.under_way -= 1
            return self.send(*answer(request))

        def send(self, status, body):
            data = body.encode()
            with contextlib.suppress(OSError):  # the client may have given up
                self.send_response(status)
                self.send_header("Content-Type", "application/json")
                self.send_header("Content-Length", str(len(data)))
                self.end_headers()
                self.wfile.write(data)

        def log_message(self, *arguments):
            pass

    server = ThreadingHTTPServer(("127.0.0.1", 0), Handler)
    server.daemon_threads = True
    served = Served(f"http://127.0.0.1:{server.server_port}/v1")
    thread = threading.Thread(target=server.serve_forever, kwargs={"poll_interval": 0.02})
    thread.start()
    try:
        yield served
    finally:
        ended.set()
        server.shutdown()
        thread.join()
        server.server_close()


def after(failures: int, failure: Answer, answer: Callable[[dict], Answer]):
    """Answers that fail so many times in all, and then are those of `answer`."""
    left, lock = [failures], threading.Lock()

    def respond(request: dict) -> Answer:
        with lock:
            left[0] -= 1
            failing = left[0] >= 0
        return failure if failing else answer(request)

    return respond
