"""The command line as `python -m moreauc`."""

from moreauc.app.cli import main

if __name__ == "__main__":
    main()
