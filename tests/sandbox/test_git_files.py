"""A repository that is written without git is one to git."""

import shutil
import subprocess

import pytest

from sepo_jax.sandbox.git_files import git_directory

FILES = {
    "README.md": "# naïve ☃\n",
    "b.py": "1\n",
    "b/c.py": "",
    "b/d/e.txt": "no line end",
    "b-.py": "x\n",
    "z" * 200: "long name\n",
}
ENVIRONMENT = {
    "PATH": "/usr/local/bin:/usr/bin:/bin",
    "GIT_CONFIG_GLOBAL": "/dev/null",
    "GIT_CONFIG_NOSYSTEM": "1",
}


@pytest.fixture
def git(tmp_path):
    """Runs git in a directory that holds the files and their repository."""
    if shutil.which("git") is None:
        pytest.skip("git is not installed")
    for path, text in FILES.items():
        (tmp_path / path).parent.mkdir(parents=True, exist_ok=True)
        (tmp_path / path).write_text(text, encoding="utf-8")
    for path, data in git_directory(FILES, "Begin").items():
        (tmp_path / ".git" / path).parent.mkdir(parents=True, exist_ok=True)
        (tmp_path / ".git" / path).write_bytes(data)

    def run(*arguments):
        done = subprocess.run(
            ["git", "-C", tmp_path, *arguments],
            capture_output=True, text=True, check=True, env=ENVIRONMENT, timeout=60,
        )  # fmt: skip
        return done.stdout

    return run


def test_git_finds_one_commit_and_nothing_changed(git, tmp_path):
    git("fsck", "--full", "--strict")
    assert git("status", "--porcelain") == "" and git("diff") == ""
    assert git("log", "--format=%s %an %D").strip() == "Begin maintainer HEAD -> main"
    assert set(git("-c", "core.quotePath=false", "ls-files").splitlines()) == set(FILES)
    assert git("ls-tree", "-r", "--name-only", "HEAD").splitlines() == sorted(FILES)


def test_git_goes_on_from_there(git, tmp_path):
    (tmp_path / "b.py").write_text("2\n")
    assert "-1\n+2" in git("diff")
    git("-c", "user.name=a", "-c", "user.email=b", "commit", "-qam", "second")
    assert git("rev-list", "--count", "HEAD").strip() == "2"
    git("checkout", "-q", "HEAD~1")
    assert (tmp_path / "b.py").read_text() == "1\n"


def test_equal_files_give_equal_repositories():
    assert git_directory(FILES) == git_directory(dict(reversed(FILES.items())))
    assert git_directory(FILES) != git_directory(FILES | {"b.py": "2\n"})
