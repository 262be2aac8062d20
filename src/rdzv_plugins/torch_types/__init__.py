"""The border with torch: our errors and stores as torch's, and torch's as ours. All translation happens here."""
