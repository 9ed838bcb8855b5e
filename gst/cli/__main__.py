"""`python -m gst.cli`: the same as `gst`."""

import sys

from gst.cli.command_line import main

if __name__ == "__main__":
    sys.exit(main())
