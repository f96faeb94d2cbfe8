"""Checks that hold for every report page."""

import html.parser
import re

from sepo_jax.evaluation import write_report


class _Checker(html.parser.HTMLParser):
    """Collects text, and fails on elements that are not closed or that load something."""

    VOID = ("meta", "br", "img", "link", "path", "use", "rect", "line", "circle", "wbr")

    def __init__(self):
        super().__init__()
        self.open, self.text, self.ids = [], [], []

    def handle_starttag(self, tag, attributes):
        assert tag not in ("script", "link", "img", "iframe", "object", "embed"), tag
        values = dict(attributes)
        self.ids += [values["id"]] if "id" in values else []
        for name in ("src", "href", "xlink:href"):
            address = values.get(name, "#")
            # The page of trees lies beside the report, and is followed to, not loaded.
            assert address.startswith("#") or (tag, address) == ("a", "trees.html"), values
        if tag not in self.VOID:
            self.open.append(tag)

    def handle_startendtag(self, tag, attributes):
        self.handle_starttag(tag, attributes)
        if tag not in self.VOID:
            self.open.pop()

    def handle_endtag(self, tag):
        if tag not in self.VOID:
            assert self.open.pop() == tag

    def handle_data(self, data):
        self.text.append(data)


def checked_page(directory):
    """Source and text of the page of a run, after checks that hold for every page."""
    source = write_report(directory).read_text(encoding="utf-8")
    checker = _Checker()
    checker.feed(source)
    checker.close()
    assert checker.open == []
    sections = [name for name in checker.ids if not re.match(r"^[a-z]+[0-9a-f]{8,}$", name)]
    assert len(sections) == len(set(sections))
    assert "@import" not in source and "url(" not in source.replace("url(#", "")
    return source, " ".join(" ".join(checker.text).split())
