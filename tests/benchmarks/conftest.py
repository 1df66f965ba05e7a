"""The benchmarks are scripts that no install has: here tests find their modules."""

import sys
from pathlib import Path

sys.path.append(str(Path(__file__).parents[2] / "benchmarks"))
