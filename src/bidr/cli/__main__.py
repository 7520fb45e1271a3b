"""Run the command line: python -m bidr.cli."""

import sys

from bidr.cli import main

if __name__ == "__main__":
    sys.exit(main())
