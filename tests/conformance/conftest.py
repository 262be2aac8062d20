from __future__ import annotations

import os

# many of these tests run at once, each with processes of its own; the suite reads it when it is first used
os.environ.setdefault("RDZV_CONFORMANCE_PATIENCE", "90")
