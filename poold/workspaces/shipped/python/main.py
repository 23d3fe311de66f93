"""A program that greets."""


def greeting(name: str) -> str:
    return f"Hello, {name}."


if __name__ == "__main__":
    print(greeting("world"))
