"""What a purchase is worth: the share of what was asked for that it has, times how right its kind is.

    reward = kind · (attributes met + options met + [price ≤ limit]) / (attributes + options + 1)

An attribute is met by an attribute of the product that is nearly equal (token-set ratio above 85), or where it stands
in the title, the features or the description. An option is met by any option that was chosen and is nearly equal; of a
text that holds a color only the color counts. The kind is 1 for a product of the same search term, of two common levels
of category, or whose title has more than 0.2 of the nouns asked for; 0.5 else; 0.1 below 0.1 of the nouns, 0 with none.

The original site asks a language model for the nouns of a title: the words that spaCy's en_core_web_sm tags as noun or
proper noun. With a spaCy model the reward is the site's (:func:`tagged_nouns`). It is a download of its own, and goes
by the capital letters of titles more than by their grammar. Without one, every word of a title is a noun but function
words, common adjectives, participles and adverbs, and bare numbers. Where the two differ, a title's score differs by a
word of some ten; the reward changes only where that crosses 0, 0.1 or 0.2, for a product of another kind than was asked
for. The very product has the whole reward either way.

Source: section 3 of the WebShop paper (arXiv 2207.01206) and the behavior of its site.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import lru_cache
from threading import Lock
from types import ModuleType
from typing import Any

from crl.errors import BadInput
from crl.paths import quoted, short

_WORD = re.compile(r"[^\W_]+(?:[.&][^\W_]+)*")
_POSSESSIVE = re.compile(r"['’]s\b")
_NUMBER = re.compile(r"[\d.]+(?:st|nd|rd|th|x|xl|pcs|mm|cm|in|ft|oz|ml|lb|lbs|g|kg|w|v)?")
_FUNCTION_WORDS = """
a about above across after all also an and any are around as at away be before behind below between both but by can do
does down each every for from has have he her his how i if in into is it its just let many may more most much my near
no not of off on only onto or our out over per she so some such than that the their them then there these they this
those through to too under until up upon us use used via was we what when where which while who will with within
without you your yourself yours one two three four five six seven eight nine ten
"""
_ADJECTIVES = """
adjustable amazing antique authentic automatic available basic beautiful best better big bold bright broad casual
cheap chic clean clear cold comfortable comfy compact compatible complete cool cordless creative cute daily dark
decorative deep delicate different digital dry durable easy eco elastic electric electronic elegant essential
excellent extra fashionable fast fine firm flat flexible foldable formal free fresh friendly full functional funny
genuine gentle good gorgeous great handmade happy hard heavy high hot huge ideal indoor large latest lightweight
little long loose lovely low luxurious luxury male female manual medium mini modern multi natural new next nice non
normal old open organic original outdoor perfect personal plain popular portable practical premium pretty pure quick
quiet real rechargeable regular removable retro reusable rich romantic round rustic safe sexy sharp short simple
single skinny sleek slim slow small smart smooth soft solid special square stable standard sterile stretchy strong
stylish super sweet tall thick thin tight tiny top traditional trendy true ultra unique universal unisex various
versatile very vintage vivid warm washable waterproof wet wide wild wireless wooden woven young
"""
"""Those that titles are full of."""
_PARTICIPLES = """
assembled based breathable brushed built crafted cropped designed fitted flavored flavoured infused inspired insulated
knitted layered lined listed loaded made mounted padded painted pleated powered printed quilted roasted ruffled
scented sealed shaped sized sliced smoked strapped striped tapered textured tufted unscented upholstered
"""
_OTHER = frozenset(f"{_FUNCTION_WORDS} {_ADJECTIVES} {_PARTICIPLES}".split())
_ENDINGS = ("able", "ible", "ful", "less", "ous", "ish", "ly")
_NOUNS_ALL_THE_SAME = """
belly family fly jelly lily assembly supply butterfly july table vegetable cable dish fish polish radish wish relish
finish spoonful handful
"""
_LIKE_ADJECTIVES = frozenset(_NOUNS_ALL_THE_SAME.split())
NEARLY_EQUAL = 85
"""Two texts are nearly equal above this token-set ratio, rounded to a whole number of percent."""
_COLORS = """
alabaster apricot aqua ash asphalt azure banana beige black blue blush bordeaux bronze brown burgundy camel camo
caramel champagne charcoal cheetah chestnut chocolate christmas coffee cognac copper coral cranberry cream crystal
dark denim eggplant elephant espresso fuchsia gold granite grape graphite grass gray green grey heather indigo ivory
ivy khaki lavender lemon leopard light lilac lime magenta maroon mauve merlot midnight mint mocha multicolor mushroom
mustard natural navy nude olive orange peach pewter pink plum purple rainbow red rose royal rust sand sapphire
seashell silver skull slate steel stone stonewash sunflower tan taupe teal tiger turquoise violet walnut wheat white
wine yellow
"""
COLORS: Sequence[str] = tuple(_COLORS.split())
"""Words that the site takes for colors, in alphabetical order: the first one that a text holds counts, even within
a word."""
GoalOption = str | tuple[str, str]
"""An option asked for: a value, or (name, value) where the goal was made from a product's options."""
Nouns = Callable[[str], Sequence[str]]
"""The nouns of a title, lower-cased, in order, as often as they come."""
_TAGGING = Lock()
_ABOVE_ASCII = dict.fromkeys(range(128, 256))


@lru_cache(maxsize=65_536)
def nouns(title: str) -> tuple[str, ...]:
    """The nouns of a title, lower-cased, in order, as often as they come."""
    found = _WORD.findall(_POSSESSIVE.sub("", title.lower()))
    return tuple(word for word in found if _is_noun(word))


@lru_cache(maxsize=4)
def tagged_nouns(model: str) -> Nouns:
    """As :func:`nouns`, by a spaCy model: its name as `spacy.load` takes it. Raises BadInput where there is none."""
    try:
        import spacy

        tagger = spacy.load(model, exclude=["parser", "ner", "lemmatizer"])
    except (ImportError, OSError, ValueError) as error:
        raise BadInput(
            f"the spaCy model {short(model)} cannot be loaded: {str(error).splitlines()[0]}",
            expected="a model that tags parts of speech; the original site uses en_core_web_sm",
            where="environment.spacy_model",
            next_step=f"pip install spacy && python -m spacy download {quoted(model)}; or leave spacy_model out",
        ) from error

    @lru_cache(maxsize=65_536)
    def found(title: str) -> tuple[str, ...]:
        with _TAGGING:
            return tuple(token.text.lower() for token in tagger(title) if token.pos_ in ("NOUN", "PROPN"))

    return found


def _is_noun(word: str) -> bool:
    if word in _OTHER or _NUMBER.fullmatch(word) or (len(word) == 1 and word.isascii()):
        return False
    adjective = len(word) > 4 and word.endswith(_ENDINGS)
    return not adjective or word in _LIKE_ADJECTIVES


@dataclass(frozen=True, slots=True)
class Wanted:
    """What a goal asks for. `title`, `query` and `product_category` are those of the product it was made from."""

    title: str
    query: str
    product_category: str
    attributes: tuple[str, ...]
    options: tuple[GoalOption, ...]
    price_upper: float


@dataclass(frozen=True, slots=True)
class Offered:
    """What of a product the reward looks at."""

    title: str
    query: str
    product_category: str
    attributes: tuple[str, ...]
    bullets: tuple[str, ...]
    description: str
    price: float


@dataclass(frozen=True, slots=True)
class Reward:
    """A purchase taken apart; `total` is its reward."""

    kind: float
    attributes_met: tuple[bool, ...]
    options_met: tuple[bool, ...]
    price_met: bool

    @property
    def total(self) -> float:
        """The reward, 0 to 1."""
        met = sum(self.attributes_met) + sum(self.options_met) + self.price_met
        return self.kind * (met / (len(self.attributes_met) + len(self.options_met) + 1))


@lru_cache(maxsize=1)
def rapidfuzz() -> tuple[ModuleType, ModuleType]:
    """The modules `fuzz` and `utils` of rapidfuzz. Raises BadInput where it is not installed."""
    try:
        from rapidfuzz import fuzz, utils
    except ImportError as error:
        raise BadInput(
            f"WebShop needs the package rapidfuzz, which cannot be imported: {error}",
            expected="rapidfuzz, which compares attributes and options",
            where="environment webshop",
            next_step="install it: pip install 'rapidfuzz>=3.14' (it belongs to the extra `envs`)",
        ) from error
    return fuzz, utils


def token_set_ratio(first: Any, second: Any) -> int:
    """How equal the words of two texts are, 0 to 100; 100 where one has all words of the other.

    As thefuzz computes it, which the site uses: characters 128 to 255 are dropped, others that are no letters or digits
    are blanks, and the result is rounded.
    """
    fuzz, utils = rapidfuzz()
    pair = [utils.default_process(str(text).translate(_ABOVE_ASCII)) for text in (first, second)]
    ratio: float = fuzz.token_set_ratio(*pair)
    return round(ratio)


def only_color(option: GoalOption) -> GoalOption:
    """The first color of a text, else the text. Of a (name, value) pair a color only where one of the two equals it."""
    return next((color for color in COLORS if color in option), option)


def kind_of(offered: Offered, wanted: Wanted, nouns_of: Nouns = nouns) -> float:
    """How right the kind of a product is: 0, 0.1, 0.5 or 1."""
    asked_for = nouns_of(wanted.title)
    common = len(set(nouns_of(offered.title)) & set(asked_for))
    score = common / len(asked_for) if asked_for else 0.2
    if score == 0:
        return 0.0
    if score < 0.1:
        return 0.1
    same = score > 0.2 or offered.query == wanted.query or _common_levels(offered, wanted) >= 2
    return 1.0 if same else 0.5


def _common_levels(offered: Offered, wanted: Wanted) -> int:
    levels = ({level.strip() for level in each.product_category.split("›")} for each in (offered, wanted))
    return len(set.intersection(*levels))


def attribute_met(attribute: str, offered: Offered) -> bool:
    """Whether a product has an attribute that is asked for."""
    if any(token_set_ratio(each, attribute) > NEARLY_EQUAL for each in offered.attributes):
        return True
    texts = offered.title, " ".join(offered.bullets), offered.description
    return any(attribute in text.lower() for text in texts)


def option_met(option: GoalOption, chosen: Sequence[str]) -> bool:
    """Whether one of the values that were chosen is the option that is asked for."""
    asked_for = only_color(option)
    return any(token_set_ratio(only_color(value), asked_for) > NEARLY_EQUAL for value in chosen)


def reward_of(offered: Offered, wanted: Wanted, chosen: Sequence[str], nouns_of: Nouns = nouns) -> Reward:
    """What buying a product with the option values that were chosen is worth."""
    return Reward(
        kind=kind_of(offered, wanted, nouns_of),
        attributes_met=tuple(attribute_met(each, offered) for each in wanted.attributes),
        options_met=tuple(option_met(each, chosen) for each in wanted.options),
        price_met=offered.price <= wanted.price_upper,
    )
