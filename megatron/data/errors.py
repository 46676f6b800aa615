"""A user's mistake in data."""

from megatron.errors import UserError


class DataError(UserError):
    """Data that cannot be read, used or written: names the file and where there is one the line, and the numbers that disagree."""
