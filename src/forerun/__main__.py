"""`python -m forerun`: the command line."""

from __future__ import annotations

from forerun.cli.main import main

if __name__ == "__main__":
    main()
