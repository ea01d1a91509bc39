"""The exception that speaks to the user."""


class UserError(ValueError):
    """A user's mistake: scripts print it as one line. Any other ValueError is a bug and keeps its traceback."""

    exit_status = 2


def first_line(error: Exception) -> str:
    """First line of an exception's message, or its type if it has none."""
    return (str(error).strip() or type(error).__name__).splitlines()[0]
