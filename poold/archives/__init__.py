"""Folders of guests as files: tar streams that are checked member by member, compressed, and kept as a whole."""
