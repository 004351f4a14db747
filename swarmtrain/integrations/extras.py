"""One error for a library that is not installed."""

from swarmtrain.foundation.errors import UserError


def missing(library: str, extra: str, error: ImportError) -> UserError:
    """SWT-E102: the integration with `library` needs it, and `extra` brings it."""
    return UserError(
        "SWT-E102",
        f"swarmtrain.integrations.{library} needs {library}, which cannot be imported ({error}).",
        "Everything else works without it.",
        f"Install it: pip install 'swarmtrain[{extra}]'.",
    )
