"""No torch: says in one line of JSON what these variables are, and the usual ones of a worker; then ends."""

import json
import os
import sys

usual = "RANK WORLD_SIZE LOCAL_RANK GROUP_RANK GROUP_WORLD_SIZE MASTER_ADDR TORCHELASTIC_RUN_ID"
sys.stdout.write(json.dumps({name: os.environ.get(name) for name in (*usual.split(), *sys.argv[1:])}) + "\n")
