"""The one kind of exception that is a user's mistake: entry points print its message, without a stack trace, and exit with code 2."""


class UserError(Exception):
    """Says what is wrong, where (file, key, line) and what to do."""
