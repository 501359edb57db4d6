"""WebShop: a native shop over the original site's data, or over a catalog of our own.

`worlds/search.py` finds products, `goals` says what is asked for and which goal a seed means, `site` is what actions
do, `pages` what is read, `reward` what a purchase is worth, `oracle` a shopper that knows the goal. `own` and `kinds`
make our catalog, `catalog` reads the original files and puts one together. Nothing here writes files.

Source: WebShop (Yao et al., arXiv 2207.01206; github.com/princeton-nlp/WebShop, MIT). No line of it is copied.
"""

from crl.worlds.webshop.environment import WebShopConfig

__all__ = ["WebShopConfig"]
