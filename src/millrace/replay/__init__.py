"""An update that went wrong, run again.

run.py      the update, with the statistics of every tensor in it
table.py    what `millrace replay` shows of it
"""

from millrace.replay.run import Replay as Replay
from millrace.replay.run import Replayed as Replayed
from millrace.replay.run import replay as replay
