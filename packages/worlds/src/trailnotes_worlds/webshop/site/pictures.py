"""Product pictures, drawn instead of photographed: a pure function of asin and department.

Only numbers and the constants below reach the markup, never a text of the catalogue: it may stand in a page as it is.
"""

from __future__ import annotations

import hashlib
from functools import lru_cache
from typing import Final

SIDE: Final = 120  # units of the view box

# Department -> drawings. A letter stands for a fill: m(ain), d(ark), l(ight), a(ccent).
_DRAWINGS: Final[dict[str, tuple[tuple[tuple[str, str], ...], ...]]] = {
    "beauty": (
        (  # a bottle with a pump
            ("d", "M54 20h22v7H64v13h-8V27h-2z"),
            ("m", "M44 46q0-7 7-7h18q7 0 7 7v46q0 8-8 8H52q-8 0-8-8z"),
            ("l", "M50 60h20v22H50z"),
            ("a", "M54 66h12v3H54zm0 7h8v3h-8z"),
        ),
        (  # a tube
            ("m", "M42 22h36l-6 62H48z"),
            ("d", "M47 86h26v14q0 3-3 3H50q-3 0-3-3z"),
            ("l", "M51 36h18l-2 24H53z"),
            ("a", "M56 43h8v9h-8z"),
        ),
        (  # a jar of cream
            ("d", "M36 40q0-6 6-6h36q6 0 6 6v12H36z"),
            ("m", "M34 54h52v30q0 12-12 12H46q-12 0-12-12z"),
            ("l", "M44 64h32v18H44z"),
            ("a", "M60 66c5 5 5 9 0 14c-5-5-5-9 0-14z"),
        ),
    ),
    "electronics": (
        (  # headphones
            ("d", "M30 70a30 30 0 0 1 60 0h-7a23 23 0 0 0-46 0z"),
            ("m", "M26 66h12q4 0 4 4v22q0 4-4 4h-4q-8 0-8-8z"),
            ("m", "M94 66H82q-4 0-4 4v22q0 4 4 4h4q8 0 8-8z"),
            ("a", "M32 72h4v18h-4zm52 0h4v18h-4z"),
        ),
        (  # a phone
            ("d", "M42 18h36q6 0 6 6v72q0 6-6 6H42q-6 0-6-6V24q0-6 6-6z"),
            ("l", "M41 28h38v60H41z"),
            ("m", "M41 70l14-16l10 10l6-6l8 8v22H41z"),
            ("a", "M68 36a6 6 0 1 1 0 12a6 6 0 0 1 0-12z"),
        ),
        (  # a loudspeaker
            ("m", "M42 18h36q6 0 6 6v72q0 6-6 6H42q-6 0-6-6V24q0-6 6-6z"),
            ("d", "M60 26a10 10 0 1 1 0 20a10 10 0 0 1 0-20zm0 24a20 20 0 1 1 0 40a20 20 0 0 1 0-40z"),
            ("l", "M60 59a11 11 0 1 1 0 22a11 11 0 0 1 0-22z"),
            ("a", "M60 31a5 5 0 1 1 0 10a5 5 0 0 1 0-10z"),
        ),
    ),
    "fashion": (
        (  # a shirt
            ("m", "M46 28l-24 12l8 20l10-4v42h40V56l10 4l8-20l-24-12q-4 9-14 9t-14-9z"),
            ("d", "M46 28q4 15 14 15t14-15l-5-2q-3 9-9 9t-9-9z"),
            ("l", "M46 62h28v6H46z"),
            ("a", "M46 72h28v4H46z"),
        ),
        (  # a dress
            ("m", "M48 20h5q7 9 14 0h5v20l-4 12l20 46H32l20-46l-4-12z"),
            ("d", "M51 50h18l2 6H49z"),
            ("l", "M40 84h40l3 6H37z"),
            ("a", "M55 53h10v3H55z"),
        ),
        (  # a bag
            ("d", "M44 48V40a16 16 0 0 1 32 0v8h-6v-8a10 10 0 0 0-20 0v8z"),
            ("m", "M32 46h56l6 50q0 5-5 5H31q-5 0-5-5z"),
            ("l", "M36 60h48l2 14H34z"),
            ("a", "M56 62h8v10h-8z"),
        ),
    ),
    "garden": (
        (  # a plant in a pot
            ("m", "M60 66C40 62 34 46 38 28c16 4 24 18 22 38zm0 0c18-2 26-14 26-30c-16 0-26 12-26 30z"),
            ("d", "M57 46h6v26h-6z"),
            ("a", "M38 72h44v10H38z"),
            ("l", "M42 82h36l-5 20H47z"),
        ),
        (  # a lamp
            ("a", "M44 22h32l14 34H30z"),
            ("d", "M57 56h6v36h-6z"),
            ("m", "M42 92h36q4 0 4 6v3H38v-3q0-6 4-6z"),
            ("l", "M49 28h10l-4 22H41z"),
        ),
        (  # an armchair
            ("m", "M40 30q0-8 8-8h24q8 0 8 8v34H40z"),
            ("d", "M28 54q0-5 6-5t6 5v16h40V54q0-5 6-5t6 5v34H28z"),
            ("l", "M42 66h36v10H42z"),
            ("a", "M34 88h6v12h-6zm46 0h6v12h-6z"),
        ),
    ),
    "grocery": (
        (  # a jar
            ("d", "M44 22h32v12H44z"),
            ("m", "M40 38h40q6 6 6 14v40q0 8-8 8H42q-8 0-8-8V52q0-8 6-14z"),
            ("l", "M34 58h52v26H34z"),
            ("a", "M60 62a9 9 0 1 1 0 18a9 9 0 0 1 0-18z"),
        ),
        (  # an apple
            ("m", "M60 44c-10-8-34-6-34 20c0 20 14 38 24 38c4 0 6-2 10-2s6 2 10 2c10 0 24-18 24-38c0-26-24-28-34-20z"),
            ("d", "M58 44c0-12 2-18 8-24l5 3c-5 6-7 11-7 21z"),
            ("a", "M66 32c4-10 12-14 22-12c-2 10-10 16-22 12z"),
            ("l", "M36 62c0-8 4-12 10-13c-4 6-5 12-4 22c-4-1-6-4-6-9z"),
        ),
        (  # a packet
            ("m", "M38 26h44v76H38z"),
            ("d", "M38 26l6-8h32l6 8z"),
            ("l", "M44 44h32v30H44z"),
            ("a", "M60 48c10 6 10 16 0 22c-10-6-10-16 0-22z"),
        ),
    ),
}
_DEFAULT_DRAWING: Final = (
    (
        ("m", "M28 44l32-14l32 14v40l-32 16l-32-16z"),
        ("l", "M28 44l32 14l32-14l-32-14z"),
        ("d", "M60 58l32-14v40l-32 16z"),
        ("a", "M43 37l32 14v12l-7 3V54L36 40z"),
    ),
)


@lru_cache(maxsize=4096)
def draw_picture(asin: str, department: str) -> str:
    """The SVG element of a product; departments that we do not draw are parcels."""
    digest = hashlib.blake2b(asin.encode("utf-8", "replace"), digest_size=8).digest()
    drawings = _DRAWINGS.get(department, _DEFAULT_DRAWING)
    drawing = drawings[digest[0] % len(drawings)]
    hue = digest[1] * 360 // 256
    fills = {
        "m": f"hsl({hue} 42% 52%)",
        "d": f"hsl({hue} 38% 30%)",
        "l": f"hsl({hue} 55% 88%)",
        "a": f"hsl({(hue + 140 + digest[2] % 80) % 360} 70% 62%)",
    }
    x, y, radius = 20 + digest[3] % 80, 20 + digest[4] % 80, 28 + digest[5] % 26
    shapes = "".join(f'<path fill="{fills[fill]}" d="{path}"/>' for fill, path in drawing)
    return (
        f'<svg viewBox="0 0 {SIDE} {SIDE}" aria-hidden="true" focusable="false">'
        f'<rect width="{SIDE}" height="{SIDE}" fill="hsl({hue} 40% 95%)"/>'
        f'<circle cx="{x}" cy="{y}" r="{radius}" fill="hsl({(hue + 40) % 360} 48% 89%)"/>{shapes}</svg>'
    )
