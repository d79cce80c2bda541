"""The errors a user can cause and mend. Each message says what was given, why it cannot work and what to do."""

from __future__ import annotations


class RrgError(ValueError):
    """Base of the errors below. The command line prints it as one line; in Python it is a `ValueError`."""


class ImageReadError(RrgError):
    """An image file that cannot be read as a greyscale radiograph."""


class DataError(RrgError):
    """A data source, a row or a text that cannot be used."""


class ConfigError(RrgError):
    """A setting that cannot work, found before any compute."""


class CheckpointError(RrgError):
    """A checkpoint folder that does not fit what it is loaded for."""
