"""Text of any size for language models: prepared in shards or read as a stream, packed, mixed, shared by ranks."""
