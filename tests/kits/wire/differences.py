"""Where our server is deliberately other than torch 2.13's libuv server: the whole list, each with its reason.

``test_differences.py`` has a test for each; ``store_model.py`` models those that random programs meet.
"""

from __future__ import annotations

from enum import Enum


class Difference(Enum):
    SPLIT_VALIDATE = "TCP may cut anywhere; torch's server closes a client whose VALIDATE comes in two packets"
    UNVALIDATED_REQUESTS = "torch's server runs what a stranger sent first, as soon as a second packet comes"
    LINEAR_TIME = "torch's server reads a request of many keys from its first byte again with every 4 KiB"
    PARTIAL_MULTI_SET = "torch's server writes what has come of it, and again with every 4 KiB, over what others wrote"
    COMPARE_SET_WAKES = "a compare_set that wrote nothing gives nobody anything to read"
    PIPELINED_WAITS = "torch's server keeps one count per connection: a second WAIT forgets the first"
    QUEUE_IN_MULTI_WAIT = "a queue that has items is there, also for a WAIT that misses another key"
    STALE_QUEUE_WAITER = "torch's server keeps a released waiter in a queue's line: a later push releases its next WAIT"
    PUSHES_ARE_COUNTED = "torch's server takes a second push to one queue for the other key of the WAIT"
    BARRIER_SIZES = "a barrier holds until as many as its own world size have arrived, whatever the others said"
    BARRIER_RELEASED_BY_ANY_WRITE = "torch's server takes any write of the key for the last arrival"
    WAIT_FOR_BARRIER_KEY = "a barrier's first arrival makes its key: who waits for the key alone is told"
    OWN_WAITS_AFTER_REPLY = "a request is answered before the earlier WAITs that it released on its own connection"
