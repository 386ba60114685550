"""What everything else stands on: options, records, threads, files of checkpoints."""
