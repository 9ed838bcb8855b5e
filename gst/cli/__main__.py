"""`python -m gst.cli`: the same as `gst`."""

import sys

from gst.cli import main

if __name__ == "__main__":
    sys.exit(main())
