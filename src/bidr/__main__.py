"""Run the command line: python -m bidr, which torchrun -m needs."""

import sys

from bidr.cli import main

if __name__ == "__main__":
    sys.exit(main())
