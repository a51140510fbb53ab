"""The web console: pages that the server renders from the results of operations, without a build step."""
