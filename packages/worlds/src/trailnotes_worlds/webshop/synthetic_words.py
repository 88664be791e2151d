"""The words of the synthetic catalogue: kinds of products, what may be said of them, and what they come in.

All of them are ours; no product, brand or sentence is taken from a real shop.
"""

from __future__ import annotations

BRANDS = (
    "Alderby", "Brackwell", "Cindrel", "Dovanna", "Eskelin", "Farrowgate", "Glimmet", "Hollisk", "Ivanter", "Jorrick",
    "Kestrow", "Lumbry", "Marrowby", "Nettledon", "Orvane", "Pellimar", "Quorndale", "Ristova", "Sablewick", "Tillock",
    "Umbrel", "Vantrose", "Wexcombe", "Yarrowin", "Zephrane",
)  # fmt: skip
SERIES = ("Classic", "Comfort", "Daily", "Essential", "Harbor", "Meadow", "Nova", "Prime", "Select", "Studio")

# An asin is a word of each of these: ten letters, as long as a real one.
ASIN_WORDS = (
    ("ACRE", "BARK", "BIRD", "BOLT", "BULB", "CALF", "CAVE", "CLAY", "CLAW", "COAL", "CRAB", "CROW", "DAWN", "DEER",
     "DOVE", "DUNE", "ECHO", "FERN", "FOAM", "FROG", "GATE", "GOAT", "GULL", "HARE", "HARP", "HAWK", "HILL", "IRIS",
     "ISLE", "KELP", "KITE", "LAKE", "LARK", "LEAF", "LION", "LYNX", "MAST", "MOLE", "MOON", "MOSS", "MOTH", "NEST",
     "OATH", "OPAL", "PIER", "PIKE", "PLUM", "POND", "POET", "QUAY", "RAFT", "REEF", "ROOK", "SAIL", "SEAL", "SWAN",
     "TIDE", "TOAD", "VALE", "VINE", "WASP", "WAVE", "WOLF", "WREN"),
    ("ANT", "APE", "AUK", "AXE", "BAT", "BEE", "BUD", "BUN", "CAT", "COD", "COW", "CUB", "DOE", "EEL", "ELK", "ELM",
     "EMU", "EWE", "FIG", "FIN", "FLY", "FOX", "GEM", "GNU", "HEN", "HOG", "IVY", "JAY", "KOI", "OWL", "PAW", "PIG",
     "PUG", "RAM", "RAT", "SOW", "URN", "YAK", "YEW", "ZOO"),
    ("ARC", "ASH", "BAY", "DAM", "DEN", "EGG", "FIR", "FOG", "GAP", "HAY", "HOE", "HUT", "ICE", "INK", "JAM", "JAR",
     "JUG", "KEG", "KID", "LOG", "MAP", "MUD", "OAK", "OAR", "ORB", "PEG", "POD", "RAY", "RYE", "SKY", "SUN", "TAR",
     "TOE", "TOY", "TUB", "VAN", "VAT", "WEB", "YAM", "ZIP"),
)  # fmt: skip

OPTIONS = {
    "color": ("black", "white", "navy", "forest green", "dusty rose", "mustard", "slate grey", "burgundy", "sky blue",
              "ivory", "teal", "coral"),
    "size": ("x-small", "small", "medium", "large", "x-large", "xx-large"),
    "shoe size": ("6", "7", "8", "9", "10", "11"),
    "volume": ("50 ml", "100 ml", "200 ml", "400 ml"),
    "scent": ("lavender", "cedar", "citrus", "rose petal", "unscented", "sea salt"),
    "shade": ("fair", "sand", "honey", "chestnut", "cocoa"),
    "flavor": ("vanilla", "dark cocoa", "salted caramel", "wild berry", "original", "lemon", "chili"),
    "pack": ("pack of 1", "pack of 2", "pack of 4", "pack of 6"),
    "weight": ("6 ounce", "12 ounce", "2 pound", "5 pound"),
    "length": ("3 ft", "6 ft", "10 ft", "15 ft"),
    "capacity": ("32 gb", "64 gb", "128 gb", "256 gb"),
    "dimensions": ("40 x 60 cm", "60 x 90 cm", "80 x 120 cm", "120 x 180 cm"),
    "finish": ("matte", "gloss", "brushed", "weathered"),
}  # fmt: skip

# department > branch > shelf | singular | plural
#     attributes | options | dollars
KINDS = """
beauty > Skin Care > Face | face cream | face creams
    fragrance free, for dry skin, paraben free, fast absorbing, with hyaluronic acid | volume scent | 9-48
beauty > Skin Care > Face | clay mask | clay masks
    deep cleansing, for oily skin, cruelty free, with green tea, travel size | volume | 7-30
beauty > Skin Care > Body | body scrub | body scrubs
    with sea salt, sulfate free, for sensitive skin, vegan, coarse grain | scent volume | 8-28
beauty > Skin Care > Sun | sunscreen stick | sunscreen sticks
    water resistant, reef safe, fragrance free, for sensitive skin, easy to carry | pack | 6-25
beauty > Hair Care > Shampoo | shampoo bar | shampoo bars
    sulfate free, color safe, for curly hair, plastic free, with argan oil | scent pack | 5-22
beauty > Hair Care > Tools | detangling brush | detangling brushes
    anti static, for thick hair, heat resistant, easy to clean, soft bristles | color | 6-24
beauty > Hair Care > Styling | hair wax | hair waxes
    strong hold, water based, matte look, fragrance free, easy to wash out | volume scent | 7-26
beauty > Makeup > Eyes | eyeliner pen | eyeliner pens
    smudge proof, long lasting, cruelty free, fine tip, quick drying | color pack | 5-21
beauty > Makeup > Face | foundation | foundations
    oil free, full coverage, long lasting, for combination skin, vegan | shade volume | 11-45
beauty > Makeup > Lips | lip tint | lip tints
    non sticky, long lasting, with vitamin e, paraben free, buildable color | shade | 5-19
beauty > Oral Care > Brushes | toothbrush | toothbrushes
    soft bristles, bamboo handle, plastic free, for sensitive gums, easy grip | color pack | 3-18
beauty > Nails > Polish | nail polish | nail polishes
    quick drying, chip resistant, cruelty free, high gloss, non toxic | color | 4-16
electronics > Audio > Headphones | wireless headphones | wireless headphones
    noise cancelling, long battery life, foldable, with carrying case, fast charging | color | 29-240
electronics > Audio > Headphones | sport earbuds | sport earbuds
    water resistant, secure fit, hands free, fast charging, touch control | color | 18-130
electronics > Audio > Speakers | portable speaker | portable speakers
    water resistant, stereo sound, long battery life, easy to carry, hands free | color | 15-160
electronics > Phones > Cables | charging cable | charging cables
    fast charging, nylon braided, tangle free, heavy duty, with cable tie | length color | 5-28
electronics > Phones > Cases | phone case | phone cases
    shock proof, slim fit, wireless charging compatible, anti slip, clear back | color finish | 7-40
electronics > Phones > Stands | phone stand | phone stands
    height adjustable, foldable, anti slip, aluminum alloy, easy to carry | color | 8-34
electronics > Computers > Storage | memory card | memory cards
    high speed, water resistant, shock proof, with adapter, for cameras | capacity pack | 9-90
electronics > Computers > Input | mechanical keyboard | mechanical keyboards
    hot swappable, back lit, quiet switches, compact layout, plug and play | color | 35-190
electronics > Computers > Input | travel mouse | travel mice
    silent click, ergonomic shape, long battery life, plug and play, ultra slim | color | 9-60
electronics > Cameras > Tripods | camera tripod | camera tripods
    light weight, quick release, carbon fiber, with carrying case, height adjustable | color | 22-210
electronics > Home > Clocks | alarm clock | alarm clocks
    battery powered, dimmable display, easy to read, with usb port, dual alarm | color finish | 11-55
electronics > Home > Lamps | desk lamp | desk lamps
    dimmable, energy saving, with usb port, eye caring, height adjustable | color | 16-95
fashion > Women > Dresses | wrap dress | wrap dresses
    machine wash, long sleeve, with pockets, breathable fabric, for special occasions | size color | 19-110
fashion > Women > Shoes | ankle boots | ankle boots
    water resistant, memory foam, low heel, side zipper, non slip sole | shoe size color | 32-160
fashion > Women > Tops | linen blouse | linen blouses
    hand wash only, short sleeve, button closure, relaxed fit, breathable fabric | size color | 16-75
fashion > Women > Bags | tote bag | tote bags
    vegan leather, with inner pocket, water resistant, light weight, zip closure | color | 14-120
fashion > Men > Shirts | flannel shirt | flannel shirts
    machine wash, long sleeve, relaxed fit, button closure, quality cotton | size color | 17-70
fashion > Men > Shoes | canvas sneakers | canvas sneakers
    rubber sole, memory foam, light weight, non slip sole, arch support | shoe size color | 24-110
fashion > Men > Trousers | chino trousers | chino trousers
    slim fit, elastic waist, wrinkle free, with pockets, machine wash | size color | 22-85
fashion > Men > Watches | field watch | field watches
    stainless steel, water resistant, quartz movement, easy to read, leather band | color | 30-230
fashion > Unisex > Hats | knit beanie | knit beanies
    merino wool, fleece lined, machine wash, stretchy fit, hypoallergenic | color | 8-38
fashion > Unisex > Socks | hiking socks | hiking socks
    merino wool, moisture wicking, arch support, cushioned sole, seamless toe | size color | 7-32
fashion > Unisex > Scarves | winter scarf | winter scarves
    cashmere feel, extra long, hand wash only, hypoallergenic, double sided | color | 12-80
fashion > Unisex > Outerwear | rain jacket | rain jackets
    water resistant, packable hood, breathable fabric, reflective trim, with pockets | size color | 28-170
garden > Furniture > Living Room | coffee table | coffee tables
    solid wood, easy to assemble, with storage space, scratch resistant, metal legs | finish color | 60-420
garden > Furniture > Living Room | floor lamp | floor lamps
    energy saving, dimmable, heavy base, easy to assemble, for living room | color finish | 35-180
garden > Furniture > Bedroom | nightstand | nightstands
    with drawer, space saving, solid wood, easy to assemble, soft close | color finish | 40-230
garden > Furniture > Office | office chair | office chairs
    lumbar support, height adjustable, breathable mesh, easy to assemble, heavy duty | color | 70-380
garden > Textiles > Bedding | duvet cover | duvet covers
    machine wash, zip closure, wrinkle free, organic cotton, with corner ties | dimensions color | 22-120
garden > Textiles > Bath | bath mat | bath mats
    non slip, quick drying, machine wash, memory foam, super absorbent | dimensions color | 10-48
garden > Textiles > Windows | blackout curtain | blackout curtains
    machine wash, noise reducing, for bedroom, energy saving, grommet top | dimensions color | 15-90
garden > Decor > Walls | wall clock | wall clocks
    silent movement, battery powered, easy to read, solid wood, for living room | color finish | 13-85
garden > Decor > Candles | soy candle | soy candles
    lead free wick, long burning, hand poured, reusable jar, non toxic | scent pack | 7-36
garden > Kitchen > Storage | storage jar | storage jars
    air tight, dishwasher safe, bpa free, stackable, with bamboo lid | volume pack | 8-44
garden > Kitchen > Knives | chef knife | chef knives
    stainless steel, full tang, non slip handle, hand forged, with blade guard | finish | 18-150
garden > Outdoor > Pots | plant pot | plant pots
    with drainage hole, frost resistant, light weight, self watering, uv resistant | color dimensions | 6-70
grocery > Snacks > Bars | protein bar | protein bars
    gluten free, low sugar, plant based, high protein, soy free | flavor pack | 3-34
grocery > Snacks > Nuts | roasted almonds | roasted almonds
    non gmo, low sodium, resealable bag, oven roasted, kosher certified | flavor weight | 6-38
grocery > Snacks > Crisps | lentil crisps | lentil crisps
    gluten free, non gmo, plant based, low fat, baked not fried | flavor pack | 3-26
grocery > Snacks > Chocolate | chocolate bites | chocolate bites
    fair trade, dairy free, low sugar, soy free, individually wrapped | flavor weight | 5-32
grocery > Drinks > Tea | herbal tea | herbal teas
    caffeine free, usda organic, plastic free bags, hand picked, non gmo | flavor pack | 4-24
grocery > Drinks > Coffee | ground coffee | ground coffees
    fair trade, dark roast, low acid, usda organic, small batch | weight | 7-42
grocery > Drinks > Mixers | ginger syrup | ginger syrups
    cold pressed, no artificial flavors, vegan, glass bottle, non gmo | volume pack | 6-28
grocery > Pantry > Grains | rolled oats | rolled oats
    gluten free, whole grain, non gmo, quick cooking, resealable bag | weight | 4-25
grocery > Pantry > Sauces | tomato sauce | tomato sauces
    no added sugar, low sodium, vegan, glass jar, slow cooked | flavor pack | 3-24
grocery > Pantry > Spreads | nut butter | nut butters
    no added sugar, palm oil free, high protein, stone ground, keto friendly | flavor weight | 5-30
grocery > Pantry > Spices | spice blend | spice blends
    salt free, hand mixed, no artificial colors, non gmo, resealable bag | flavor weight | 3-20
grocery > Breakfast > Granola | granola clusters | granola clusters
    gluten free, high fiber, low sugar, with honey, resealable bag | flavor weight | 5-28
"""

# What a person says who wants something: {kinds}, {that} for their attributes, {options} for what they come in.
INSTRUCTION_TEMPLATES = (
    "i need {kinds}: {that}{options}",
    "i am looking for {kinds}, {that}{options}",
    "can you find me some {kinds}? {that}{options}",
    "my sister wants {kinds}, and the label has to say {that}{options}",
    "please show me {kinds}. {that} is a must{options}",
    "i would like to buy {kinds} for the summer, {that}{options}",
    "we ran out of {kinds}; get the kind that says {that}{options}",
)
OPTION_TEMPLATES = (", in {0}", ", and i want {0}", ". i take {0} only", ", {0} please")

DESCRIPTION_TEMPLATES = (
    "{Brand} makes {kinds} for everyday use. First of all: {first}. Nobody has to think about it twice.",
    "From the {Series} line of {kinds} by {Brand}. What sets it apart: {first}. We checked each one by hand.",
    "The most asked for of our {kinds}. Those who chose it name one reason before all others: {first}.",
    "Our {Series} {kinds} were drawn anew this year. What stayed: {first}. They are now a little easier to pack.",
)
BULLET_TEMPLATES = (
    "{Attribute}: you will notice it from the first day. ",
    "{Attribute}, as you asked for in so many letters to us. ",
    "{Attribute} is how we made it, because everything else breaks, spills or bores. ",
    "{Attribute}: tested for a year in our own homes. ",
    "{Attribute} - and if it is not, send it back within thirty days. ",
)
BULLET_ENDINGS = (
    "Comes in a box of recycled paper. ",
    "Questions? We answer within a day. ",
    "Weight and measures may differ a little from what is printed. ",
    "Drawn in a small town by the sea, made where the work is paid fairly. ",
)
# Titles that name another kind than the one that is sold.
MISLEADING_TITLES = (
    "{Brand} {Kind} - Goes With All {Others}",
    "{Brand} {Series} {Kind}, Not for {Others}",
    "{Kind} by {Brand}, Makers of {Others}",
    "{Brand} {Kind} for Those Who Have {Others}",
)
