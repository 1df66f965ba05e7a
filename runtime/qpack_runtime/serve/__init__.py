"""A server of one bundle, with the HTTP endpoints of OpenAI's API."""
