"""A trio run in a thread of its own, and an asyncio loop: how each calls the other. Knows no job and no MongoDB."""
