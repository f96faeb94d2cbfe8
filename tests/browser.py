"""Pages opened in a real browser: Chromium without a window, spoken to over its debugging pipe."""

import contextlib
import json
import os
import shutil
import subprocess
import time
from itertools import count

import pytest

NAMES = ("chromium", "chromium-browser", "google-chrome", "chrome")
KEYS = {"Enter": 13, "ArrowLeft": 37, "ArrowUp": 38, "ArrowRight": 39, "ArrowDown": 40, "Tab": 9}
_SECONDS = 120  # for the browser to answer; a busy machine needs some


class Browser:
    """One page of a running browser."""

    def __init__(self, to, answers):
        self._to, self._answers, self._numbers = to, answers, count(1)
        self._held, self._session = b"", None
        self.requests, self.errors = [], []  # addresses asked for; what scripts threw or reported
        target = self._call("Target.createTarget", url="about:blank")["targetId"]
        attached = self._call("Target.attachToTarget", targetId=target, flatten=True)
        self._session = attached["sessionId"]
        for domain in ("Page", "Runtime", "Network", "Log"):
            self._call(f"{domain}.enable")

    def open(self, path, width=1600, height=1000, dark=False):
        """Opens a file and waits until it is loaded."""
        size = {"width": width, "height": height, "deviceScaleFactor": 1, "mobile": False}
        self._call("Emulation.setDeviceMetricsOverride", **size)
        scheme = {"name": "prefers-color-scheme", "value": "dark" if dark else "light"}
        self._call("Emulation.setEmulatedMedia", features=[scheme])
        self._call("Page.navigate", url=f"file://{path}")
        end = time.monotonic() + _SECONDS
        loaded = "location.protocol === 'file:' && document.readyState === 'complete'"
        while not self.value(loaded):
            assert time.monotonic() < end, f"{path} was not loaded in {_SECONDS} s"
            time.sleep(0.05)

    def value(self, expression):
        """What a JavaScript expression gives, as JSON values."""
        found = self._call("Runtime.evaluate", expression=expression, returnByValue=True)
        assert "exceptionDetails" not in found, found["exceptionDetails"]
        return found["result"].get("value")

    def middle(self, selector):
        """Middle of an element, scrolled into view, in pixels of the window."""
        found = json.dumps(selector)
        return self.value(
            f"(() => {{const e = document.querySelector({found}); "
            "e.scrollIntoView({block: 'center', inline: 'center'}); "
            "const b = e.getBoundingClientRect(); "
            "return [b.x + b.width / 2, b.y + b.height / 2]})()"
        )

    def point(self, x, y):
        """Moves the mouse."""
        self._call("Input.dispatchMouseEvent", type="mouseMoved", x=x, y=y)

    def click(self, selector):
        """Clicks the middle of an element with the mouse."""
        x, y = self.middle(selector)
        self.point(x, y)
        for kind in ("mousePressed", "mouseReleased"):
            press = {"x": x, "y": y, "button": "left", "clickCount": 1}
            self._call("Input.dispatchMouseEvent", type=kind, **press)

    def key(self, name):
        """Presses a key."""
        for kind in ("keyDown", "keyUp"):
            code = {"key": name, "code": name, "windowsVirtualKeyCode": KEYS[name]}
            self._call("Input.dispatchKeyEvent", type=kind, **code)

    def _call(self, method, **parameters):
        number = next(self._numbers)
        message = {"id": number, "method": method, "params": parameters}
        if self._session:
            message["sessionId"] = self._session
        os.write(self._to, json.dumps(message).encode() + b"\0")
        while True:
            answer = self._read()
            if answer.get("id") == number:
                assert "error" not in answer, answer
                return answer["result"]
            self._note(answer.get("method"), answer.get("params"))

    def _note(self, method, parameters):
        if method == "Network.requestWillBeSent":
            self.requests.append(parameters["request"]["url"])
        elif method == "Runtime.exceptionThrown":
            self.errors.append(parameters["exceptionDetails"])
        elif method == "Log.entryAdded" and parameters["entry"]["level"] == "error":
            self.errors.append(parameters["entry"]["text"])

    def _read(self):
        while b"\0" not in self._held:
            read = os.read(self._answers, 1 << 16)
            assert read, "the browser ended"
            self._held += read
        message, _, self._held = self._held.partition(b"\0")
        return json.loads(message)


@contextlib.contextmanager
def browser(directory):
    """A Browser whose files lie in `directory`; skips the test where none is installed."""
    program = next(filter(None, map(shutil.which, NAMES)), None)
    if program is None:
        pytest.skip(f"no browser is installed: none of {', '.join(NAMES)}")
    to_read, to_write = os.pipe()
    from_read, from_write = os.pipe()
    options = (
        "--headless=new --no-sandbox --disable-gpu --disable-dev-shm-usage --no-first-run "
        "--disable-background-networking --remote-debugging-pipe"
    )
    # The browser reads commands from descriptor 3 and answers on 4.
    command = f'exec "$0" {options} --user-data-dir="$1" 3<&{to_read} 4>&{from_write}'
    process = subprocess.Popen(
        ["bash", "-c", command, program, str(directory / "profile")],
        pass_fds=(to_read, from_write),
        stdout=subprocess.DEVNULL,
        stderr=subprocess.DEVNULL,
        start_new_session=True,
    )
    os.close(to_read)
    os.close(from_write)
    try:
        yield Browser(to_write, from_read)
    finally:
        os.close(to_write)  # at which it ends
        os.close(from_read)
        try:
            process.wait(20)
        except subprocess.TimeoutExpired:
            os.killpg(process.pid, 9)
            process.wait()
