"""Forms that a site's visitors send, read within bounds."""

from __future__ import annotations

from typing import TYPE_CHECKING
from urllib.parse import parse_qsl

from starlette.exceptions import HTTPException

if TYPE_CHECKING:
    from starlette.requests import Request


async def read_form(request: Request, site: str, most_bytes: int, most_fields: int) -> dict[str, str]:
    """Read the fields of a form, the last of equal names; `site` is its name in errors.

    Raises:
        HTTPException: it is too long, or has too many fields.
    """
    body = bytearray()
    async for part in request.stream():
        body += part
        if len(body) > most_bytes:
            raise HTTPException(413, f"{site} reads {most_bytes:,} bytes at once. Nothing was done.")
    try:
        text = body.decode("utf-8", "replace")
        fields = parse_qsl(text, keep_blank_values=True, errors="replace", max_num_fields=most_fields)
    except ValueError as error:
        raise HTTPException(400, f"{site} has no form with so many fields. Nothing was done.") from error
    return {name: value.replace("\r\n", "\n") for name, value in fields}  # as browsers send the ends of lines
