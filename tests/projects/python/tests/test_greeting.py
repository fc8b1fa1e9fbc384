import greeting
import pg8000.native
import pytest


@pytest.fixture
def connection():
    with pg8000.native.Connection("postgres", host="127.0.0.1", database="postgres") as connection:
        connection.run("DROP TABLE IF EXISTS greeting")
        yield connection


def test_a_saved_greeting_is_loaded(connection):
    assert greeting.save(connection, "Ada") == "Hello, Ada!"
    assert greeting.load(connection) == ["Hello, Ada!"]
