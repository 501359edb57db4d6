"""Amounts of money."""

from coins.currency import DECIMALS, decimals
from coins.money import MixedCurrencies, Money, total
from coins.text import parse_money

__all__ = ["DECIMALS", "MixedCurrencies", "Money", "decimals", "parse_money", "total"]
