import unittest

import greeting


class Greet(unittest.TestCase):
    def test_names_the_person(self):
        self.assertEqual(greeting.greet("Ada"), "Hello, Ada!")


if __name__ == "__main__":
    unittest.main()
