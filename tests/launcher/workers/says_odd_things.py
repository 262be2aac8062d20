"""Writes what logs have to bear: binary bytes, lines that all have and that one has, and a last one without an end."""

import os

rank = os.environ["RANK"]
os.write(1, b"\x00\xff\x1b[31m binary \r\n" + bytes(range(256)) + b"\n")
for line in range(200):
    os.write(1, b"alike %d\n" % line)
    if line % 7 == int(rank):
        os.write(1, b"of %s alone\n" % rank.encode())
    os.write(2, b"warning %d\n" % line)
os.write(1, b"half of ")
os.write(1, b"a line")
