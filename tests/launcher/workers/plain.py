"""No torch: for what concerns the launcher alone."""

import os
import signal
import subprocess
import sys
import time

mode, *args = sys.argv[1:]
print(f"started rank {os.environ['RANK']}", flush=True)
if mode == "env":
    print(f"{args[0]}={os.environ.get(args[0], 'unset')}", flush=True)
elif mode == "fail":
    for number in range(30):
        print(f"stderr line {number}", file=sys.stderr)
    sys.exit(int(args[0]))
else:
    if mode == "stubborn":
        signal.signal(signal.SIGTERM, signal.SIG_IGN)
    if mode == "children":
        subprocess.Popen([sys.executable, "-c", "import time; time.sleep(600)"])
    print("ready", flush=True)
    while mode == "flood":
        sys.stderr.write("x" * 1000 + "\n")
    time.sleep(600)
