"""`python -m swarmtrain`, and the command `swarmtrain`: loads the command line and runs it."""

import sys


def main() -> int:
    """Run this process's command line; Ctrl+C may come before that is loaded.

    Returns:
        The exit status, as `swarmtrain.foundation.error_table` documents it.
    """
    try:
        from swarmtrain.cli.main import main as run
    except KeyboardInterrupt:
        from swarmtrain.foundation.error_table import EXIT_INTERRUPTED

        return EXIT_INTERRUPTED
    return run()


if __name__ == "__main__":
    sys.exit(main())
