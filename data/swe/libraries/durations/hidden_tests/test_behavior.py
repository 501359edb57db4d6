import pytest
from durations import DurationError, format_duration, humanize, parse_duration, parse_iso, to_iso


def test_all_units() -> None:
    assert parse_duration("1w") == 604800.0
    assert parse_duration("2d") == 172800.0
    assert parse_duration("3h") == 10800.0
    assert parse_duration("4m") == 240.0
    assert parse_duration("250ms") == 0.25


def test_names_of_units_in_any_case() -> None:
    assert parse_duration("1 week") == 604800.0
    assert parse_duration("2 Days, 3 hours") == 183600.0
    assert parse_duration("1 Minute 5 SECONDS") == 65.0
    assert parse_duration("500 milliseconds") == 0.5


def test_fractions_and_no_blanks() -> None:
    assert parse_duration("1.5h") == 5400.0
    assert parse_duration("1h30m15s") == 5415.0
    assert parse_duration("0.5d12h") == 86400.0


def test_signs_count_for_the_whole() -> None:
    assert parse_duration("-1h 30m") == -5400.0
    assert parse_duration("+2m") == 120.0
    assert parse_duration("- 15") == -15.0
    assert parse_duration("-0:30") == -30.0


def test_plain_numbers_are_seconds() -> None:
    assert parse_duration("90") == 90.0
    assert parse_duration(" 1.5 ") == 1.5
    assert parse_duration("0") == 0.0


def test_clocks() -> None:
    assert parse_duration("2:30") == 150.0
    assert parse_duration("1:02:03.5") == 3723.5
    assert parse_duration("90:00") == 5400.0
    assert parse_duration("0:59:59") == 3599.0


def test_clock_limits() -> None:
    with pytest.raises(DurationError, match="below 60"):
        parse_duration("1:60")
    with pytest.raises(DurationError, match="below 60"):
        parse_duration("1:60:00")
    assert parse_duration("60:59") == 3659.0


def test_units_go_from_large_to_small_once() -> None:
    with pytest.raises(DurationError, match="large to small"):
        parse_duration("5m 1h")
    with pytest.raises(DurationError, match="twice"):
        parse_duration("1h 2h")
    with pytest.raises(DurationError, match="twice"):
        parse_duration("1h 2 hours")


def test_what_is_no_duration() -> None:
    with pytest.raises(DurationError, match="unknown unit"):
        parse_duration("3 fortnights")
    with pytest.raises(DurationError, match="empty"):
        parse_duration("  ")
    with pytest.raises(DurationError, match="empty"):
        parse_duration("-")
    with pytest.raises(DurationError, match="no duration"):
        parse_duration("1h x")
    with pytest.raises(ValueError):
        parse_duration("1:2:3:4")


def test_iso_parts() -> None:
    assert parse_iso("P1DT12H") == 129600.0
    assert parse_iso("P2W") == 1209600.0
    assert parse_iso("PT90M") == 5400.0
    assert parse_iso("PT1M30,5S") == 90.5
    assert parse_iso("PT0.25S") == 0.25
    assert parse_iso("-PT30S") == -30.0
    assert parse_iso("+P1D") == 86400.0


def test_iso_errors() -> None:
    with pytest.raises(DurationError):
        parse_iso("P")
    with pytest.raises(DurationError):
        parse_iso("P1DT")
    with pytest.raises(DurationError):
        parse_iso("P1M")
    with pytest.raises(DurationError):
        parse_iso("1DT2H")


def test_to_iso() -> None:
    assert to_iso(129600) == "P1DT12H"
    assert to_iso(0) == "PT0S"
    assert to_iso(90061) == "P1DT1H1M1S"
    assert to_iso(0.5) == "PT0.5S"
    assert to_iso(10) == "PT10S"
    assert to_iso(-60) == "-PT1M"
    assert to_iso(1209600) == "P14D"


def test_format_skips_zeros() -> None:
    assert format_duration(3601) == "1h 1s"
    assert format_duration(3601, zeros=True) == "1h 0m 1s"
    assert format_duration(7200, zeros=True) == "2h"
    assert format_duration(0) == "0s"
    assert format_duration(694861) == "1w 1d 1h 1m 1s"


def test_format_rounds_halves_up() -> None:
    assert format_duration(59.5) == "1m"
    assert format_duration(0.5) == "1s"
    assert format_duration(0.4) == "0s"
    assert format_duration(-1.5) == "-2s"


def test_format_with_parts_rounds_to_the_last_part() -> None:
    assert format_duration(3661, parts=2) == "1h 1m"
    assert format_duration(3690, parts=2) == "1h 2m"
    assert format_duration(3689, parts=2) == "1h 1m"
    assert format_duration(5400, parts=1) == "2h"
    assert format_duration(5399, parts=1) == "1h"
    assert format_duration(3599, parts=1) == "1h"
    assert format_duration(86399, parts=2) == "1d"
    assert format_duration(61, parts=5) == "1m 1s"
    assert format_duration(604800, parts=1) == "1w"


def test_parts_are_checked() -> None:
    with pytest.raises(ValueError):
        format_duration(5, parts=0)
    assert format_duration(5, parts=1) == "5s"


def test_humanize_rounds() -> None:
    assert humanize(95) == "2 minutes"
    assert humanize(89) == "1 minute"
    assert humanize(90) == "2 minutes"
    assert humanize(1) == "1 second"
    assert humanize(-7200) == "2 hours"
    assert humanize(0.4) == "now"
    assert humanize(0.5) == "1 second"


def test_humanize_moves_to_the_larger_unit() -> None:
    assert humanize(59.6) == "1 minute"
    assert humanize(3599) == "1 hour"
    assert humanize(86000) == "1 day"
    assert humanize(604700) == "1 week"
    assert humanize(604800 * 3) == "3 weeks"
