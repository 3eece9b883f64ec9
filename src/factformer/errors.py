"""The one exception for mistakes that a user can put right."""


class UserError(ValueError):
    """Bad input, named in one line: what is wrong, where, and what to do about it.

    The command line prints the message alone and exits with code 2; a library user sees an ordinary
    ``ValueError``.
    """
