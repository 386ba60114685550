"""Data on its way from the host to the device.

block.py, blocks.py          batches become blocks
infeed.py, infeed_queue.py   a thread prepares them ahead of the device
waiting.py                   the limit of the wait for a batch, and its name in messages
"""
