"""The exception that speaks to the user."""


class UserError(ValueError):
    """A user's mistake: scripts print it as one line. Any other ValueError is a bug and keeps its traceback."""

    exit_status = 2
