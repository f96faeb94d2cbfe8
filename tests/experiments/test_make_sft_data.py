"""Supervised data in files: how it is dealt, what is counted, and that it is read again."""

import json
import subprocess
import sys
from collections import Counter
from itertools import islice, pairwise
from pathlib import Path

import pytest
from script_modules import script_module

from sepo_jax.domains import Kuhn
from sepo_jax.domains.chat_files import read_chat_jsonl
from sepo_jax.domains.traces import Trace, play_experts
from sepo_jax.policy.formats.staging import staged

ROOT = Path(__file__).parents[2]
files = script_module("sft_files")
statistics = script_module("sft_statistics")
sft_page = script_module("sft_page")


def run(*arguments):
    command = [sys.executable, str(ROOT / "experiments" / "make_sft_data.py"), *arguments]
    return subprocess.run(command, cwd=ROOT, capture_output=True, text=True, timeout=600)


def trace(episode, round_=0, *, expert="A", opponent="X", word="BET", payoff=1.0, prompt="hello"):
    message = {"role": "user", "content": prompt}
    return Trace((message,), f"why\n{word}", word, expert, opponent, episode, round_, payoff)


class TwoPlayers:
    """What the figures read of a domain."""

    name = "toy"
    pools = {"train": {"X": None, "Y": None}, "exploiter": {"Y": None}}  # noqa: RUF012
    experts = {"A": (0.75, None), "B": (0.25, None)}  # noqa: RUF012


@pytest.mark.parametrize("wanted", [1, 17, 200])
def test_passes_are_whole_and_no_more_than_needed(wanted):
    domain = Kuhn(hands=6)
    traces = list(files.play_passes(domain, wanted, 3, rationale=True))
    met = Counter({(t.opponent, t.episode) for t in traces})
    episodes = Counter(opponent for opponent, _ in met)
    assert len(set(episodes.values())) == 1 and len(episodes) == 5
    assert len(traces) >= wanted
    assert sum(t.episode < traces[-1].episode - 4 for t in traces) < wanted
    assert traces == list(islice(play_experts(domain, 3, reason=domain.reason), len(traces)))
    bare = list(files.play_passes(domain, wanted, 3, rationale=False))
    assert [t.reply for t in bare] == [t.word for t in traces]


def test_a_domain_without_reasons():
    class Silent(Kuhn):
        reason = property()

    with pytest.raises(ValueError, match=r"kuhn has no reason\(view, word\).*--rationale=false"):
        list(files.play_passes(Silent(), 5, 0, rationale=True))
    assert len(list(files.play_passes(Silent(), 5, 0, rationale=False))) >= 5


def test_one_pass_in_five_is_held_out():
    domain = Kuhn()
    traces = list(islice(play_experts(domain, 1), 3000))
    whole = [t for t in traces if t.episode < 5 * 400]
    split = files.split_passes(domain, whole, seed=42)
    passes = [{t.episode // 5 for t in part} for part in split]
    assert not passes[0] & passes[1] and passes[0] | passes[1] == set(range(400))
    assert len(passes[1]) == 80
    for part, dealt in zip(split, passes, strict=True):
        assert part == [t for t in whole if t.episode // 5 in dealt]
        met = Counter(opponent for opponent, _ in {(t.opponent, t.episode) for t in part})
        assert len(set(met.values())) == 1 and len(met) == 5
    assert files.split_passes(domain, whole, seed=42) == split
    assert files.split_passes(domain, whole, seed=43) != split
    few = [t for t in whole if t.episode < 10]
    assert {t.episode // 5 for t in files.split_passes(domain, few, 0).validation} in ({0}, {1})
    with pytest.raises(ValueError, match=r"one pass over its 5 opponents.*raise --decisions"):
        files.split_passes(domain, [t for t in few if t.episode < 5], 0)


def test_figures_by_hand():
    training = [
        trace(0, 0, payoff=1.0),
        trace(0, 1, payoff=-1.0, prompt="hello again"),
        trace(0, 1, payoff=-1.0, word="CALL"),  # the second decision of one round
        trace(1, 0, expert="B", opponent="Y", payoff=2.0),
    ]
    validation = [trace(2, 0, payoff=3.0), trace(3, 0, opponent="Y", prompt="new", word="CALL")]
    figures = statistics.describe_game(TwoPlayers(), files.Split(training, validation))
    assert figures["decisions"] == {"training": 4, "validation": 2}
    assert figures["episodes"] == {"training": 2, "validation": 2}
    assert figures["experts"] == {
        "A": {"weight": 0.75, "episodes": 3, "decisions": 5},
        "B": {"weight": 0.25, "episodes": 1, "decisions": 1},
    }
    assert figures["opponents"] == {
        "X": {"pools": ["train"], "episodes": 2, "decisions": 4},
        "Y": {"pools": ["train", "exploiter"], "episodes": 2, "decisions": 2},
    }
    assert figures["actions"] == {"BET": 4, "CALL": 2}
    assert figures["rounds"] == {"1": 4, "2": 2}
    # hello (4 times), hello again, new: 3 prompts of 6 decisions; of hello and new, hello is known.
    assert figures["duplicate_prompts"] == 0.5
    assert figures["validation_prompts_in_training"] == 0.5
    # A against X: rounds of 1, -1 and 3; a round of two decisions counts once.
    assert figures["mean_payoff"] == {
        "A": {"X": 1.0, "Y": 1.0},
        "B": {"Y": 2.0},
        "all experts": {"X": 1.0, "Y": 1.5},
    }
    lengths = figures["prompt_characters"]
    assert (lengths["min"], lengths["median"], lengths["max"]) == (3, 5.0, 11)
    assert lengths["mean"] == pytest.approx((4 * 5 + 11 + 3) / 6)
    histogram = lengths["histogram"]
    assert dict(zip(histogram["edges"], histogram["counts"], strict=False)) == {
        **dict.fromkeys(range(3, 12), 0),
        3: 1,
        5: 4,
        11: 1,
    }
    assert len(histogram["edges"]) == len(histogram["counts"]) + 1


@pytest.mark.parametrize("values", [[7], [0, 1000], list(range(100)), [5] * 9 + [6]])
def test_every_length_is_in_a_bin(values):
    histogram = statistics._lengths(values)["histogram"]
    edges, counts = histogram["edges"], histogram["counts"]
    assert sum(counts) == len(values) and len(counts) <= 24 + 1
    assert len({b - a for a, b in pairwise(edges)}) == 1
    for low, high, count in zip(edges, edges[1:], counts, strict=False):
        assert count == sum(low <= value < high for value in values)


def test_a_page_is_self_contained_and_shows_every_figure():
    split = files.Split([trace(0), trace(1, opponent="Y")], [trace(2), trace(3, opponent="Y")])
    figures = statistics.describe_game(TwoPlayers(), split)
    content = {"settings": {"seed": 42}, "games": {"toy": figures}}
    samples = {"toy": ([{"role": "user", "content": "<b>me & you</b>"}], "why\nBET")}
    text = sft_page.render_page(content, samples)
    assert text == sft_page.render_page(content, samples)
    assert "http" not in text and "<script" not in text and "<b>me" not in text
    assert "&lt;b&gt;me &amp; you&lt;/b&gt;" in text and text.count("<svg") == 4
    for shown in ("75.0%", "train, exploiter", "all experts", "no episode is in both"):
        assert shown in text


def test_files_are_written_whole_or_not_at_all(tmp_path, monkeypatch):
    split = files.Split([trace(0)], [trace(1)])
    out = tmp_path / "deep" / "data"
    files.write_files(out, {"toy": split}, {"a": 1}, "page", overwrite=False)
    assert sorted(path.name for path in out.iterdir()) == sorted(files.FILES)
    first = {path.name: path.read_bytes() for path in out.iterdir()}
    with pytest.raises(FileExistsError, match="holds data: choose another --out or pass --overwr"):
        files.write_files(out, {"toy": split}, {"a": 2}, "other", overwrite=False)

    def broken(trace, game):
        raise RuntimeError("half way")

    with monkeypatch.context() as patch, pytest.raises(RuntimeError, match="half way"):
        patch.setattr(files, "chat_line", broken)
        files.write_files(out, {"toy": split}, {"a": 2}, "other", overwrite=True)
    assert {path.name: path.read_bytes() for path in out.iterdir()} == first
    assert [path.name for path in out.parent.iterdir()] == ["data"]
    files.write_files(out, {"toy": split}, {"a": 2}, "other", overwrite=True)
    assert json.loads((out / files.STATISTICS).read_text()) == {"a": 2}
    (out / "notes.txt").write_text("mine")
    with pytest.raises(FileExistsError, match=r"holds other things \(notes\.txt\)"):
        files.write_files(out, {"toy": split}, {"a": 3}, "other", overwrite=True)
    with pytest.raises(FileExistsError, match="is a file"):
        files.check_free(out / "notes.txt", overwrite=True)
    (tmp_path / "link").symlink_to(tmp_path / "pointed at")  # nothing there yet
    for value in (1, 2):
        files.write_files(tmp_path / "link", {"toy": split}, {"a": value}, "p", overwrite=True)
        assert json.loads((tmp_path / "pointed at" / files.STATISTICS).read_text()) == {"a": value}
    (tmp_path / "here").mkdir()
    with monkeypatch.context() as patch:
        patch.chdir(tmp_path / "here")
        with pytest.raises(OSError), staged(Path("."), overwrite=True):  # cannot be renamed
            pass
        with pytest.raises(FileExistsError, match="is the working directory: name one inside"):
            files.check_free(Path("."), overwrite=True)
    assert {path.name for path in tmp_path.iterdir()} == {"deep", "link", "pointed at", "here"}
    (tmp_path / "empty").mkdir()
    files.check_free(tmp_path / "empty", overwrite=False)


@pytest.mark.slow
def test_the_command(tmp_path):
    out = tmp_path / "data"
    flags = (f"--out={out}", "--games=kuhn,ipd", "--decisions=400")
    done = run(*flags)
    assert done.returncode == 0, done.stderr
    assert "no episode is in both files" in done.stdout and "statistics.html" in done.stdout
    figures = json.loads((out / "statistics.json").read_text())
    assert list(figures["games"]) == ["kuhn", "ipd"] and figures["settings"]["seed"] == 42
    episodes = {}
    for name, part in (("train.jsonl", "training"), ("valid.jsonl", "validation")):
        records = [json.loads(line) for line in (out / name).read_text().splitlines()]
        counts = Counter(record["game"] for record in records)
        assert counts == {g: figures["games"][g]["decisions"][part] for g in ("kuhn", "ipd")}
        episodes[part] = {(record["game"], record["episode"]) for record in records}
        assert all(len(reply.splitlines()) == 2 for _, reply in read_chat_jsonl(out / name))
    assert not episodes["training"] & episodes["validation"]
    written = {path.name: path.read_bytes() for path in out.iterdir()}
    refused = run(*flags)
    assert refused.returncode == 2 and "pass --overwrite" in refused.stderr
    again = run(*flags, "--overwrite")
    assert again.returncode == 0, again.stderr
    assert {path.name: path.read_bytes() for path in out.iterdir()} == written


@pytest.mark.slow
@pytest.mark.parametrize(
    ("flags", "message"),
    [
        ((), "give a directory to write: --out=data/<name>"),
        (("--out=x", "--games=kun"), "Did you mean 'kuhn'"),
        (("--out=x", "--games=kuhn,kuhn"), "--games names kuhn twice"),
        (("--out=x", "--games="), "give at least one game"),
        (("--out=x", "--games=ipd", "--decisions=3"), "one pass over its"),
    ],
)
def test_user_errors_end_in_one_line(flags, message):
    done = run(*flags)
    assert done.returncode == 2 and message in done.stderr and "Traceback" not in done.stderr
    assert not (ROOT / "x").exists()
