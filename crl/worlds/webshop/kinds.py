# ruff: noqa: E501 (a table with one line per kind)
"""The word lists of our own catalog: kinds of products with their category, qualities, uses, options and prices.

All of it was written for this project. Values of one option are told apart by the reward: none is nearly equal to
another, and no word of them holds a color by chance (`standard` holds `tan`), but for sizes of clothes, where a large one
passes for an x-large one, as on the original site.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from functools import cache


@dataclass(frozen=True, slots=True)
class Kind:
    """A kind of product. `query` is what it is searched by; `options` names two of :data:`OPTIONS`."""

    department: str
    query: str
    product_category: str
    attributes: tuple[str, ...]
    uses: tuple[str, ...]
    options: tuple[str, ...]
    lowest: int
    highest: int


OPTIONS: Mapping[str, Sequence[str]] = {
    option: tuple(values.split(", "))
    for option, values in {
        "flavor": "maple, cinnamon, honey, vanilla, mango, ginger, strawberry, coconut, sea salt, almond",
        "scent": "lavender, jasmine, cedar, bergamot, eucalyptus, vanilla, rose, fresh linen",
        "color": "black, white, blue, green, red, grey, pink, purple, yellow, brown, beige, teal, ivory, olive",
        "size": "x-small, small, medium, large, x-large, xx-large",
        "shoe size": "us 5, us 6, us 7, us 8, us 9, us 10, us 11",
        "bed size": "twin, full, queen, king",
        "pack": "6 count, 12 count, 24 count, 48 count",
        "weight": "8 ounce, 16 ounce, 32 ounce, 64 ounce",
        "volume": "100 ml, 250 ml, 500 ml, 750 ml",
        "length": "3 feet, 6 feet, 10 feet, 15 feet",
        "memory": "32 gb, 64 gb, 128 gb, 256 gb",
        "capacity": "5000 mah, 10000 mah, 20000 mah, 30000 mah",
        "width": "5 inch, 7 inch, 9 inch, 12 inch",
        "holds": "15 liters, 22 liters, 30 liters, 45 liters",
        "sold as": "single, pair, set of six",
        "wood": "oak, walnut, bamboo, pine, birch, cherry",
        "skin type": "oily, sensitive, mature, combination",
        "shade": "peach, plum, coral, nude, mauve, cranberry",
    }.items()
}

_SOURCE = """
grocery | granola bars | Grocery › Snacks › Bars › Granola Bars | gluten free, low sugar, high protein, nut free, dairy free, individually wrapped, non gmo, plant based | hiking, school lunches, long drives | flavor, pack | 4-28
grocery | herbal tea | Grocery › Beverages › Tea › Herbal Tea | caffeine free, usda organic, hand picked, fair trade, loose leaf, kosher certified, sugar free, resealable pouch | quiet evenings, iced pitchers, office breaks | flavor, weight | 5-35
grocery | ground coffee | Grocery › Beverages › Coffee › Ground Coffee | dark roast, low acid, fair trade, single origin, small batch, shade grown, kosher certified, usda organic | drip machines, camping mugs, early shifts | flavor, weight | 7-45
grocery | trail mix | Grocery › Snacks › Nuts › Trail Mix | no salt added, high fiber, gluten free, non gmo, low sodium, resealable pouch, high protein, sugar free | backpacking, desk drawers, movie nights | flavor, weight | 4-30
grocery | rice crackers | Grocery › Snacks › Crackers › Rice Crackers | gluten free, oven baked, fat free, low sodium, non gmo, artificial colors free, individually wrapped, plant based | cheese boards, toddlers, dips | flavor, pack | 3-22
grocery | pancake mix | Grocery › Baking › Mixes › Pancake Mix | high protein, keto friendly, gluten free, just add water, dairy free, whole grain, low carb, sugar free | weekend breakfasts, camp stoves, waffle irons | flavor, weight | 4-26
grocery | nut butter | Grocery › Spreads › Nut Butter | no stir, palm oil free, low carb, stone ground, non gmo, sugar free, keto friendly, high fiber | toast, smoothies, baking | flavor, weight | 5-32
grocery | dried fruit | Grocery › Snacks › Dried Fruit | freeze dried, sugar free, usda organic, sulfur free, resealable pouch, non gmo, soft bite, fair trade | lunch boxes, oatmeal, long flights | flavor, weight | 4-34
beauty | body lotion | Beauty › Skin Care › Body › Lotions | cruelty free, fast absorbing, paraben free, dermatologist tested, long lasting, shea butter, oil free, hyaluronic acid | dry winters, daily showers, new tattoos | scent, volume | 6-48
beauty | shampoo | Beauty › Hair Care › Shampoo | sulfate free, color safe, tea tree, cruelty free, anti dandruff, argan oil, paraben free, deep cleansing | curly hair, fine hair, swimmers | scent, volume | 5-42
beauty | face serum | Beauty › Skin Care › Face › Serums | vitamin c, fragrance free, hyaluronic acid, anti aging, cruelty free, alcohol free, fast absorbing, dark circles | mornings, travel kits, dull skin | skin type, volume | 9-70
beauty | lipstick | Beauty › Makeup › Lips › Lipstick | long lasting, matte finish, smudge proof, highly pigmented, cruelty free, paraben free, shea butter, easy apply | weddings, office days, stage shows | shade, sold as | 4-38
beauty | bath bombs | Beauty › Bath › Additives › Bath Bombs | handmade soap, epsom salt, cruelty free, skin friendly, dye free, essential oils, gift boxed, paraben free | gift baskets, sore muscles, spa nights | scent, pack | 6-40
beauty | hair brushes | Beauty › Hair Care › Styling › Brushes | boar bristle, wet dry, anti static, detangling, heat resistant, travel size, easy clean, non slip | thick hair, long hair, children | color, wood | 5-36
beauty | face masks | Beauty › Skin Care › Face › Masks | charcoal infused, fragrance free, green tea, deep cleansing, alcohol free, dermatologist tested, vitamin c, individually wrapped | self care days, long flights, tired skin | skin type, pack | 4-32
beauty | candles | Home › Decor › Fragrance › Candles | soy wax, lead free, long lasting, hand poured, smoke free, essential oils, cotton wick, gift boxed | reading corners, dinner tables, baths | scent, weight | 7-46
fashion | running shoes | Clothing › Shoes › Athletic › Running Shoes | arch support, slip resistant, memory foam, breathable mesh, wide fit, reflective trim, machine washable, quick lace | marathons, treadmills, wet trails | color, shoe size | 24-160
fashion | rain jackets | Clothing › Outerwear › Jackets › Rain Jackets | water resistant, wind proof, quick drying, light weight, two way zipper, reflective trim, packable hood, machine washable | commuting, festivals, sailing | color, size | 22-170
fashion | pajama sets | Clothing › Sleepwear › Pajama Sets | long sleeve, button down, elastic waist, machine washable, moisture wicking, tumble dry, soft fleece, organic cotton | cold nights, hospital stays, family photos | color, size | 14-85
fashion | leggings | Clothing › Activewear › Bottoms › Leggings | high waist, tummy control, moisture wicking, squat proof, side pockets, four way stretch, machine washable, quick drying | yoga, cycling, errands | color, size | 11-75
fashion | dress shirts | Clothing › Tops › Shirts › Dress Shirts | slim fit, wrinkle free, long sleeve, button down, stain resistant, organic cotton, moisture wicking, tumble dry | interviews, weddings, warm offices | color, size | 15-95
fashion | sandals | Clothing › Shoes › Casual › Sandals | open toe, arch support, rubber sole, ankle strap, slip resistant, memory foam, vegan leather, quick drying | beaches, city walks, garden work | color, shoe size | 12-88
fashion | backpacks | Clothing › Luggage › Bags › Backpacks | water resistant, laptop sleeve, carry on, padded straps, anti theft, hidden pocket, light weight, usb port | campus, weekend trips, photographers | color, holds | 19-140
fashion | socks | Clothing › Underwear › Hosiery › Socks | moisture wicking, arch support, merino wool, odor resistant, no show, machine washable, reinforced heel, seamless toe | hiking boots, long shifts, cold floors | color, size | 6-34
home | bed sheets | Home › Bedding › Sheets | deep pocket, wrinkle free, organic cotton, cooling fabric, machine washable, fade resistant, hypo allergenic, tumble dry | hot sleepers, guest rooms, bunk beds | color, bed size | 18-130
home | mattress toppers | Home › Bedding › Mattress Toppers | memory foam, gel infused, removable cover, hypo allergenic, non slip, pressure relief, machine washable, cooling fabric | dorm rooms, camper vans, side sleepers | color, bed size | 45-290
home | coffee tables | Home › Furniture › Tables › Coffee Tables | easy assemble, solid wood, storage shelf, space saving, scratch resistant, metal legs, mid century, lift top | living rooms, small flats, lofts | color, wood | 60-420
home | table lamps | Home › Lighting › Lamps › Table Lamps | touch control, usb port, energy efficient, dimmable light, easy install, glass shade, night mode, metal base | bedrooms, desks, nurseries | color, wood | 16-120
home | storage bins | Home › Storage › Bins | stackable design, bpa free, clear lid, space saving, easy clean, heavy duty, collapsible frame, label slots | garages, pantries, toy rooms | color, pack | 12-90
home | window curtains | Home › Decor › Window › Curtains | blackout lining, machine washable, energy efficient, easy install, noise reducing, fade resistant, rod pocket, thermal insulated | nurseries, night workers, street windows | color, length | 15-110
home | picture frames | Home › Decor › Wall › Picture Frames | ready hang, solid wood, shatter proof, acid free, wall mounted, easy clean, metal corners, gift boxed | diplomas, holiday photos, galleries | color, wood | 8-64
home | garden planters | Home › Outdoor › Planters | self watering, uv resistant, drainage holes, light weight, frost proof, hand painted, heavy duty, easy clean | balconies, herbs, front doors | color, pack | 10-98
electronics | charging cables | Electronics › Accessories › Cables › Charging Cables | fast charging, braided nylon, tangle free, water resistant, heavy duty, magnetic tip, gold plated, right angle | car seats, bedside tables, power banks | color, length | 6-32
electronics | wireless earbuds | Electronics › Audio › Headphones › Earbuds | noise cancelling, water resistant, long lasting, touch control, fast charging, hands free, light weight, deep bass | gyms, buses, phone calls | color, sold as | 18-180
electronics | portable speakers | Electronics › Audio › Speakers › Portable Speakers | water resistant, long lasting, stereo sound, hands free, dust proof, fast charging, deep bass, built handle | pools, picnics, workshops | color, width | 17-190
electronics | phone cases | Electronics › Accessories › Phones › Cases | shock proof, wireless charging, anti scratch, card holder, non slip, kick stand, light weight, raised edges | clumsy hands, travel, work sites | color, width | 7-48
electronics | tablet computers | Electronics › Computers › Tablets | quad core, long lasting, high resolution, dual camera, stylus ready, light weight, fast charging, parental control | sketching, children, recipes | color, memory | 75-520
electronics | security cameras | Electronics › Security › Cameras | night vision, motion detection, weather proof, two way audio, wall mounted, wide angle, easy install, battery powered | front doors, barns, baby rooms | color, memory | 28-210
electronics | power banks | Electronics › Accessories › Power › Power Banks | fast charging, light weight, dual output, digital display, airline approved, solar panel, wireless charging, dust proof | festivals, hiking, long flights | color, capacity | 14-92
electronics | desk fans | Electronics › Appliances › Fans › Desk Fans | battery powered, low noise, usb port, easy clean, touch control, three speed, energy efficient, fold flat | hot offices, tents, dorm rooms | color, width | 12-78
"""


@cache
def kinds() -> tuple[Kind, ...]:
    """All kinds of products, in the order of the list."""
    found = []
    for line in _SOURCE.strip().splitlines():
        department, query, category, attributes, uses, options, prices = (part.strip() for part in line.split("|"))
        lowest, _, highest = prices.partition("-")
        qualities, purposes, choices = (tuple(part.split(", ")) for part in (attributes, uses, options))
        found.append(Kind(department, query, category, qualities, purposes, choices, int(lowest), int(highest)))
    return tuple(found)
