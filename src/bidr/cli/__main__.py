"""python -m bidr.cli is the command bidr."""

import sys

from bidr.cli import main

if __name__ == "__main__":
    sys.exit(main())
