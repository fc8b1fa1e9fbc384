"""Greets people, politely."""

import sys


def greet(name: str) -> str:
    """A greeting for `name`."""
    return f"Hello, {name}!"


if __name__ == "__main__":
    print(greet(" ".join(sys.argv[1:]) or "world"))
