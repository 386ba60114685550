"""The foundation of all other packages: options, records, threads, files of checkpoints."""
