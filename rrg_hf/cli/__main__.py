"""`python -m rrg_hf.cli`, for environments without the `rrg` script on the path."""

from . import main

main()
