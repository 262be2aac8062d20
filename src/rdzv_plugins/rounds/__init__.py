"""What all rendezvous engines share: ends, failures, errors, settings, and the workers' stores."""
