"""`python -m swarmtrain`: the same as the command `swarmtrain`."""

import sys

from swarmtrain.cli.main import main

if __name__ == "__main__":
    sys.exit(main())
