"""`python -m trivium` is the command."""

from trivium.cli import main

if __name__ == "__main__":
    main()
