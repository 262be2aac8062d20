"""What all engines of a rendezvous share: ends, failures, errors, settings, and the workers' stores."""
