"""What there is to know of a currency."""

from decimal import Decimal

DECIMALS = {"JPY": 0, "KRW": 0, "KWD": 3, "TND": 3}
"""Decimals of the currencies that do not have two."""


def decimals(currency: str) -> int:
    return DECIMALS.get(currency, 2)


def smallest(currency: str) -> Decimal:
    """The smallest coin."""
    return Decimal(1).scaleb(-decimals(currency))


def check_currency(currency: str) -> None:
    if len(currency) != 3 or not currency.isascii() or not currency.isupper():
        raise ValueError(f"a currency has three capital letters: {currency!r}")
