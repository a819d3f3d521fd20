"""What several tests stand on: a Node peer, documents by hand, commands watched and held open."""
