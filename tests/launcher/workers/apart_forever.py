"""No process group, no end: says that it runs, and sleeps."""

import time

print("I go on", flush=True)
time.sleep(600)
