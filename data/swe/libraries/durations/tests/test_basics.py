import pytest
from durations import DurationError, format_duration, humanize, parse_duration, parse_iso, to_iso


def test_parts() -> None:
    assert parse_duration("1h 30m") == 5400.0
    assert parse_duration("90s") == 90.0


def test_clock() -> None:
    assert parse_duration("1:30") == 90.0


def test_iso() -> None:
    assert parse_iso("PT1H") == 3600.0
    assert to_iso(3600) == "PT1H"


def test_format() -> None:
    assert format_duration(5400) == "1h 30m"


def test_humanize() -> None:
    assert humanize(3600) == "1 hour"


def test_errors() -> None:
    with pytest.raises(DurationError):
        parse_duration("soon")
