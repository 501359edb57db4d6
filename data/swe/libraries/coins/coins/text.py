"""Read amounts as people write them."""

import re

from coins.currency import decimals
from coins.money import Money

_AMOUNT = re.compile(r"(?P<open>\()?(?P<sign>[-+])?(?P<whole>\d+|\d{1,3}(?:,\d{3})+)(?:\.(?P<part>\d+))?(?P<close>\))?")
_CODE = re.compile(r"[A-Z]{3}")


def parse_money(text: str, currency: str | None = None) -> Money:
    """`1,234.50 USD` or `USD 1,234.50`; without a code, `currency` is taken.

    Parentheses around the number make it negative, as in accounts. Raises ValueError for anything else, for a code
    that is not `currency` where that is given, and for more decimals than the currency has.
    """
    words = text.split()
    codes = [word for word in words if _CODE.fullmatch(word)]
    numbers = [word for word in words if not _CODE.fullmatch(word)]
    if len(numbers) != 1 or len(codes) > 1:
        raise ValueError(f"no amount of money: {text!r}")
    code = codes[0] if codes else currency
    if code is None:
        raise ValueError(f"an amount without a currency: {text!r}")
    if currency is not None and code != currency:
        raise ValueError(f"{currency} expected: {text!r}")
    match = _AMOUNT.fullmatch(numbers[0])
    if match is None or (match["open"] is None) != (match["close"] is None) or (match["open"] and match["sign"]):
        raise ValueError(f"no amount of money: {text!r}")
    part = match["part"] or ""
    if len(part) > decimals(code):
        raise ValueError(f"{code} has {decimals(code)} decimals: {text!r}")
    negative = match["sign"] == "-" or match["open"] is not None
    number = f"{'-' if negative else ''}{match['whole'].replace(',', '')}.{part or '0'}"
    return Money(number, code)
