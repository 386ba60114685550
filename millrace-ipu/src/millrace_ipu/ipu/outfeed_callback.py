"""The tutorial's module `outfeed_callback`.

OutfeedCallback(outfeed_queue, name="OutfeedCallback")   -> millrace.callbacks.OutfeedCallback
"""

from millrace.callbacks.outfeed import OutfeedCallback as OutfeedCallback
