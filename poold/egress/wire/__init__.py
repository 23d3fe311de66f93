"""What guests say, read without believing it. No I/O, and nothing raised but what the docstrings say."""
