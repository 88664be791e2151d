"""What all actors need: room on a node, and answers within a time limit, with errors of one line."""

from __future__ import annotations

import re
from typing import Any, NamedTuple

import ray

from trailnotes.errors import ClusterError, TrailnotesError


class Bundle(NamedTuple):
    """Room for one actor, reserved by a placement group."""

    strategy: Any  # scheduling strategy that places an actor there
    node: str  # name in messages
    address: str  # of its node


def get_result(ref: Any, who: str, limit: float, setting: str) -> Any:
    """Get the value of a reference of Ray, which `who` is to give within `limit` seconds, the setting of that name.

    Raises:
        ClusterError: there is no answer in time, or the actor is lost.
        TrailnotesError: raised by the actor.
    """
    try:
        return ray.get(ref, timeout=limit)
    except TimeoutError as error:  # that of Ray, too
        raise ClusterError(f"{who} did not answer within {setting} = {limit:g} s") from error
    except ray.exceptions.RayTaskError as error:
        if isinstance(error.cause, TrailnotesError):
            raise error.cause from None
        raise
    except ray.exceptions.RayError as error:
        raise ClusterError(f"{who} was lost: {extract_cause(error)}") from error


def extract_cause(error: Exception) -> str:
    """Extract why Ray lost an actor from its long message."""
    text = " ".join(str(error).split())
    match = re.search(r" because ((?:[^.]|\.\S)+)", text)
    return match[1] if match else text[:200]
