"""The last sections of a report: samples, failures, settings, what could not be read."""

import math
from collections.abc import Mapping
from typing import Any

from . import page
from .measures import is_counter
from .page import Html, escape, number, tag
from .report_baselines import in_order
from .report_sections import STAGE_LABELS
from .report_tasks import evaluation_samples
from .run_data import RunData, to_number

_OPEN_SAMPLES = 3
_FOLDED_SAMPLES = 12


def samples_section(run: RunData) -> Html:
    """Samples of play: the latest ones of each stage, those of its evaluation first."""
    written = [*run.samples, *evaluation_samples(run)]
    if not written:
        return page.section("samples", "Samples", "No sample of play was written yet.")
    stages: dict[str, list[dict]] = {}
    for sample in written:
        stages.setdefault(str(sample.get("stage", "")), []).append(sample)
    parts = []
    for stage, samples in in_order(stages).items():
        latest = [_sample(s) for s in reversed(samples[-_OPEN_SAMPLES - _FOLDED_SAMPLES :])]
        parts += [tag("h3", STAGE_LABELS.get(stage, stage or "Samples")), *latest[:_OPEN_SAMPLES]]
        if folded := latest[_OPEN_SAMPLES:]:
            parts.append(page.details(f"{len(folded)} earlier samples", *folded))
    return page.section(
        "samples",
        "Samples",
        f"The latest of each stage first, out of {len(written)} written, verbatim.",
        *parts,
    )


def _sample(sample: dict[str, Any]) -> Html:
    """One sample: short fields as tags, messages and other long fields as labelled lines."""
    tags, turns = [], []
    record = sample.get("record")
    fields = {key: value for key, value in sample.items() if key != "record"}
    for key, value in (fields | (record if isinstance(record, Mapping) else {})).items():
        if key == "stage" or value is None:
            continue
        if key == "messages" and isinstance(value, list):
            turns += [_message(message) for message in value]
        elif key == "decisions" and isinstance(value, list):
            turns += [_decision(decision) for decision in value]
        elif isinstance(value, str) and (len(value) > 60 or "\n" in value or key == "text"):
            turns.append(_turn("reply" if key == "text" else key, page.code(value)))
        elif isinstance(value, list | dict):
            turns.append(_turn(key, page.details("show", page.code(value))))
        else:
            bad = key in ("valid", "legal") and value is False
            shown = page.join([f"{key} ", number(value)])
            tags.append(tag("span", shown, class_="tag bad" if bad else "tag"))
    return tag("div", tag("div", *tags), *turns, class_="sample")


def _message(message: Any) -> Html:
    """A chat message; the system text is folded, because it is the same in every sample."""
    if not isinstance(message, Mapping):
        return _turn("message", page.code(message))
    role, content = str(message.get("role", "?")), page.code(str(message.get("content", "")))
    return _turn(role, page.details("show", content) if role == "system" else content)


def _decision(decision: Any) -> Html:
    """A decision of an episode: the situation, then the reply, marked when it was refused."""
    if not isinstance(decision, Mapping):
        return _turn("decision", page.code(decision))
    name = str(decision.get("observation") or "prompt")
    prompt = _turn(name, page.code(str(decision.get("prompt", ""))))
    refused = decision.get("valid") is False
    mark = tag("span", "not a legal action", class_="tag bad") if refused else ""
    reply = page.code(str(decision.get("reply", "")))
    return page.join([prompt, _turn("reply", page.join([reply, mark]))])


def _turn(name: str, content: Html) -> Html:
    return tag("div", tag("span", name), tag("div", content), class_="turn")


def counters_section(run: RunData) -> Html:
    """Everything that failed, was skipped or was invalid."""
    rows = []
    for stage in run.stages():
        for key in run.metric_keys(stage):
            if not is_counter(key):
                continue
            _, values = run.series(stage, key)
            finite = [value for value in values if math.isfinite(value)]
            if not finite:
                continue
            above = sum(value > 0 for value in finite)
            mark = tag("span", f"{above} of {len(values)}", class_="off" if above else "ok")
            rows.append([stage, key, mark, number(max(finite)), number(finite[-1])])
    for key, value in run.summary.items():
        if is_counter(key) and to_number(value) is not None:
            rows.append(["summary", key, "", "", number(to_number(value))])
    lead = (
        "Counts and rates of things that went wrong, by step. Zero everywhere is what to look for."
    )
    if not rows:
        return page.section("counters", "Failures", f"{lead} None of the logged keys is one.")
    headers = ["Stage", "Key", "Steps above 0", "Largest", "Last"]
    return page.section(
        "counters", "Failures", lead, page.table(headers, rows, classes=["", "", "n", "n", "n"])
    )


def settings_section(run: RunData) -> Html:
    """Config, versions, and what could not be read."""
    config = [[escape(k), tag("code", v)] for k, v in sorted(_flat(run.config).items())]
    versions = [[k, v] for k, v in run.versions.items()]
    facts = [
        [key, value if isinstance(value, str) else page.code(value)]
        for key, value in run.summary.items()
        if key.partition("/")[0] != "versions" and ("/" not in key or to_number(value) is None)
    ]
    notes = [tag("li", note) for note in run.notes]
    return page.section(
        "settings",
        "Settings and provenance",
        "What was run, with which versions, and what this page could not read.",
        page.details(f"Config ({len(config)} fields)", page.table(["Field", "Value"], config))
        if config
        else "",
        tag("h3", "Versions"),
        page.table(["Package", "Version"], versions) if versions else tag("p", "Not recorded."),
        page.join([tag("h3", "Facts"), page.table(["Key", "Value"], facts)]) if facts else "",
        tag("h3", "Missing or unreadable"),
        tag("ul", *notes, class_="notes") if notes else tag("p", "Nothing.", class_="ok"),
    )


def _flat(tree: Mapping[str, Any], prefix: str = "") -> dict[str, Any]:
    flat: dict[str, Any] = {}
    for key, value in tree.items():
        if isinstance(value, Mapping) and value and key != "versions":
            flat.update(_flat(value, f"{prefix}{key}."))
        elif key != "versions":
            flat[f"{prefix}{key}"] = value
    return flat
