"""Tests of the program."""

import unittest

from main import greeting


class Greeting(unittest.TestCase):
    def test_it_names_whom_it_greets(self) -> None:
        self.assertEqual(greeting("you"), "Hello, you.")
