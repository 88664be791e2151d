"""Forms that a site's visitors send, read within bounds."""

from __future__ import annotations

import asyncio
from typing import TYPE_CHECKING, Final
from urllib.parse import parse_qsl

from starlette.exceptions import HTTPException
from starlette.requests import ClientDisconnect

if TYPE_CHECKING:
    from starlette.requests import Request

FORM_TIMEOUT_S: Final = 10.0  # how long a form may take to arrive


async def read_form(request: Request, site: str, most_bytes: int, most_fields: int) -> dict[str, str]:
    """Read the fields of a form, the last of equal names; `site` is its name in errors.

    Raises:
        HTTPException: it is too long or too slow, or no form of the site.
    """
    kind = request.headers.get("content-type", "").partition(";")[0].strip().lower()
    body = bytearray()
    try:
        async with asyncio.timeout(FORM_TIMEOUT_S):
            async for part in request.stream():
                body += part
                if len(body) > most_bytes:
                    raise HTTPException(413, f"{site} reads {most_bytes:,} bytes at once. Nothing was done.")
    except TimeoutError as error:
        raise HTTPException(408, "The form did not arrive in time. Nothing was done.") from error
    except ClientDisconnect as error:  # no reader is left, and the terminal need not hear of it
        raise HTTPException(400, "The form broke off. Nothing was done.") from error
    if body and kind != "application/x-www-form-urlencoded":
        raise HTTPException(415, f"{site} reads forms as a browser sends them. Nothing was done.")
    try:
        text = body.decode("utf-8", "replace")
        fields = parse_qsl(text, keep_blank_values=True, errors="replace", max_num_fields=most_fields)
    except ValueError as error:
        raise HTTPException(400, f"{site} has no form with so many fields. Nothing was done.") from error
    return {name: value.replace("\r\n", "\n") for name, value in fields}  # as browsers send the ends of lines
