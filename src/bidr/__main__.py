"""python -m bidr is the command bidr: torchrun -m bidr train ... needs it."""

import sys

from bidr.cli import main

if __name__ == "__main__":
    sys.exit(main())
