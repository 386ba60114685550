"""Data on its way between host and device.

in   block.py, blocks.py            batches become blocks
     infeed.py, infeed_queue.py     a thread prepares them ahead of the device
out  outfeed.py, maybe_outfeed.py   queues of the values that a running program sends
     delivery.py                    the thread that waits for these values
     structure.py                   how elements of a queue are put together
"""
