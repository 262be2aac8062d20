"""torch's TCPStore: serving one, reaching one, and the parts of its protocol that we speak."""
