"""The page of trees, opened in a real browser."""

import copy
import itertools
import json
import re

import pytest
from browser import browser
from grown_trees import decode, grow
from tiny_policies import tiny_policy

from sepo_jax.algorithms import get_algorithm
from sepo_jax.credit import assign_credit
from sepo_jax.domains.corridor import Corridor
from sepo_jax.domains.webshop import WebShop
from sepo_jax.evaluation.tree_layout import children_of, lay_out
from sepo_jax.evaluation.tree_page import render_trees
from sepo_jax.evaluation.tree_record import tree_record
from sepo_jax.evaluation.tree_words import advantage_sentence, plain, share, signed
from sepo_jax.rollout import Branching, EngineOptions, build_forest, play_branching
from sepo_jax.sandbox.environments import domain_environments
from sepo_jax.sandbox.episodes import EpisodeRequest

CORRIDOR = Corridor(length=5, early=1)
HOSTILE = (
    "</script><script>window.harmed = 1</script><img src=x onerror='window.harmed = 2'>\n"
    "\"quotes\" 'and' &amp; <!-- \u2028 🙂 \u202e\x07 </title> ${window.harmed} \\u003c "
)


def anything(episode, rng):
    return str(rng.choice(episode.legal_actions()))


def recorded(results, row="bpo", step=1, read=decode):
    forest, row = build_forest(results), get_algorithm(row)
    found = tree_record(results, forest, assign_credit(row, forest), row, decode=read)
    return {"stage": "rl", "step": step} | found


@pytest.fixture(scope="module")
def scripted():
    task = CORRIDOR.training_tasks(1, 0)[0]
    return recorded(grow(CORRIDOR, task, anything, (0, 2), 4))


@pytest.fixture(scope="module")
def played(compile_fast):
    """A corridor walked by a policy, on the engine."""
    traces = CORRIDOR.expert_traces(30, 0)
    texts = [message["content"] for messages, _ in traces for message in messages]
    policy, params = tiny_policy([*texts, *(reply for _, reply in traces)], 300)
    requests = [
        EpisodeRequest(task, seed=group, group=group)
        for group, task in enumerate(CORRIDOR.training_tasks(2, 0))
    ]
    options = EngineOptions(slots=8, capacity=512, max_action_tokens=4, prefill_widths=(64,))
    branching = Branching(2, 4, spacing=0)
    environments = domain_environments(CORRIDOR)
    rollout = play_branching(policy, params, requests, environments, options, branching, seed=0)
    return recorded(rollout.results, read=policy.tokenizer.decode)


@pytest.fixture(scope="module")
def chromium(tmp_path_factory):
    with browser(tmp_path_factory.mktemp("browser")) as opened:
        yield opened


def opened(chromium, tmp_path, records, **window):
    path = tmp_path / "trees.html"
    path.write_text(render_trees(records, "Trees"), encoding="utf-8")
    chromium.requests.clear()
    chromium.errors.clear()
    chromium.open(path, **window)
    return chromium


def count(chromium, selector):
    return chromium.value(
        f"document.querySelectorAll({json.dumps('.view:not([hidden]) ' + selector)}).length"
    )


def detail(chromium):
    return chromium.value("document.getElementById('detail').innerText")


def figure(chromium, name):
    """A number of the chosen segment."""
    found = re.search(rf"{re.escape(name)}\s+(\S+)", detail(chromium))
    return float(found[1].replace("−", "-"))


def test_a_rollout_of_the_corridor_is_drawn_whole(chromium, tmp_path, played):
    page = opened(chromium, tmp_path, [played])
    segments = played["segments"]
    actions = [n for n, s in enumerate(segments) if s["kind"] == "action"]
    points = sum(len(children) > 1 for children in children_of(segments))
    assert len(played["leaves"]) == 7 and points in (1, 2)
    assert count(page, "[data-segment]") == len(segments)
    assert count(page, ".action") == len(actions)
    assert count(page, ".point") == points
    assert count(page, "[data-leaf]") == 7
    assert count(page, "[data-edge]") == sum(s["parent"] >= 0 for s in segments)
    for number in (actions[0], actions[-1]):
        page.click(f'[data-segment="{number}"]')
        segment = segments[number]
        shown = page.value("document.querySelector('#detail pre').textContent")
        assert shown == segment["text"]
        assert page.value("document.querySelectorAll('#detail .token').length") == len(
            segment["pieces"]
        )
        assert f"Action of turn {segment['turn'] + 1}" in detail(page)
        logp = page.value("document.querySelector('#detail .token span').textContent")
        assert float(logp.replace("−", "-")) == pytest.approx(segment["logp"][0], rel=0.05)
    page.click('[data-segment="0"]')
    system = segments[0]["messages"][0][1]
    assert page.value("document.querySelector('#detail pre').textContent") == system
    assert page.errors == []


def test_the_page_asks_for_nothing_else(chromium, tmp_path, scripted):
    page = opened(chromium, tmp_path, [scripted])
    assert page.requests == [f"file://{tmp_path}/trees.html"]
    source = (tmp_path / "trees.html").read_text(encoding="utf-8")
    assert not re.search(r"https?:|//\w|@import|url\(|\b(?:src|href)\s*=|<link|<iframe", source)
    assert "default-src 'none'" in source
    # The policy is in force: what a script would fetch is refused.
    page.value("fetch('file:///etc/hostname').catch(() => { window.refused = true })")
    assert any("Content Security Policy" in str(error) for error in page.errors)


def test_pointing_shows_and_a_click_keeps(chromium, tmp_path, scripted):
    page = opened(chromium, tmp_path, [scripted])
    segments = scripted["segments"]
    actions = [n for n, s in enumerate(segments) if s["kind"] == "action"]
    kept, other = actions[1], actions[-1]
    page.click(f'[data-segment="{kept}"]')
    before = detail(page)
    assert figure(page, "advantage A") == pytest.approx(segments[kept]["advantage"], rel=1e-3)
    assert figure(page, "weight w") == pytest.approx(segments[kept]["weight"], rel=1e-3)
    page.point(*page.middle(f'[data-segment="{other}"]'))
    assert detail(page) != before
    path = page.value("[...document.querySelectorAll('[data-edge].on')].map(e => e.dataset.edge)")
    above, number = [], other
    while segments[number]["parent"] >= 0:
        above.append(str(number))
        number = segments[number]["parent"]
    assert sorted(path, key=int) == sorted(above, key=int)
    page.point(1, 1)
    assert detail(page) == before


def test_the_keyboard_reaches_every_segment(chromium, tmp_path, scripted):
    page = opened(chromium, tmp_path, [scripted])
    focused = "Number(document.activeElement.dataset.segment ?? -1)"
    page.value("document.querySelector('.pane').focus()")
    reached = []
    for _ in scripted["segments"]:
        page.key("Tab")
        reached.append(page.value(focused))
    assert sorted(reached) == list(range(len(scripted["segments"])))
    assert "tokens" in detail(page)
    children = children_of(scripted["segments"])
    page.value("document.querySelector('[data-segment=\"0\"]').focus()")
    page.key("ArrowRight")
    assert page.value(focused) == children[0][0]
    page.key("ArrowDown")
    assert page.value(focused) == children[0][1]
    expected = scripted["segments"][children[0][1]]["return"]
    assert figure(page, "return R (mean below)") == pytest.approx(expected, rel=1e-3)
    page.key("ArrowUp")
    page.key("ArrowLeft")
    assert page.value(focused) == 0


def test_hostile_text_is_shown_literally(chromium, tmp_path, scripted):
    record = copy.deepcopy(scripted)
    actions = [s for s in record["segments"] if s["kind"] == "action"]
    actions[0]["text"], actions[0]["pieces"][0] = HOSTILE, HOSTILE
    actions[1]["text"] = "word" * 5000
    record["segments"][0]["messages"] = [[HOSTILE, HOSTILE]]
    record["stage"] = HOSTILE
    page = opened(chromium, tmp_path, [record, record | {"step": 2}])
    assert page.value("window.harmed") is None and page.errors == []
    pre = "document.querySelector('#detail pre').textContent"
    for number in (0, record["segments"].index(actions[0])):
        page.click(f'.view:not([hidden]) [data-segment="{number}"]')
        assert page.value(pre) == HOSTILE
    page.click(f'.view:not([hidden]) [data-segment="{record["segments"].index(actions[1])}"]')
    assert page.value(pre) == "word" * 5000
    assert page.value("document.documentElement.scrollWidth <= innerWidth")
    assert page.value("window.harmed") is None
    assert page.value("document.querySelectorAll('img').length") == 0


def test_another_tree_can_be_chosen(chromium, tmp_path, scripted):
    small = recorded(grow(CORRIDOR, CORRIDOR.training_tasks(1, 1)[0], anything, (1,), 2), step=9)
    page = opened(chromium, tmp_path, [scripted, {"stage": "rl", "step": 5, "segments": 3}, small])
    assert count(page, "[data-leaf]") == 2
    choose = "(n) => {const s = document.getElementById('chooser'); s.value = n; "
    choose += "s.dispatchEvent(new Event('change', {bubbles: true}))}"
    page.value(f"({choose})(0)")
    assert count(page, "[data-leaf]") == 7 and "Action of turn" in detail(page)
    page.value(f"({choose})(1)")
    assert "cannot be drawn" in page.value(
        "document.querySelector('.view:not([hidden])').innerText"
    )
    assert detail(page) == "" and page.errors == []


CONTRAST = """(() => {
  const canvas = document.createElement("canvas").getContext("2d", {willReadFrequently: true});
  const rgb = (color) => {
    canvas.clearRect(0, 0, 1, 1); canvas.fillStyle = color; canvas.fillRect(0, 0, 1, 1);
    return [...canvas.getImageData(0, 0, 1, 1).data];
  };
  const light = (color) => [0.2126, 0.7152, 0.0722].reduce((sum, weight, k) => {
    const part = color[k] / 255;
    return sum + weight * (part <= 0.04045 ? part / 12.92 : ((part + 0.055) / 1.055) ** 2.4);
  }, 0);
  const behind = (e) => {
    for (; e; e = e.parentElement) {
      const color = rgb(getComputedStyle(e).backgroundColor);
      if (color[3] === 255) return color;
    }
    throw Error("no background");
  };
  const texts = [...document.querySelectorAll("main *")].filter((e) => e.checkVisibility() &&
    [...e.childNodes].some((n) => n.nodeType === 3 && n.textContent.trim()));
  const ratios = texts.map((e) => {
    const [a, b] = [light(rgb(getComputedStyle(e).color)), light(behind(e))];
    return [(Math.max(a, b) + 0.05) / (Math.min(a, b) + 0.05), e.className + " " + e.textContent];
  });
  ratios.sort((a, b) => a[0] - b[0]);
  return [texts.length, ...ratios[0]];
})()"""


@pytest.mark.parametrize("dark", [False, True])
def test_text_has_the_contrast_that_accessibility_asks_for(chromium, tmp_path, scripted, dark):
    page = opened(chromium, tmp_path, [scripted], dark=dark)
    background = "getComputedStyle(document.body).backgroundColor"
    for clicked in (False, True):
        before = page.value(background)
        if clicked:
            page.click("#theme")
            assert page.value(background) != before
        number, least, where = page.value(CONTRAST)
        assert number > 100 and least >= 4.5, where


def boxes_of(record):
    return lay_out(record["segments"])


@pytest.mark.parametrize("points", [(0, 2), (0, 1, 2, 3, 4)])
def test_boxes_lie_apart(points):
    shop = WebShop()
    grown = [grow(CORRIDOR, CORRIDOR.training_tasks(1, 0)[0], anything, points, 7, trunks=1)]

    def soon(episode, rng):
        ends = [a for a in episode.legal_actions() if "buy" in a]
        return ends[0] if ends else anything(episode, rng)

    grown.append(grow(shop, shop.training_tasks(1, 0)[0], soon, (0, 1), 4, trunks=2))
    for results in grown:
        layout = boxes_of(recorded(results))
        for one, two in itertools.combinations(layout.boxes, 2):
            apart = (
                one.x + one.width <= two.x
                or two.x + two.width <= one.x
                or one.y + one.height <= two.y
                or two.y + two.height <= one.y
            )
            assert apart, (one, two)
        for box in layout.boxes:
            assert box.x >= 0 and box.x + box.width <= layout.width
            assert layout.header <= box.y and box.y + box.height <= layout.height


def test_numbers_say_what_they_are():
    assert [plain(x) for x in (None, 0.0, -0.126, 12)] == ["–", "0.00", "−0.13", "12.00"]
    assert [signed(x) for x in (None, 0.0, 0.5, -0.5)] == ["–", "0.00", "+0.50", "−0.50"]
    assert [share(x) for x in (None, 0.0, 1.0, 1 / 3, 1 / 16807, 0.4)] == [
        "–", "0", "1", "1/3", "1/16807", "0.4",
    ]  # fmt: skip


@pytest.mark.parametrize(
    ("row", "words"),
    [
        ("bpo", "R(child) − mean of its siblings' R, kept until the next branch point"),
        ("vineppo", "R(child) − R(branch point)"),
        ("grpo", "mean over all over their standard deviation, among the leaves of the prompt"),
        ("rloo", "mean over the others, among the leaves of the prompt"),
        ("gigpo", "actions that saw the same observation"),
        ("ppo", "from the critic"),
    ],
)
def test_the_legend_has_the_formula_of_the_row(scripted, row, words):
    fields = {name: getattr(get_algorithm(row), name) for name in scripted["algorithm"]}
    assert words in advantage_sentence(fields)
    page = render_trees([scripted | {"algorithm": fields}], "Trees")
    assert words.replace("'", "&#x27;") in page


def test_a_page_of_a_thousand_leaves_is_drawn_whole(scripted):
    prompt, action = scripted["segments"][0], scripted["segments"][1]
    segments = [prompt]
    for _ in range(1000):
        segments += [action | {"parent": 0}]
        segments += [action | {"parent": len(segments) + turn - 1} for turn in range(4)]
    leaves = [scripted["leaves"][0] | {"segment": 5 * n} for n in range(1, 1001)]
    page = render_trees([scripted | {"segments": segments, "leaves": leaves}], "Trees")
    assert len(re.findall(r'data-segment="\d+"', page)) == 5001 and "cannot be drawn" not in page


def test_a_page_needs_a_record():
    with pytest.raises(ValueError, match="at least one record"):
        render_trees([], "Trees")
