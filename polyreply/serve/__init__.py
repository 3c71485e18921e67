"""`polyreply serve`: an OpenAI-compatible API that answers n choices from n decoders in one pass, and a page."""
