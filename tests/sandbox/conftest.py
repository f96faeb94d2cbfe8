"""Hard time limits, a place for scratch directories, and the pools of processes."""

import tempfile

import pytest
from sandbox.pools import PROCESS_POOLS, time_limit


@pytest.fixture
def watchdog(request):
    """A hard limit of 60 s, or of @pytest.mark.parametrize("watchdog", [n], indirect=True)."""
    with time_limit(getattr(request, "param", 60)):
        yield


@pytest.fixture
def place(tmp_path, monkeypatch):
    """Where this test's scratch directories are, and nobody else's."""
    monkeypatch.setattr(tempfile, "tempdir", str(tmp_path))
    return tmp_path


@pytest.fixture(params=PROCESS_POOLS)
def process_pool(request, place):
    """Makes a pool of processes."""
    return PROCESS_POOLS[request.param]
