"""The web console: server-rendered pages over the operations, without a build step."""
