"""How MongoDB remembers jobs: every command, and the only room that imports pymongo."""
