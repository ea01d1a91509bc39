"""The exception that speaks to the user."""


class UserError(ValueError):
    """A mistake of the user's: what is wrong and what to do, which scripts print as one line.

    Any other ValueError is a bug and keeps its traceback.
    """

    exit_status = 2
