"""Greetings, stored in a database."""


def save(connection, name):
    """Stores a greeting and returns its text."""
    connection.run("CREATE TABLE IF NOT EXISTS greeting (text TEXT NOT NULL)")
    text = f"Hello, {name}!"
    connection.run("INSERT INTO greeting (text) VALUES (:text)", text=text)
    return text


def load(connection):
    """Returns all stored greetings."""
    return [row[0] for row in connection.run("SELECT text FROM greeting")]
