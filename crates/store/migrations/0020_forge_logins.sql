-- Users' own logins at forges: `sealed` has the tokens, and only the key that `key_id` names opens it.
CREATE TABLE forge_logins (
    user_id TEXT NOT NULL REFERENCES users (id) ON DELETE CASCADE,
    forge TEXT NOT NULL,
    host TEXT NOT NULL,
    account TEXT,
    sealed TEXT NOT NULL,
    key_id TEXT NOT NULL,
    expires_at BIGINT,
    created_at BIGINT NOT NULL,
    updated_at BIGINT NOT NULL,
    PRIMARY KEY (user_id, forge)
);
