"""No torch: says whether csv was imported before it began, what a script sees of itself, and fails."""

import os
import sys

import __main__

seen = [__name__, __main__ is sys.modules["__main__"], os.path.basename(__file__), sys.argv[1:], __spec__]
seen += [os.path.basename(sys.path[0]), sys.stdout.write_through]
sys.stdout.write(f"has {'csv' if 'csv' in sys.modules else 'nothing'} {seen}\n")
sys.stdout.flush()
sys.exit(3)
