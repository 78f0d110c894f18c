"""Everything that shows a claim and serves nobody: `python -m benchmarks` lists it. No part of the
wheel."""
