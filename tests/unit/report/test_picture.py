"""The picture of the round tables."""

from __future__ import annotations

from xml.etree import ElementTree

from crl.report.picture import picture
from tests.unit.report.builder import build_run


def test_the_picture_is_svg_that_shows_the_rounds_and_asks_no_server(tmp_path):
    svg = picture(build_run(tmp_path))
    text = " ".join(ElementTree.fromstring(svg).itertext()).replace("\xa0", " ")
    assert "held out, with bank" in text and "seconds per stage" in text
    assert "@font-face" not in svg and "cdn" not in svg
