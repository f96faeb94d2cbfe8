"""Hard time limits, a place for scratch directories, and every kind of pool."""

import tempfile

import pytest
from sandbox import toys
from sandbox.pools import POOLS, PROCESS_POOLS, WORKER_POOLS, Client, time_limit


@pytest.fixture
def watchdog(request):
    """A hard limit of 60 s, of 180 with Ray, or as parametrised (indirect=True)."""
    parameters = request.node.callspec.params if hasattr(request.node, "callspec") else {}
    seconds = 180 if "ray" in parameters.values() else 60
    with time_limit(getattr(request, "param", seconds)):
        yield


@pytest.fixture(scope="module")
def ray_place(tmp_path_factory):
    """A Ray cluster for a module; where its actors have their scratch directories."""
    pytest.importorskip("ray", reason="the extra `ray` is not installed")
    from sepo_jax.sandbox import ray_cluster

    place = tmp_path_factory.mktemp("ray")
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(tempfile, "tempdir", "/tmp")  # Ray's sockets need a short path
        patch.setenv("TMPDIR", str(place))
        ray_cluster.connect(None, 2)
    yield place
    ray_cluster.disconnect()


@pytest.fixture
def place(request, tmp_path, monkeypatch):
    """Where this test's scratch directories are, and nobody else's."""
    monkeypatch.setattr(tempfile, "tempdir", str(tmp_path))
    parameters = request.node.callspec.params if hasattr(request.node, "callspec") else {}
    return request.getfixturevalue("ray_place") if "ray" in parameters.values() else tmp_path


def of_each_kind(kinds):
    """Parameters of a fixture; those of Ray are slow."""
    slow = {"ray": pytest.mark.slow}
    return [pytest.param(kind, marks=slow.get(kind, ())) for kind in kinds]


@pytest.fixture(params=PROCESS_POOLS)
def process_pool(request, place):
    """Makes a pool of processes of this one."""
    return PROCESS_POOLS[request.param]


@pytest.fixture(params=of_each_kind(WORKER_POOLS))
def worker_pool(request, place):
    """Makes a pool of processes, wherever they are."""
    return WORKER_POOLS[request.param]


@pytest.fixture(params=of_each_kind(POOLS))
def make_client(request, place):
    """Makes a client of a pool of any kind; the pools are closed at the end."""
    made = []

    def make(factory=toys.Commanded, **options):
        made.append(POOLS[request.param](factory, **options))
        return Client(made[-1])

    yield make
    for pool in made:
        pool.close()
    assert list(place.iterdir()) == []


def pytest_collection_modifyitems(items):
    """Tests with Ray come last in their file: other tests count the children of this process."""
    files = {path: number for number, path in enumerate(dict.fromkeys(i.path for i in items))}

    def has_ray(item):
        return hasattr(item, "callspec") and "ray" in item.callspec.id.split("-")

    items.sort(key=lambda item: (files[item.path], has_ray(item)))
