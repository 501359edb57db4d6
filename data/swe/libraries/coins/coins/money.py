"""Amounts that are always a whole number of the smallest coin."""

from collections.abc import Iterable, Sequence
from decimal import ROUND_HALF_UP, Decimal
from functools import total_ordering

from coins.currency import check_currency, smallest

Number = str | int | Decimal


class MixedCurrencies(ValueError):
    """Two currencies where there has to be one."""


@total_ordering
class Money:
    """An amount of a currency. It does not change; operations make new ones."""

    __slots__ = ("amount", "currency")

    def __init__(self, amount: Number, currency: str) -> None:
        check_currency(currency)
        self.amount = _exact(amount).quantize(smallest(currency), rounding=ROUND_HALF_UP)
        self.currency = currency

    def __add__(self, other: "Money") -> "Money":
        self._same(other)
        return Money(self.amount + other.amount, self.currency)

    def __sub__(self, other: "Money") -> "Money":
        self._same(other)
        return Money(self.amount - other.amount, self.currency)

    def __neg__(self) -> "Money":
        return Money(-self.amount, self.currency)

    def __abs__(self) -> "Money":
        return Money(abs(self.amount), self.currency)

    def __mul__(self, factor: Number) -> "Money":
        return Money(self.amount * _exact(factor), self.currency)

    __rmul__ = __mul__

    def __bool__(self) -> bool:
        """Whether it is not zero."""
        return self.amount != 0

    def __eq__(self, other: object) -> bool:
        if not isinstance(other, Money):
            return NotImplemented
        return self.currency == other.currency and self.amount == other.amount

    def __lt__(self, other: "Money") -> bool:
        self._same(other)
        return self.amount < other.amount

    def __hash__(self) -> int:
        return hash((self.amount, self.currency))

    def __repr__(self) -> str:
        return f'Money("{self.amount}", "{self.currency}")'

    def __str__(self) -> str:
        return f"{self.amount:,} {self.currency}"

    def allocate(self, ratios: Sequence[Number]) -> list["Money"]:
        """Shares by ratio that add up to this amount. Raises ValueError for negative ratios, and if all are zero."""
        weights = [_exact(ratio) for ratio in ratios]
        whole = sum(weights, Decimal(0))
        if any(weight < 0 for weight in weights) or whole == 0:
            raise ValueError("ratios must not be negative, nor all of them zero")
        if self.amount < 0:
            return [-share for share in (-self).allocate(ratios)]
        coin = smallest(self.currency)
        units = int(self.amount / coin)
        shares = [int(units * weight / whole) for weight in weights]
        left = units - sum(shares)
        for index, weight in enumerate(weights):
            if left and weight:
                shares[index] += 1
                left -= 1
        return [Money(share * coin, self.currency) for share in shares]

    def split(self, parts: int) -> list["Money"]:
        """So many shares as equal as can be, larger ones first."""
        if parts < 1:
            raise ValueError("parts must be at least 1")
        return self.allocate([1] * parts)

    def convert(self, currency: str, rate: Number) -> "Money":
        """The amount in another currency, one unit of this one being worth `rate` of it."""
        if _exact(rate) <= 0:
            raise ValueError("a rate must be positive")
        return Money(self.amount * _exact(rate), currency)

    def percent(self, rate: Number) -> "Money":
        """So many percent of the amount, rounded."""
        return Money(self.amount * _exact(rate) / 100, self.currency)

    def without_tax(self, rate: Number) -> "Money":
        """The net amount, if this one includes `rate` percent of tax on it."""
        return Money(self.amount * 100 / (100 + _exact(rate)), self.currency)

    def _same(self, other: "Money") -> None:
        if not isinstance(other, Money):
            raise TypeError(f"no money: {other!r}")
        if other.currency != self.currency:
            raise MixedCurrencies(f"{self.currency} and {other.currency}")


def total(amounts: Iterable[Money], currency: str | None = None) -> Money:
    """The sum. An empty one needs `currency`; where it is given, all amounts have to be of it."""
    result = None if currency is None else Money(0, currency)
    for amount in amounts:
        result = amount if result is None else result + amount
    if result is None:
        raise ValueError("the sum of no amounts needs a currency")
    return result


def _exact(number: Number) -> Decimal:
    if isinstance(number, bool) or not isinstance(number, str | int | Decimal):
        raise TypeError(f"an exact number is text, a whole number or a Decimal: {number!r}")
    value = Decimal(number)
    if not value.is_finite():
        raise ValueError(f"no amount: {number!r}")
    return value
