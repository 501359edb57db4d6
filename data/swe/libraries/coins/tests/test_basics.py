import pytest
from coins import MixedCurrencies, Money, parse_money, total


def test_sums() -> None:
    assert Money("1.10", "EUR") + Money("2.20", "EUR") == Money("3.30", "EUR")
    assert Money("3.00", "EUR") - Money("2.20", "EUR") == Money("0.80", "EUR")


def test_products() -> None:
    assert Money("19.99", "EUR") * 3 == Money("59.97", "EUR")


def test_mixed() -> None:
    with pytest.raises(MixedCurrencies):
        Money(1, "EUR") + Money(1, "USD")


def test_allocate() -> None:
    assert Money("9.00", "EUR").allocate([1, 2]) == [Money("3.00", "EUR"), Money("6.00", "EUR")]


def test_text() -> None:
    assert parse_money("12.50 USD") == Money("12.50", "USD")
    assert str(Money("12.5", "USD")) == "12.50 USD"


def test_total() -> None:
    assert total([Money(1, "EUR"), Money(2, "EUR")]) == Money(3, "EUR")
