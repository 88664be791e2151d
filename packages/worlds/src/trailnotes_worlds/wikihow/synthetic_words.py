"""The words of the synthetic library: what its articles are about, who writes them, and what they say.

All of them are ours; no title, name or sentence is taken from a real site.
"""

from __future__ import annotations

from typing import Final

# broadest category -> category -> (verbs, things, circumstances)
SUBJECTS: Final[dict[str, dict[str, tuple[tuple[str, ...], tuple[str, ...], tuple[str, ...]]]]] = {
    "Kitchen and Table": {
        "Breads and Doughs": (
            ("Bake", "Knead", "Freeze", "Shape", "Revive"),
            ("Rye Loaf", "Flatbread", "Sourdough Starter", "Braided Bun", "Oat Cracker", "Pizza Base", "Corn Muffin"),
            ("Without Yeast", "in a Cast Iron Pot", "on a Camp Stove", "for a Large Family", "Overnight"),
        ),
        "Kitchen Tools": (
            ("Sharpen", "Season", "Descale", "Polish", "Store"),
            ("Steel Pan", "Bread Knife", "Copper Kettle", "Wooden Board", "Pepper Mill", "Mandoline", "Moka Pot"),
            ("With Vinegar", "by Hand", "Without Soap", "in a Small Kitchen", "Before Winter"),
        ),
        "Preserves": (
            ("Pickle", "Dry", "Can", "Ferment", "Label"),
            ("Green Tomato", "Plum", "Horseradish Root", "Cucumber", "Apricot", "Chili Pepper", "Beetroot"),
            ("in a Clay Crock", "Without Sugar", "With Honey", "in the Sun", "for the Cellar"),
        ),
    },
    "Garden and Field": {
        "Trees and Hedges": (
            ("Prune", "Graft", "Transplant", "Mulch", "Shape"),
            ("Pear Tree", "Hornbeam Hedge", "Willow", "Young Oak", "Fig Tree", "Hazel Bush", "Quince"),
            ("in Late Winter", "on a Slope", "After a Storm", "in Sandy Soil", "Beside a Wall"),
        ),
        "Vegetable Beds": (
            ("Sow", "Thin", "Water", "Rotate", "Harvest"),
            ("Carrot Row", "Leek Bed", "Pumpkin Patch", "Bean Trellis", "Spinach Bed", "Asparagus Row", "Celeriac"),
            ("in Raised Beds", "Without Digging", "in a Dry Summer", "Under Glass", "on a Balcony"),
        ),
        "Small Animals": (
            ("House", "Feed", "Tame", "Weigh", "Shelter"),
            ("Quail Flock", "Bantam Hen", "Garden Hedgehog", "Rabbit Pair", "Runner Duck", "Bee Colony", "Goat Kid"),
            ("in a Cold Spell", "on a City Plot", "Without Stress", "for the First Time", "During a Move"),
        ),
    },
    "Workshop": {
        "Woodwork": (
            ("Plane", "Glue", "Dovetail", "Stain", "Repair"),
            ("Oak Drawer", "Birch Stool", "Picture Frame", "Tool Chest", "Cutting Jig", "Maple Shelf", "Rocking Horse"),
            ("With Hand Tools", "Without Clamps", "in a Garage", "From Scrap", "in One Weekend"),
        ),
        "Metalwork": (
            ("Solder", "Anneal", "Rivet", "File", "Blacken"),
            ("Brass Hinge", "Steel Bracket", "Tin Lantern", "Garden Gate", "Copper Pipe", "Door Latch", "Fire Poker"),
            ("Without a Forge", "on a Bench Vise", "With a Torch", "Safely Indoors", "to a Fine Finish"),
        ),
        "Plumbing": (
            ("Unclog", "Seal", "Insulate", "Bleed", "Replace"),
            ("Shower Trap", "Kitchen Faucet", "Radiator", "Cistern Valve", "Garden Tap", "Bath Drain", "Boiler Pump"),
            ("Before the Frost", "Without a Plumber", "in an Old House", "in Ten Minutes", "for Good"),
        ),
    },
    "Sport and Travel": {
        "Mountains": (
            ("Plan", "Pack for", "Photograph", "Cross", "Descend"),
            ("Ridge Walk", "Hut Tour", "Glacier Path", "Scree Slope", "Night Ascent", "Snow Gully", "Alpine Pass"),
            ("With Children", "in Fog", "on a Budget", "Without a Guide", "in Early Spring"),
        ),
        "On the Water": (
            ("Launch", "Steer", "Patch", "Moor", "Rig"),
            ("Canvas Canoe", "Sea Kayak", "Fishing Dinghy", "Paddle Board", "Rowing Skiff", "Small Sloop", "Raft"),
            ("in a Crosswind", "From a Beach", "Alone", "on a Tidal River", "After Dark"),
        ),
        "Railways": (
            ("Book", "Board", "Sleep on", "Reach", "Photograph"),
            ("Night Train", "Narrow Gauge Line", "Border Express", "Freight Museum", "Cog Railway", "Branch Line",
             "Steam Special"),
            ("Without a Reservation", "With a Bicycle", "on a Holiday", "in a Foreign Language", "at Short Notice"),
        ),
    },
    "Music and Stage": {
        "String Instruments": (
            ("Tune", "Restring", "Rosin", "Humidify", "Amplify"),
            ("Twelve String Guitar", "Viola", "Mandolin", "Double Bass", "Zither", "Banjo", "Baroque Cello"),
            ("by Ear", "Without a Tuner", "in Dry Weather", "for an Open Tuning", "on Tour"),
        ),
        "Choirs": (
            ("Conduct", "Warm Up", "Audition for", "Arrange for", "Record"),
            ("Village Choir", "Barbershop Quartet", "Gospel Group", "Children's Chorus", "Madrigal Circle",
             "Festival Choir", "Male Octet"),
            ("With Shy Singers", "in a Church", "Without a Piano", "in a Month", "Outdoors"),
        ),
        "Puppets and Masks": (
            ("Carve", "Paint", "Animate", "Costume", "Light"),
            ("Shadow Puppet", "Marionette", "Commedia Mask", "Sock Puppet", "Rod Puppet", "Paper Theatre",
             "Carnival Head"),
            ("for a School Play", "From Paper", "Without Strings", "on a Table", "in an Afternoon"),
        ),
    },
    "Papers and Offices": {
        "Letters": (
            ("Write", "Address", "Seal", "Archive", "Answer"),
            ("Condolence Letter", "Formal Complaint", "Thank You Card", "Reference Letter", "Wedding Invitation",
             "Late Reply", "Notice to a Landlord"),
            ("in Your Own Words", "by Hand", "in Another Language", "Without Offence", "on One Page"),
        ),
        "Bookbinding": (
            ("Bind", "Stitch", "Press", "Gild", "Mend"),
            ("Pocket Notebook", "Photo Album", "Leather Journal", "Sheet Music Set", "Bible", "Comic Book", "Atlas"),
            ("Without a Press", "With Linen Thread", "at Home", "as a Gift", "for Daily Use"),
        ),
        "Household Accounts": (
            ("Balance", "Audit", "Simplify", "Share", "Forecast"),
            ("Grocery Budget", "Heating Bill", "Shared Rent Plan", "Holiday Fund", "Repair Reserve", "Allowance",
             "Car Budget"),
            ("in a Spreadsheet", "With Roommates", "Once a Month", "on Paper", "After a Raise"),
        ),
    },
    "Body and Mind": {
        "Sleep": (
            ("Improve", "Keep", "Interrupt", "Track", "Explain"),
            ("Afternoon Nap", "Sleep Diary", "Late Shift Rhythm", "Bedtime Ritual", "Dream Journal", "Early Start",
             "Quiet Bedroom"),
            ("Without a Phone", "With a Newborn", "in Midsummer", "While Travelling", "for Two Weeks"),
        ),
        "Stretching": (
            ("Loosen", "Strengthen", "Warm Up", "Rest", "Massage"),
            ("Stiff Neck", "Lower Back", "Runner's Calf", "Writing Hand", "Tight Hip", "Shoulder Blade", "Ankle"),
            ("at a Desk", "With a Towel", "in Five Minutes", "After a Run", "Before Bed"),
        ),
        "Learning": (
            ("Memorize", "Outline", "Teach", "Review", "Annotate"),
            ("Long Poem", "Verb Table", "City Map", "Lab Manual", "Chess Opening", "Speech", "Constellation Chart"),
            ("in a Week", "With Flash Cards", "by Drawing", "in a Noisy Room", "Together"),
        ),
    },
    "Machines and Signals": {
        "Bicycles": (
            ("True", "Grease", "Adjust", "Fit", "Lock"),
            ("Rear Wheel", "Bottom Bracket", "Disc Brake", "Child Seat", "Hub Gear", "Tubeless Tyre", "Dynamo Light"),
            ("Without a Stand", "on the Road", "in Winter", "With Two Spanners", "for a Tall Rider"),
        ),
        "Radio": (
            ("Assemble", "Ground", "Log", "Decode", "Shield"),
            ("Crystal Set", "Wire Antenna", "Weather Beacon", "Shortwave Receiver", "Morse Key", "Field Telephone",
             "Repeater"),
            ("in a Flat", "From a Kit", "During a Storm", "on Low Power", "for Beginners"),
        ),
        "Home Computers": (
            ("Back Up", "Clean", "Silence", "Upgrade", "Retire"),
            ("Old Laptop", "Photo Collection", "Print Server", "Home Network", "Game Console", "Mail Archive",
             "Media Player"),
            ("Without Data Loss", "for Parents", "on a Slow Line", "in an Evening", "Step by Step"),
        ),
    },
}  # fmt: skip

FIRST_NAMES: Final = (
    "Amara", "Bastian", "Celine", "Dorota", "Emeka", "Farida", "Gustav", "Hanneke", "Ilya", "Jolanta", "Kenji", "Lucia",
    "Marten", "Nadira", "Oskar", "Petra", "Quentin", "Rosalie", "Sunniva", "Tomasz",
)  # fmt: skip
LAST_NAMES: Final = (
    "Abernethy", "Brouwer", "Castellan", "Drozd", "Eklund", "Fairweather", "Gruber", "Hathersage", "Ilves", "Jurado",
    "Kowal", "Lindqvist", "Mbeki", "Norrington", "Okafor", "Palmgren", "Rasmussen", "Seidel", "Tamura", "Wexler",
)  # fmt: skip
CREDENTIALS: Final = ("", ", MA", ", PhD", ", CPA", ", MS", "")
ROLES: Final = ("Teacher", "Craftsman", "Technician", "Researcher", "Instructor", "Editor")

INTROS: Final = (
    """To {verb} a {thing} looks harder than it is. With a little patience and the right order of steps it can be done
    {how}, and what goes wrong the first time is easily mended.""",
    """Many people put off the day when they have to {verb} a {thing}. It takes less than an afternoon {how}, and the
    tools are in most households already.""",
    """There is more than one way to {verb} a {thing}. The one below works {how}; read all of it first, then lay out
    what you need, and begin when nobody is going to interrupt you.""",
)
HEADINGS: Final = ("Getting Ready", "Doing the Work", "Checking the Result")
STEPS: Final = (
    "Clear a place for the {thing}. Good light matters more than room.",
    "Look the {thing} over from all sides, and note what is worn, loose or missing.",
    "Set aside what you will need, in the order in which you will need it.",
    "Go slowly at first. A {thing} forgives a late start and not a hurried one.",
    "Stop half way and compare with what you had in mind.",
    "Let it rest. What looks uneven now often settles by itself.",
    "Wipe everything down, and put the tools back where they were.",
    "Try it out before you show it to anybody.",
)
REFERENCES: Final = (
    "The Handbook of {subject}, chapter {number}",
    "Notes of the {subject} Society, volume {number}",
    "Interview with a reader of {number} years' experience, on {subject}",
)
ABOUT: Final = ("Articles on {name} for beginners and for those who know the ropes: ", ", ", ", and many more.")
BIO: Final = """{name} has worked on {subject} for {number} years, in a shop, in a school and at home, and answers the
questions of readers about it. Before that came a degree, a long journey, and several books that are out of print."""
