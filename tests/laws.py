"""The recipes that the laws are about, for tests of other modules."""

import sys
from pathlib import Path

sys.path.insert(0, str(Path(__file__).parent / "recipes"))

from test_laws import MODEL as MODEL
from test_laws import RECIPES as RECIPES
from test_laws import sampler_of as sampler_of
