"""Data: documents in, token shards with a manifest on disk, windows of tokens out."""
