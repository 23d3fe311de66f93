"""What goes wrong while an image is built."""


class ImageError(Exception):
    """Something that a person can put right; its text is all that they are shown."""

    def __init__(self, message: str, *, hint: str = "") -> None:
        super().__init__(f"{message}\n  {hint}" if hint else message)
