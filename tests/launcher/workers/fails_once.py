"""Rank 2 fails in the first round; in the next all print, and wait for a file."""

import os
import sys
import time

rank, again = os.environ["RANK"], os.environ["TORCHELASTIC_RESTART_COUNT"] != "0"
print(f"round {1 + again} rank {rank}")
open(f"{'up' if again else 'first'}{rank}", "w").close()
if rank == "2" and not again:
    while not all(os.path.exists(f"first{other}") for other in "013"):
        time.sleep(0.01)
    os.write(2, b"\x00\xff binary\nno end")
    sys.exit(3)
while not os.path.exists("over"):
    time.sleep(0.01)
