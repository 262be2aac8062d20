"""Starts what outlives a worker by all means there are, says so, and waits: for a test that none of it does.

Arguments: how the worker itself takes SIGTERM ("ends" or "ignores").
"""

import os
import signal
import subprocess
import sys
import time

SLEEP = [sys.executable, "-c", "import signal, time; signal.signal(signal.SIGTERM, signal.SIG_IGN); time.sleep(600)"]

if sys.argv[1] == "ignores":
    signal.signal(signal.SIGTERM, signal.SIG_IGN)
children = [
    subprocess.Popen(SLEEP),
    subprocess.Popen(SLEEP, start_new_session=True),
    subprocess.Popen(SLEEP, env={}),
    subprocess.Popen(["/bin/sh", "-c", "trap '' TERM; (sleep 600 &) ; exec sleep 600"], start_new_session=True),
]
if os.fork() == 0:
    os.setsid()
    if os.fork() == 0:  # a daemon
        time.sleep(600)
    os._exit(0)
stopped = subprocess.Popen(SLEEP)
os.kill(stopped.pid, signal.SIGSTOP)
sys.stdout.write(f"ready: {' '.join(str(child.pid) for child in (*children, stopped))}\n")
sys.stdout.flush()
time.sleep(600)
