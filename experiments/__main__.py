"""The experiments as `python -m experiments`."""

from experiments._app import main

if __name__ == "__main__":
    main()
