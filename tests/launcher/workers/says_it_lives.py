"""Says that it lives, while it sleeps; then it says nothing any more, while it computes."""

import sys
import time

from rdzv_plugins.worker import progress

end = time.monotonic() + float(sys.argv[1])
while time.monotonic() < end:
    progress()
    time.sleep(0.05)
sys.stdout.write("says nothing any more\n")
sys.stdout.flush()
total = 0
while True:
    total += 1
