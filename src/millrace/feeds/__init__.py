"""Between host and device: batches become blocks on the way in."""
