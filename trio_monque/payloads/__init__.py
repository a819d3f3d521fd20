"""What `payload=` declares: how typed data is stored as plain BSON, checked, and read again."""
