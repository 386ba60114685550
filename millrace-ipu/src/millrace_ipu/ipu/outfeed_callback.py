"""The tutorial's module `outfeed_callback`.

OutfeedCallback(outfeed_queue, name="OutfeedCallback")   -> millrace.callbacks.OutfeedCallback
"""

from millrace.callbacks import OutfeedCallback as OutfeedCallback
