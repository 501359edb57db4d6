"""The nouns of a product's title, by rule: they decide how alike the kinds of two products are.

The original site asks a language model for them: the words that spaCy's en_core_web_sm tags as noun or proper noun. It
is not used here: it is a download of its own, and it goes by the capital letters of titles more than by their grammar.
Here every word of a title is a noun but function words, common adjectives, participles and adverbs, and bare numbers.
Where the two differ, a title's score differs by a word of some ten; the reward changes only where that crosses 0, 0.1
or 0.2, for a product of another kind than was asked for. The very product has the whole reward either way.
"""

from __future__ import annotations

import re
from functools import lru_cache

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


@lru_cache(maxsize=65_536)
def nouns(title: str) -> tuple[str, ...]:
    """The nouns of a title, lower-cased, in order, as often as they come."""
    found = _WORD.findall(_POSSESSIVE.sub("", title.lower()))
    return tuple(word for word in found if _is_noun(word))


def _is_noun(word: str) -> bool:
    if word in _OTHER or _NUMBER.fullmatch(word) or (len(word) == 1 and word.isascii()):
        return False
    adjective = len(word) > 4 and word.endswith(_ENDINGS)
    return not adjective or word in _LIKE_ADJECTIVES
