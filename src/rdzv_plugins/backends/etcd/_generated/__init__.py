"""Code that ``protoc`` has made: README.md says how."""
