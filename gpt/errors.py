"""The one exception that speaks to the user."""


class UserError(ValueError):
    """A mistake of the user's, with what to do about it; scripts print it as one line and exit with status 2.

    A ValueError of any other class is a bug and keeps its traceback.
    """
