"""Every error that Trailnotes raises on purpose.

::

    TrailnotesError
    ├── ConfigError        a key, a value or a combination that cannot work; the message names the fix
    ├── MissingExtraError  an optional package is absent; the message names the extra to install
    ├── EnvError           an environment died, hung or answered nonsense (one episode is lost, not the run)
    ├── PolicyError        the engine could not load or could not generate
    ├── BudgetError        a spending limit was reached; what was paid for is kept
    ├── MemoryStoreError   the memory file is corrupt, locked or of a newer version
    ├── RunError           a run directory that is locked, damaged or belongs to another config
    └── NonFiniteError     a loss or gradient that is not finite; training stopped before the step

A `ConfigError` is also a `ValueError`, so callers of the Python API may catch either. `Interrupted` is no error of this
tree but a `KeyboardInterrupt`: nothing that catches errors may catch it.
"""

from __future__ import annotations


class TrailnotesError(Exception):
    """Base of all errors raised on purpose; its text is one line fit for a user."""


class ConfigError(TrailnotesError, ValueError):
    """A setting that cannot work. The text names the key and the fix."""


class MissingExtraError(TrailnotesError, ImportError):
    """An optional dependency is not installed. The text names the extra."""


class EnvError(TrailnotesError):
    """An environment failed. The episode is recorded with `outcome = "error"` and never trained on."""


class PolicyError(TrailnotesError):
    """The policy could not be loaded, or could not answer."""


class BudgetError(TrailnotesError):
    """A request could have passed a spending limit, and was not sent. The text names the limit."""


class MemoryStoreError(TrailnotesError):
    """The memory file cannot be used as it is."""


class RunError(TrailnotesError):
    """A run directory that cannot be used as it is."""


class NonFiniteError(TrailnotesError):
    """A loss or gradient was NaN or infinite; the text names the dump of the batch."""


class Interrupted(KeyboardInterrupt):
    """A signal asked this process to end. `number` is the signal's; the text says what is kept, if there is any."""

    def __init__(self, number: int, text: str = "") -> None:
        super().__init__(text)
        self.number = number
