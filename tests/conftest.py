"""Put the tests' own folder on the path, for `cases`."""

import sys
from pathlib import Path

sys.path.insert(0, str(Path(__file__).parent))
