"""No torch: says its whole environment in one line of JSON."""

import json
import os
import sys

sys.stdout.write(json.dumps(dict(os.environ)) + "\n")
