"""The replay of an update that went wrong.

run.py      runs the update, with statistics of every tensor in it
table.py    the table that `millrace replay` prints
"""

from millrace.replay.run import Replay as Replay
from millrace.replay.run import Replayed as Replayed
from millrace.replay.run import replay as replay
