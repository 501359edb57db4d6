from decimal import Decimal

import pytest
from coins import MixedCurrencies, Money, decimals, parse_money, total


def test_rounds_halves_away_from_zero() -> None:
    assert str(Money("0.125", "EUR")) == "0.13 EUR"
    assert str(Money("0.135", "EUR")) == "0.14 EUR"
    assert str(Money("-0.125", "EUR")) == "-0.13 EUR"
    assert str(Money("0.1249", "EUR")) == "0.12 EUR"


def test_decimals_of_currencies() -> None:
    assert str(Money("100.5", "JPY")) == "101 JPY"
    assert str(Money("1.2345", "KWD")) == "1.235 KWD"
    assert decimals("EUR") == 2
    assert str(Money(5, "EUR")) == "5.00 EUR"


def test_floats_are_refused() -> None:
    with pytest.raises(TypeError):
        Money(0.1, "EUR")  # type: ignore[arg-type]
    with pytest.raises(TypeError):
        Money(1, "EUR") * 1.5  # type: ignore[operator]
    with pytest.raises(TypeError):
        Money(True, "EUR")
    assert Money(Decimal("0.1"), "EUR") == Money("0.10", "EUR")


def test_numbers_are_finite() -> None:
    with pytest.raises(ValueError):
        Money("NaN", "EUR")
    with pytest.raises(ValueError):
        Money("Infinity", "EUR")


def test_currency_is_checked() -> None:
    with pytest.raises(ValueError):
        Money(1, "eur")
    with pytest.raises(ValueError):
        Money(1, "EURO")
    with pytest.raises(ValueError):
        Money(1, "ÄÖÜ")


def test_other_operands_are_refused() -> None:
    with pytest.raises(TypeError):
        Money(1, "EUR") + 1  # type: ignore[operator]
    with pytest.raises(MixedCurrencies):
        Money(3, "EUR") - Money(1, "USD")
    with pytest.raises(MixedCurrencies):
        assert Money(3, "EUR") > Money(1, "USD")


def test_products_on_both_sides() -> None:
    assert 3 * Money("1.50", "EUR") == Money("4.50", "EUR")
    assert Money("10.00", "EUR") * "0.333" == Money("3.33", "EUR")
    assert Money("0.05", "EUR") * "0.5" == Money("0.03", "EUR")


def test_signs() -> None:
    assert -Money("1.50", "EUR") == Money("-1.50", "EUR")
    assert abs(Money("-1.50", "EUR")) == Money("1.50", "EUR")
    assert bool(Money(0, "EUR")) is False
    assert bool(Money("-0.01", "EUR")) is True


def test_order_and_equality() -> None:
    assert Money(1, "EUR") < Money(2, "EUR")
    assert Money(2, "EUR") >= Money(2, "EUR")
    assert Money(1, "EUR") != Money(1, "USD")
    assert Money(1, "EUR") != 1
    assert max([Money(1, "EUR"), Money(3, "EUR"), Money(2, "EUR")]) == Money(3, "EUR")


def test_equal_amounts_hash_alike() -> None:
    assert len({Money("1.0", "EUR"), Money(1, "EUR"), Money(1, "USD")}) == 2


def test_text_of_large_amounts() -> None:
    assert str(Money("1234567.8", "USD")) == "1,234,567.80 USD"
    assert str(Money("-1234", "JPY")) == "-1,234 JPY"
    assert repr(Money("1234.5", "USD")) == 'Money("1234.50", "USD")'


def test_allocate_loses_nothing() -> None:
    assert Money("10.00", "EUR").allocate([1, 1, 1]) == [
        Money("3.34", "EUR"),
        Money("3.33", "EUR"),
        Money("3.33", "EUR"),
    ]
    assert Money("0.05", "EUR").allocate([3, 7]) == [Money("0.02", "EUR"), Money("0.03", "EUR")]
    assert Money(100, "JPY").allocate([1, 1, 1]) == [Money(34, "JPY"), Money(33, "JPY"), Money(33, "JPY")]
    assert Money("1.000", "KWD").allocate(["0.5", "0.25", "0.25"]) == [
        Money("0.500", "KWD"),
        Money("0.250", "KWD"),
        Money("0.250", "KWD"),
    ]


def test_allocate_gives_nothing_for_zero() -> None:
    assert Money("0.05", "EUR").allocate([0, 1, 1]) == [Money(0, "EUR"), Money("0.03", "EUR"), Money("0.02", "EUR")]
    assert Money("0.02", "EUR").allocate([0, 0, 1]) == [Money(0, "EUR"), Money(0, "EUR"), Money("0.02", "EUR")]


def test_allocate_of_negative_amounts() -> None:
    assert Money("-10.00", "EUR").allocate([1, 2]) == [Money("-3.34", "EUR"), Money("-6.66", "EUR")]
    assert Money(0, "EUR").allocate([1, 2]) == [Money(0, "EUR"), Money(0, "EUR")]


def test_allocate_is_checked() -> None:
    with pytest.raises(ValueError):
        Money(1, "EUR").allocate([1, -1])
    with pytest.raises(ValueError):
        Money(1, "EUR").allocate([0, 0])
    with pytest.raises(ValueError):
        Money(1, "EUR").allocate([])
    with pytest.raises(ValueError):
        Money(1, "EUR").allocate([3, -1])


def test_split() -> None:
    assert Money("0.05", "EUR").split(2) == [Money("0.03", "EUR"), Money("0.02", "EUR")]
    assert Money("0.05", "EUR").split(1) == [Money("0.05", "EUR")]
    with pytest.raises(ValueError):
        Money(1, "EUR").split(0)


def test_convert() -> None:
    assert Money("19.99", "EUR").convert("JPY", "160.5") == Money(3208, "JPY")
    assert Money(100, "JPY").convert("EUR", "0.00625") == Money("0.63", "EUR")
    with pytest.raises(ValueError):
        Money(1, "EUR").convert("USD", 0)


def test_percent_and_tax() -> None:
    assert Money("19.99", "EUR").percent(19) == Money("3.80", "EUR")
    assert Money("10.00", "EUR").percent("2.55") == Money("0.26", "EUR")
    assert Money("119.00", "EUR").without_tax(19) == Money("100.00", "EUR")
    assert Money("10.00", "EUR").without_tax(7) == Money("9.35", "EUR")


def test_total_with_and_without_amounts() -> None:
    assert total([], "EUR") == Money(0, "EUR")
    assert total(iter([Money("0.10", "EUR"), Money("0.20", "EUR")]), "EUR") == Money("0.30", "EUR")
    with pytest.raises(ValueError):
        total([])
    with pytest.raises(MixedCurrencies):
        total([Money(1, "USD")], "EUR")


def test_operands_do_not_change() -> None:
    price = Money("5.00", "EUR")
    amounts = [price, Money("1.00", "EUR")]
    assert total(amounts) == Money("6.00", "EUR")
    assert price == Money("5.00", "EUR")
    assert total(amounts) == Money("6.00", "EUR")


def test_parse_forms() -> None:
    assert parse_money("USD 1,234.50") == Money("1234.50", "USD")
    assert parse_money("-1,234,567.5 USD") == Money("-1234567.50", "USD")
    assert parse_money("+5 EUR") == Money(5, "EUR")
    assert parse_money("(12.50) USD") == Money("-12.50", "USD")
    assert parse_money("1000 JPY") == Money(1000, "JPY")
    assert parse_money("7.25", "EUR") == Money("7.25", "EUR")
    assert parse_money("7.25 EUR", "EUR") == Money("7.25", "EUR")


def test_parse_errors() -> None:
    with pytest.raises(ValueError, match="no amount"):
        parse_money("12,34 USD")
    with pytest.raises(ValueError, match="no amount"):
        parse_money("(5 USD")
    with pytest.raises(ValueError, match="no amount"):
        parse_money("(-5) USD")
    with pytest.raises(ValueError, match="no amount"):
        parse_money("5 6 USD")
    with pytest.raises(ValueError, match="no amount"):
        parse_money("5 USD EUR")
    with pytest.raises(ValueError, match="no amount"):
        parse_money("USD")
    with pytest.raises(ValueError, match="without a currency"):
        parse_money("5")


def test_parse_checks_currency_and_decimals() -> None:
    with pytest.raises(ValueError, match="EUR expected"):
        parse_money("5 USD", "EUR")
    with pytest.raises(ValueError, match="2 decimals"):
        parse_money("5.123 USD")
    with pytest.raises(ValueError, match="0 decimals"):
        parse_money("5.1 JPY")
    assert parse_money("5.123 KWD") == Money("5.123", "KWD")
